"""Engines shared by all tests of this folder: an engine takes long to start, so each kind starts once in a process."""

import tests.engine.without_compiler  # before torch is imported

# isort: split
import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

import tests.ray_environment  # noqa: F401  # before Ray is imported
from deployments.engines.settings import EMBEDDED_MODELS, GeneratorSettings

if TYPE_CHECKING:
    from deployments.engines.generation import GenerationEngine
    from deployments.engines.scoring import ScoringEngine


@contextmanager
def quiet() -> Iterator[None]:
    """Ignores warnings of vLLM and torch about themselves during imports and starts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


SETTLE_S = 30.0
"""Longest time until an engine reports that it is idle; generous, for a busy machine."""


def pytest_collect_file() -> None:
    """Imports vLLM and Ray without their warnings. Not when this module is imported: the process that only hands out
    tests to two others imports it too, and these would wait for it for ten seconds."""
    with quiet():
        import ray.serve  # noqa: F401

        import deployments.engines.generation
        import deployments.engines.scoring  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """vLLM leaves its ZeroMQ contexts to the garbage collector, whose warning appears in some later test."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


async def stop(engine: "GenerationEngine | ScoringEngine") -> None:
    """Shuts the engine down, and collects at once what vLLM leaves to the garbage collector, without its warnings."""
    with quiet():
        engine.shutdown()
        await asyncio.sleep(0)  # lets cancelled tasks end
        gc.collect()


@pytest.fixture(scope="session")
def generator_model() -> str:
    return str(EMBEDDED_MODELS / "generator")


@pytest.fixture(scope="session")
def prm_model() -> str:
    return str(EMBEDDED_MODELS / "prm")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_generation(generator_model: str) -> AsyncIterator["GenerationEngine"]:
    from deployments.engines.generation import GenerationEngine

    engine = GenerationEngine(GeneratorSettings(model=generator_model))
    with quiet():
        await engine.start()
    yield engine
    await stop(engine)


@pytest_asyncio.fixture(loop_scope="session")
async def generation(shared_generation: "GenerationEngine") -> AsyncIterator["GenerationEngine"]:
    """The shared engine; every test must leave it idle."""
    yield shared_generation
    assert await shared_generation.check_integrity(SETTLE_S) == []


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_scoring(prm_model: str) -> AsyncIterator["ScoringEngine"]:
    from deployments.engines.rewards.step_head import StepHeadSettings
    from deployments.engines.scoring import ScoringEngine

    engine = ScoringEngine(StepHeadSettings(model=prm_model))
    with quiet():
        await engine.start()
    yield engine
    await stop(engine)


@pytest_asyncio.fixture(loop_scope="session")
async def scoring(shared_scoring: "ScoringEngine") -> AsyncIterator["ScoringEngine"]:
    """The shared engine; every test must leave it idle."""
    yield shared_scoring
    assert await shared_scoring.check_integrity(SETTLE_S) == []


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes vLLM take this machine for one with an NVIDIA GPU of a compute capability, at first 90 for 9.0."""
    import torch
    from vllm.platforms import current_platform

    def of(capability: int) -> None:
        # As in vllm.platforms.cuda.
        dtypes = [torch.bfloat16, torch.float16, torch.float32][capability < 80 :]
        monkeypatch.setattr(type(current_platform), "supported_dtypes", dtypes)
        monkeypatch.setattr(current_platform, "has_device_capability", lambda least: capability >= least)
        monkeypatch.setattr(
            current_platform, "is_device_capability_family", lambda family: capability // 10 == family // 10
        )

    monkeypatch.setattr(current_platform, "is_cpu", lambda: False)
    monkeypatch.setattr(current_platform, "is_cuda", lambda: True)
    of(90)
    return of
