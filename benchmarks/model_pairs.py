"""The generator and reward model pairs that speed is measured with: the embedded pair, and a heavy version of it."""

import hashlib
import os
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from benchmarks.idle_layers import with_idle_layers
from deployments.engines.settings import EMBEDDED_GENERATOR, EMBEDDED_MODELS, EMBEDDED_PRM

HEAVY_GENERATOR_NEURONS = 32_768
"""Neurons of each layer's MLP (``intermediate_size``), 512 in the embedded models: 51 M parameters in all."""
HEAVY_PRM_NEURONS = 65_536
"""177 M parameters in all."""
LARGE_LAYERS, LARGE_NEURONS = 24, 53_248
"""0.49 G parameters in all, in either model."""


class ModelPair(NamedTuple):
    """A generator and a process reward model, as ``args:`` of ``serve_config.yaml`` names them."""

    generator: str
    prm: str


EMBEDDED = ModelPair(EMBEDDED_GENERATOR, EMBEDDED_PRM)


class PairName(StrEnum):
    """How a benchmark's command line names a pair."""

    HEAVY = "heavy"
    """Engines take nearly all the time."""
    EMBEDDED = "embedded"
    """Controller, Ray Serve and HTTP take a large part of the time."""

    @property
    def models(self) -> ModelPair:
        """The pair of this name; the heavy one is written if it is not there yet."""
        return heavy_pair() if self is PairName.HEAVY else EMBEDDED


def heavy_pair() -> ModelPair:
    """Writes a pair with the embedded pair's texts and rewards at the compute of larger models (0.9 GB in float32).

    It stays in the user's cache directory for the next benchmark: vLLM knows compiled code by the path of its model.
    """
    return _written("heavy_pair", None, HEAVY_GENERATOR_NEURONS, HEAVY_PRM_NEURONS)


def large_pair() -> ModelPair:
    """The same for a GPU: 24 layers, half a billion parameters in each model (4 GB in float32)."""
    return _written("large_pair", LARGE_LAYERS, LARGE_NEURONS, LARGE_NEURONS)


def _written(name: str, layers: int | None, generator_neurons: int, prm_neurons: int) -> ModelPair:
    directory = cache_directory() / f"{name}-{_embedded_digest()}"
    directory.mkdir(parents=True, exist_ok=True)
    generator, prm = directory / "generator", directory / "prm"
    for model, neurons, source in (
        (generator, generator_neurons, EMBEDDED_GENERATOR),
        (prm, prm_neurons, EMBEDDED_PRM),
    ):
        if not model.exists():
            unfinished = model.with_name(f"{model.name}.unfinished")
            with_idle_layers(unfinished, layers=layers, neurons=neurons, of=source).rename(model)
    return ModelPair(str(generator), str(prm))


def cache_directory() -> Path:
    """Directory of what benchmarks keep from one run to the next."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "banyan"


def _embedded_digest() -> str:
    digest = hashlib.blake2b(digest_size=6)
    for model in EMBEDDED:
        digest.update((EMBEDDED_MODELS / model.removeprefix("embedded:") / "model.safetensors").read_bytes())
    return digest.hexdigest()
