"""An engine whose process is stopped: the hang is detected whether it works or not, the engine is killed, and every
call fails."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import psutil
import pytest
import pytest_asyncio

from benchmarks.processes import engines_of, has_ended
from deployments.engines.generation import GenerationEngine
from deployments.engines.rewards.step_head import StepHeadSettings
from deployments.engines.scoring import ScoringEngine
from deployments.engines.settings import GeneratorSettings
from search.errors import GeneratorError, ScorerError
from search.ports import (
    Branch,
    ChildGroup,
    ExpandItem,
    ExpandRequest,
    Lane,
    Sampling,
    ScoreItem,
    ScoreRequest,
    StopCondition,
)
from tests.engine.conftest import quiet, stop

STALL_S = 3.0
FOUND_S = 60.0
"""Far more than ``STALL_S``, for a busy machine."""

pytestmark = [pytest.mark.long, pytest.mark.asyncio, pytest.mark.filterwarnings("ignore")]


class Stoppable:
    """An engine and its process."""

    def __init__(self, engine: GenerationEngine | ScoringEngine, process: psutil.Process) -> None:
        self.engine = engine
        self.process = process

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    async def is_found(self) -> None:
        """Waits until the engine's process is gone; the engine then counts as dead."""
        async with asyncio.timeout(FOUND_S):
            while not has_ended(self.process):
                await asyncio.sleep(0.1)
        with pytest.raises(self.engine.failure, match="hangs"):
            self.engine.check_alive()


async def started(engine: GenerationEngine | ScoringEngine) -> AsyncIterator[Stoppable]:
    before = engines_of(psutil.Process())
    with quiet():
        await engine.start()
    [process] = [each for each in engines_of(psutil.Process()) if each not in before]
    yield Stoppable(engine, process)
    began = time.monotonic()
    await stop(engine)
    assert time.monotonic() - began < FOUND_S


@pytest_asyncio.fixture
async def generation_engine(generator_model: str) -> AsyncIterator[Stoppable]:
    async for engine in started(GenerationEngine(GeneratorSettings(model=generator_model, stall_s=STALL_S))):
        yield engine


@pytest_asyncio.fixture
async def scoring_engine(prm_model: str) -> AsyncIterator[Stoppable]:
    async for engine in started(ScoringEngine(StepHeadSettings(model=prm_model, stall_s=STALL_S))):
        yield engine


async def exhaust(groups: AsyncIterator[ChildGroup]) -> None:
    async for _ in groups:
        pass


async def test_a_generator_that_is_stopped_at_work_fails_its_calls(generation_engine: Stoppable) -> None:
    engine = generation_engine.engine
    assert isinstance(engine, GenerationEngine)
    branches = tuple(Branch(index, index, 900) for index in range(32))
    expansion = ExpandItem((), tuple(range(20, 60)), branches)
    request = ExpandRequest("search", (expansion,), Sampling(2.0), StopCondition.SOLUTION, Lane.DEMAND, 600.0)
    async with aclosing(engine.expand(request)) as groups:
        await anext(groups)
        generation_engine.stop()
        with pytest.raises(GeneratorError, match="the engine failed"):
            await asyncio.wait_for(exhaust(groups), FOUND_S)
    await generation_engine.is_found()
    stats = engine.stats()
    assert stats["branches_alive"] == stats["calls"] == 0


async def test_a_scorer_that_is_stopped_at_work_fails_its_calls(scoring_engine: Stoppable) -> None:
    engine = scoring_engine.engine
    assert isinstance(engine, ScoringEngine)
    scoring_engine.stop()
    with pytest.raises(ScorerError, match="the engine failed"):
        await asyncio.wait_for(engine.score(ScoreRequest("search", "1 + 1?", (ScoreItem(("2",)),), 600.0)), FOUND_S)
    await scoring_engine.is_found()


async def test_an_engine_stopped_without_work_is_detected_too(generation_engine: Stoppable) -> None:
    await asyncio.sleep(STALL_S + 2)  # without work it does not count as hung
    assert await generation_engine.engine.canary(60.0) < 60.0
    generation_engine.stop()
    await generation_engine.is_found()
