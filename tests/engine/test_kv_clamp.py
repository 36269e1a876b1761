"""Branches for which an engine has no KV blocks wait for them: nothing is put back, and nothing comes out otherwise."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import pytest_asyncio

from deployments.engines.generation import GenerationEngine
from deployments.engines.settings import GeneratorSettings
from search.errors import GeneratorError
from search.ports import ExpandRequest, StopCondition
from tests.engine.conftest import SETTLE_S, quiet, stop
from tests.engine.test_generation import prompt, rambling, token_ids, wanted

pytestmark = pytest.mark.asyncio(loop_scope="session")

BLOCK_BYTES = 65_536
"""Of the embedded generator."""
BLOCKS = 33
MOST = 512
"""Tokens of a sequence: half of the cache."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def small(generator_model: str) -> AsyncIterator[GenerationEngine]:
    """An engine with little KV memory."""
    settings = GeneratorSettings(
        model=generator_model, max_model_len=MOST, kv_cache_memory_bytes=BLOCKS * BLOCK_BYTES, max_num_seqs=64
    )
    engine = GenerationEngine(settings)
    with quiet():
        await engine.start()
    yield engine
    await stop(engine)


def solutions(engine: GenerationEngine, number: int, search_id: str) -> ExpandRequest:
    return wanted(
        prompt(engine),
        range(number),
        search_id=search_id,
        max_tokens=300,
        stop_condition=StopCondition.SOLUTION,
    )


async def test_they_write_what_they_write_where_there_is_room_and_nothing_is_put_back(
    small: GenerationEngine, generation: GenerationEngine
) -> None:
    assert small.stats()["total_blocks"] <= BLOCKS
    requests = [solutions(small, 40, f"search {number}") for number in range(3)]

    pressed = await asyncio.gather(*(token_ids(small, request) for request in requests))

    assert pressed[0] == await token_ids(generation, requests[0])
    assert pressed[1] == pressed[2] == pressed[0]
    stats = small.stats()
    assert stats["branches_held_back"] > 0
    assert stats["preemptions"] == 0
    assert await small.check_integrity(SETTLE_S) == []
    assert stats["reserved_blocks"] == stats["branches_waiting"] == 0


async def test_what_is_given_up_while_it_waits_leaves_its_place(small: GenerationEngine) -> None:
    held_back = small.stats()["branches_held_back"]
    async with aclosing(small.expand(rambling(prompt(small), "given up"))) as groups:
        async for group in groups:
            if group.children:
                assert small.stats()["branches_waiting"] > 0
                break
    assert small.stats()["branches_held_back"] > held_back

    assert len(await token_ids(small, solutions(small, 10, "after it"))) == 10
    assert await small.check_integrity(SETTLE_S) == []


async def test_a_wait_ends_at_the_deadline(small: GenerationEngine) -> None:
    with pytest.raises(GeneratorError, match=r"not done within 0\.3 s"):
        async for _ in small.expand(rambling(prompt(small), "late", deadline_s=0.3)):
            pass

    assert await small.check_integrity(SETTLE_S) == []
    stats = small.stats()
    assert stats["reserved_blocks"] == stats["branches_waiting"] == 0


async def test_a_call_says_that_it_lives_while_it_waits(small: GenerationEngine) -> None:
    """The headroom that comes along counts what waits."""
    async with aclosing(small.expand(rambling(prompt(small), "first"))) as groups:
        async for group in groups:
            if group.children:
                assert group.headroom is not None
                assert group.headroom.waiting > 0
                assert group.headroom.free_blocks < group.headroom.total_blocks
                break
