"""The sentence encoder by which ETS tells kinds of steps apart, where the operator has configured one.

It runs on the processor, in the solver's process of each controller (`search.run.solver`); neither torch nor
transformers is imported anywhere else for it.
"""

import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import snapshot_download
from pydantic import Field

from deployments.engines.settings import Settings
from deployments.sentence_encoder import MODULES, SentenceEncoder
from search.problem import StepEncoder
from search.run.solver import EncoderSource

PACKAGE = "package:"
_HUB_ID = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
_FILES = ["*.json", "*.txt", "*.model", "*.safetensors", "pytorch_model.bin"]


class StepEncoderSettings(Settings):
    """A sentence encoder. What it embeds alike, ETS takes for the same step."""

    model: str = Field(
        description="A hub id, a directory, or package:NAME, an installed package that has the encoder's files.",
    )
    max_distance: float = Field(
        0.05, gt=0, le=2, description="Mean cosine distance up to which two steps say the same; 0.05 in ETS's paper."
    )
    cpu_threads: int = Field(1, ge=1, le=1024, description="Threads of the encoder, in each controller.")

    @property
    def source(self) -> EncoderSource:
        """How the solver's process finds it."""
        return EncoderSource(f"{__name__}:{load_step_encoder.__name__}", self.model_dump(mode="json"))


def check_model(model: str) -> None:
    """
    Raises:
        ValueError: the package or directory is not here, or not a sentence encoder.
    """
    if model.startswith(PACKAGE):
        _packaged(model.removeprefix(PACKAGE))
    elif Path(model).is_dir():
        if not any((Path(model) / name).is_file() for name in (MODULES, "config.json")):
            raise ValueError(f"{model} has neither {MODULES} nor config.json: it is no sentence encoder")
    elif model.startswith(("/", ".", "~")) or not _HUB_ID.fullmatch(model):
        raise ValueError(f"there is no directory {model}; else write a hub id, or package:NAME")


def load_step_encoder(given: dict[str, Any]) -> StepEncoder:
    """Called in the solver's process, with what `StepEncoderSettings` say.

    Raises:
        ValueError: it is not here, or made of parts that are not known here.
        OSError: its files cannot be read or fetched.
    """
    import torch

    settings = StepEncoderSettings.model_validate(given)
    torch.set_num_threads(settings.cpu_threads)
    with _directory(settings.model) as directory:
        return StepEncoder(SentenceEncoder(directory).encode, settings.max_distance)


@contextmanager
def _directory(model: str) -> Iterator[Path]:
    """Where the encoder's files are while it is loaded: fetched from the hub or unpacked if need be."""
    check_model(model)
    if not model.startswith(PACKAGE):
        yield Path(model) if Path(model).is_dir() else Path(snapshot_download(model, allow_patterns=_FILES))
        return
    files = _packaged(model.removeprefix(PACKAGE))
    if files.suffix != ".zip":
        yield files
        return
    with TemporaryDirectory(prefix="banyan-encoder-") as unpacked:
        with zipfile.ZipFile(files) as archive:
            archive.extractall(unpacked)
        yield Path(unpacked) / Path(_modules_in(archive)[0]).parent


def _packaged(name: str) -> Path:
    """The encoder in an installed package: a directory, or a zip file of one. Nothing of the package is imported."""
    try:
        found = distribution(name)
    except (PackageNotFoundError, ValueError) as error:
        raise ValueError(f"there is no package {name!r} installed") from error
    paths = [Path(str(found.locate_file(file))) for file in found.files or ()]
    places = [path.parent for path in paths if path.name == MODULES]
    places += [path for path in paths if path.suffix == ".zip" and path.is_file() and _zipped(path)]
    if len(places) != 1:
        raise ValueError(f"the package {name!r} has {len(places) or 'no'} sentence encoders ({MODULES}), not one")
    return places[0]


def _zipped(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return len(_modules_in(archive)) == 1


def _modules_in(archive: zipfile.ZipFile) -> list[str]:
    return [name for name in archive.namelist() if Path(name).name == MODULES]
