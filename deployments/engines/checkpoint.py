"""Reads the names and shapes of a checkpoint's weights from the headers of its files."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from deployments.engines.errors import EngineStartError
from search.tools.listing import listed

if TYPE_CHECKING:
    from torch import Tensor

INDEX = "model.safetensors.index.json"
NOT_WEIGHTS = ("training_args.bin", "optimizer.bin")
"""Files of torch beside the weights of a model, which vLLM leaves out too."""

Stored = dict[str, "Tensor"]
"""The weights of a checkpoint by name, without their numbers: on torch's meta device."""


class Source(NamedTuple):
    """A checkpoint that an engine loads."""

    path: str
    """Directory or hub id."""
    revision: str | None = None
    prefix: str = ""
    """What its weights' names begin with in the engine."""

    def directory(self, cache: str | None) -> Path | None:
        """Directory of its files; None if they are not all on this machine.

        ``cache``: that of the hub's client, if it is not the default one.
        """
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        if (directory := Path(self.path)).is_dir():
            return directory
        try:
            config = try_to_load_from_cache(self.path, "config.json", cache_dir=cache, revision=self.revision)
        except HFValidationError:  # a file, such as one of GGUF
            return None
        if not isinstance(config, str):
            return None
        try:
            stored_weights(Path(config).parent)
        except EngineStartError:  # not downloaded yet
            return None
        return Path(config).parent


def stored_weights(directory: Path) -> Stored | None:
    """The weights in a model directory, by the headers of the files that vLLM reads; None where it reads Mistral's own
    files, whose names are others.

    Raises:
        EngineStartError: there are no files, one that the index names is missing, or one cannot be read.
    """
    import torch
    from safetensors import safe_open

    if any(directory.glob("consolidated*.safetensors")):
        return None
    stored: Stored = {}
    for file in _files(directory):
        try:
            if file.suffix == ".safetensors":
                with safe_open(file, framework="pt") as tensors:
                    for name in tensors.keys():  # noqa: SIM118 - not a mapping
                        stored[name] = torch.empty(tensors.get_slice(name).get_shape(), device="meta")
            else:
                stored |= torch.load(file, map_location="meta", weights_only=True)
        except Exception as error:  # whatever a reader raises for a damaged file
            raise EngineStartError(f"{file} cannot be read: {error}") from error
    return stored


def _files(directory: Path) -> list[Path]:
    index = directory / INDEX
    if index.is_file():
        try:
            names = sorted({*json.loads(index.read_bytes())["weight_map"].values()})
        except (ValueError, KeyError, AttributeError) as error:
            raise EngineStartError(f"{index} cannot be read: {error!r}") from error
        if missing := [name for name in names if not (directory / name).is_file()]:
            raise EngineStartError(f"{directory} lacks files that {INDEX} names: {listed(missing)}")
        return [directory / name for name in names]
    found = sorted(directory.glob("*.safetensors"))
    found = found or [file for file in sorted(directory.glob("*.bin")) if file.name not in NOT_WEIGHTS]
    if not found and not any(directory.glob("*.pt")):
        raise EngineStartError(f"there are no weights in {directory}: neither safetensors files nor .bin files")
    return found
