"""Checks that the nodes of a cluster match: environment variables, model files, and the store's directory.

The application records what it finds on the node where it is built, and every replica compares. Without that a
difference shows late or never: other weights under the same path grow other trees.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import ray

from deployments.engines.settings import EngineSettings
from deployments.startup.model_files import model_directories

_FILES = (".json", ".jinja", ".safetensors")
_PIECES = 16
_PIECE_BYTES = 1 << 16
_WHOLE_BYTES = 1 << 20  # Files up to this size are read whole.


class NodeDiffers(RuntimeError):
    """A node differs from the one where the application was built. The message names the node and the difference."""


class Built(NamedTuple):
    """What the application recorded on the node where it was built."""

    variables: dict[str, str | None]
    """Environment variables that must be the same everywhere."""
    model: str | None = None
    """Digest of a deployment's model files (`model_digest`); None if they were not on that node."""
    store: str | None = None
    """Id of the store's directory; None without a store."""

    def check(self, engines: Sequence[EngineSettings] = (), environment: Mapping[str, str] = os.environ) -> None:
        """Compares this node with the recorded one. Call it where a replica starts.

        Raises:
            NodeDiffers: they differ.
        """
        for name, value in self.variables.items():
            if (here := environment.get(name)) != value:
                raise NodeDiffers(
                    f"{this_node()}: {name} is {_told(here)}, but {_told(value)} where the application was built. "
                    "Every node needs one value before `ray start`, that of scripts/environment (docs/operating.md)"
                )
        model = model_digest(*engines)
        if model is not None and self.model not in (None, model):
            paths = ", ".join(engine.model_path for engine in engines)
            raise NodeDiffers(
                f"{this_node()}: {paths} does not hold the model that it holds where the application was built: copy "
                "the same files to every node"
            )


def this_node() -> str:
    """Name of this node in messages: its address, and the first digits of its Ray node id."""
    if not ray.is_initialized():
        return "this node"
    address = ray.util.get_node_ip_address()
    return f"node {address} ({ray.get_runtime_context().get_node_id()[:8]})"


def model_digest(*engines: EngineSettings) -> str | None:
    """Digest of the files of all models that the engines load; None if they are not on this machine, or there are none.

    Of a large file only 16 pieces are read: two trained models differ everywhere.
    """
    directories = [directory for engine in engines for directory in model_directories(engine)]
    if not directories or None in directories:
        return None
    found = hashlib.sha256()
    tokenizers = (Path(engine.tokenizer.path) for engine in engines)
    folders = dict.fromkeys([*filter(None, directories), *(folder for folder in tokenizers if folder.is_dir())])
    files = [file for folder in folders for file in sorted(folder.iterdir()) if file.suffix in _FILES]
    files += [file for engine in engines if (file := engine.chat_template_file) and file.is_file()]
    for file in files:
        found.update(f"{file.name} {file.stat().st_size}\n".encode())
        for piece in _pieces(file):
            found.update(piece)
    return found.hexdigest()


def kv_identity(settings: EngineSettings) -> str:
    """Identity of an engine's KV: the settings it depends on, and the weights if their files are on this machine."""
    return f"{settings.kv_settings} {model_digest(settings)}"


def _pieces(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _WHOLE_BYTES:
            yield file.read()
            return
        for index in range(_PIECES):
            file.seek(index * (size - _PIECE_BYTES) // (_PIECES - 1))
            yield file.read(_PIECE_BYTES)


def _told(value: str | None) -> str:
    return "not set" if value is None else repr(value)
