"""What the nodes of a cluster have to have in common, and how one is named where it has not.

The application is built on one of them and says what it found there; every replica compares. What differs would else
show later, or not at all: other weights under the same path grow other trees.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import ray

from deployments.engines.settings import EngineSettings
from deployments.startup.model_files import model_directory

_PIECES = 16
_PIECE_BYTES = 1 << 16
_WHOLE_BYTES = 1 << 20


class NodeDiffers(RuntimeError):
    """A node is not like the one on which the application was built; the message names it, and what is other there."""


class Built(NamedTuple):
    """What was found where the application was built."""

    variables: dict[str, str | None]
    """Environment variables that must be the same everywhere."""
    model: str | None = None
    """Says what is in the files of a deployment's model (`model_digest`); None where they were not there."""
    store: str | None = None
    """What the directory of the store is known by; None where nothing is kept."""

    def check(self, engine: EngineSettings | None = None, environment: Mapping[str, str] = os.environ) -> None:
        """To be asked where a replica starts.

        Raises:
            NodeDiffers: its node is not like the one where the application was built.
        """
        for name, value in self.variables.items():
            if (here := environment.get(name)) != value:
                raise NodeDiffers(
                    f"{this_node()}: {name} is {_told(here)}, but {_told(value)} where the application was built. "
                    "Every node wants the environment of scripts/environment before `ray start` (docs/operating.md)"
                )
        if engine is None or self.model is None:
            return
        model = model_digest(engine)
        if model is not None and model != self.model:
            raise NodeDiffers(
                f"{this_node()}: {engine.model_path} does not hold the model that it holds where the application was "
                "built: copy the same files to every node"
            )


def this_node() -> str:
    """How an operator knows this node: its address, and the beginning of its id in Ray's lists."""
    if not ray.is_initialized():
        return "this node"
    address = ray.util.get_node_ip_address()
    return f"node {address} ({ray.get_runtime_context().get_node_id()[:8]})"


def model_digest(settings: EngineSettings) -> str | None:
    """The same for the same model; None where its files are not on this machine.

    Of large files 16 pieces are read: two models that are trained differ everywhere.
    """
    directory = model_directory(settings)
    if directory is None:
        return None
    found = hashlib.sha256()
    for file in sorted(each for each in directory.iterdir() if each.suffix in {".json", ".jinja", ".safetensors"}):
        found.update(f"{file.name} {file.stat().st_size}\n".encode())
        for piece in _pieces(file):
            found.update(piece)
    return found.hexdigest()


def kv_identity(settings: EngineSettings) -> str:
    """What an engine's keys and values depend on, its weights included where their files are on this machine."""
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
