"""An engine whose process dies: every call fails, and nothing is counted twice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import psutil
import pytest

from benchmarks.processes import engines_of
from deployments.engines.generation import GenerationEngine
from deployments.engines.settings import GeneratorSettings
from search.errors import GeneratorError
from search.ports import ChildGroup
from tests.engine.conftest import quiet, stop
from tests.engine.test_generation import prompt, rambling


async def exhaust(groups: AsyncIterator[ChildGroup]) -> None:
    async for _ in groups:
        pass


@pytest.mark.filterwarnings("ignore")
async def test_a_dead_engine_fails_its_calls_and_is_noticed(generator_model: str) -> None:
    before = engines_of(psutil.Process())
    engine = GenerationEngine(GeneratorSettings(model=generator_model))
    with quiet():
        await engine.start()
    [process] = [each for each in engines_of(psutil.Process()) if each not in before]
    async with aclosing(engine.expand(rambling(prompt(engine)))) as groups:
        await anext(groups)
        process.kill()
        with pytest.raises(GeneratorError, match="the engine failed"):
            await asyncio.wait_for(exhaust(groups), 60)
    stats = engine.stats()
    assert stats["branches_alive"] == stats["calls"] == 0
    assert stats["branches_failed"] > 0
    assert stats["branches_begun"] == sum(stats[f"branches_{how}"] for how in ("finished", "aborted", "failed"))
    with pytest.raises(GeneratorError, match="the engine is dead"):
        engine.check_alive()
    with pytest.raises(GeneratorError, match="the engine failed"):
        await engine.canary(60.0)
    assert await engine.check_integrity() == ["the engine is dead"]
    assert engine._sockets is not None
    sockets = engine._sockets.path
    assert any(path.is_socket() for path in sockets.iterdir())
    await stop(engine)
    assert not sockets.exists()
