"""Prefixes that one engine has computed are not computed by another, and losing the server costs only time."""

import asyncio
import os
import random
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore.server import segments
from kvstore.server.cache_server import CacheKeeper
from tests.cache.engines import VOCABULARY, Engine, Reply, engine_of, prompt, together
from tests.cache.servers import BLOCK, WAIT_S, empty, l1, lookups, objects, until

BLOCKS = 192


@pytest.fixture(scope="module")
def engines(model: Path, keeper: CacheKeeper) -> Iterator[list[Engine]]:
    """One engine as it is served, and one whose model runs in a separate process."""
    address = keeper.server.address
    memory = BLOCKS * 65_536
    apart = engine_of(model, address, kv_bytes=memory, distributed_executor_backend="mp")
    with together(engine_of(model, address, kv_bytes=memory), apart) as both:
        yield both


def test_a_prefix_computed_by_one_engine_is_loaded_by_another(
    engines: list[Engine], keeper: CacheKeeper, runner: asyncio.Runner
) -> None:
    first, second = engines
    lost, kept = prompt(1), prompt(2)
    expected = runner.run(first.ask(lost))
    assert expected.cached == 0
    until(lambda: objects(keeper.server) >= 8, again=lambda: runner.run(first.compute(lost)))
    empty(keeper.server)
    assert runner.run(second.ask(lost)) == Reply(expected.tokens, 0)

    empty(keeper.server)
    expected = runner.run(first.ask(kept))
    assert expected.cached == 0
    until(lambda: objects(keeper.server) >= 8, again=lambda: runner.run(first.compute(kept)))
    assert runner.run(second.ask(kept)) == Reply(expected.tokens, 8 * BLOCK)


def test_steps_below_a_prompt_too_short_for_a_lookup_are_shared_when_evicted(
    engines: list[Engine], keeper: CacheKeeper, runner: asyncio.Runner
) -> None:
    first, second = engines
    long, short = 15, prompt(5, blocks=0)
    others = [prompt(seed, blocks=long) for seed in range(3000, 3004 + BLOCKS // long)]

    def write() -> Reply:
        """Writes the path again, and evicts it by other prompts."""
        written = runner.run(first.compute(short, max_tokens=2 * BLOCK))
        for other in others:
            runner.run(first.ask(other, max_tokens=1))
        return written

    empty(keeper.server)
    before = lookups(keeper.server)
    written = runner.run(first.ask(short, max_tokens=2 * BLOCK))
    assert lookups(keeper.server) == before
    assert objects(keeper.server) == 0
    assert write() == written
    until(lambda: objects(keeper.server) >= len(others) * long + 2, again=write)
    before = lookups(keeper.server)
    assert runner.run(second.ask([*short, *written.tokens])).cached == 2 * BLOCK
    until(lambda: lookups(keeper.server) == before + 1)


def test_prefixes_with_different_salts_are_not_shared(
    engines: list[Engine], keeper: CacheKeeper, runner: asyncio.Runner
) -> None:
    first, second = engines
    empty(keeper.server)
    runner.run(first.ask(prompt(4), salt="mine"))
    until(lambda: objects(keeper.server) >= 8, again=lambda: runner.run(first.compute(prompt(4), salt="mine")))
    found = {salt: runner.run(second.ask(prompt(4), salt=salt)).cached for salt in (None, "yours", "mine")}
    assert found == {None: 0, "yours": 0, "mine": 8 * BLOCK}


@pytest.mark.parametrize("parameters", [{"skip_reading_prefix_cache": True}, {"prompt_logprobs": 0}], ids=str)
def test_requests_that_skip_the_prefix_cache_are_answered_without_a_lookup(
    engines: list[Engine], keeper: CacheKeeper, runner: asyncio.Runner, parameters: dict[str, Any]
) -> None:
    """vLLM schedules them whatever the connector answers: several with the same prefix, which the server has or not."""
    first, second = engines
    kept, new = (prompt(seed + 10 * len(parameters)) for seed in (30, 31))
    expected = runner.run(first.ask(kept))
    until(lambda: objects(keeper.server) >= 8, again=lambda: runner.run(first.compute(kept)))
    before, locked = lookups(keeper.server), l1(keeper.server)["read_locked_count"]

    async def beams(token_ids: list[int]) -> list[Reply]:
        return await asyncio.gather(*(second.ask(token_ids, **parameters) for _ in range(4)))

    assert runner.run(beams(kept)) == [Reply(expected.tokens, 0)] * 4
    assert [reply.cached for reply in runner.run(beams(new))] == [0] * 4
    assert lookups(keeper.server) == before
    assert l1(keeper.server)["read_locked_count"] == locked
    assert runner.run(second.ask(new)).cached == 8 * BLOCK


def test_requests_aborted_while_their_prefix_loads_do_no_harm(
    engines: list[Engine], keeper: CacheKeeper, runner: asyncio.Runner
) -> None:
    """vLLM must be told once about such a request, or its engine dies; and none of its looked-up prefixes may stay
    locked."""
    first, second = engines
    rng = random.Random(8)
    loaded, before = 0, objects(keeper.server)

    async def give_up(token_ids: list[int]) -> None:
        asks = [asyncio.create_task(second.ask(token_ids)) for _ in range(8)]
        await asyncio.sleep(rng.uniform(0.0, 0.02))
        for ask in asks:
            ask.cancel()
        await asyncio.wait(asks)

    for _ in range(25):
        token_ids = [rng.randrange(1, VOCABULARY - 1) for _ in range(8 * BLOCK + 1)]
        expected = runner.run(first.ask(token_ids))
        # Not awaited longer: nothing is stored while a busy server counts as unhealthy.
        runner.run(asyncio.sleep(0.3))
        runner.run(give_up(token_ids))
        reply = runner.run(second.ask(token_ids))
        assert reply.tokens == expected.tokens
        loaded += reply.cached > 0
    assert loaded > 5, "hardly any prefix was there to be loaded"
    # All locks are released but those that an unhealthy server was not told of. LMCache's own connector leaves at least
    # every second object locked.
    until(lambda: l1(keeper.server)["read_locked_count"] <= (objects(keeper.server) - before) // 4)


def test_a_kill_in_mid_flight_fails_no_request_and_hits_resume(
    engines: list[Engine], keeper: CacheKeeper, runner: asyncio.Runner
) -> None:
    first, second = engines
    restarts = keeper.restarts

    async def kill_amid_requests() -> list[Reply]:
        began = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(engine.ask(prompt(100 + seed), max_tokens=64, began=began))
                for seed in range(16)
                for engine in engines
            ]
            await began.wait()
            assert keeper.server.pid is not None
            os.kill(keeper.server.pid, signal.SIGKILL)
        return [task.result() for task in tasks]

    replies = runner.run(kill_amid_requests())
    assert [len(reply.tokens) for reply in replies] == [64] * 32
    # Both engines got the same requests. KV from a dying server must not change an answer; rounding may.
    same = [a.tokens == b.tokens for a, b in zip(replies[::2], replies[1::2], strict=True)]
    assert sum(same) >= 14

    until(lambda: keeper.restarts > restarts)
    seeds = iter(range(200, 100_000))

    def hit() -> bool:
        seed = next(seeds)
        runner.run(first.ask(prompt(seed)))
        runner.run(asyncio.sleep(0.1))
        return runner.run(second.ask(prompt(seed))).cached == 8 * BLOCK

    until(hit)


def test_a_killed_engine_leaves_nothing_in_shared_memory(engines: list[Engine], keeper: CacheKeeper) -> None:
    assert keeper.server.pid is not None
    mapped = segments.mapped_by(keeper.server.pid)
    assert len({segments.creator(name) for name in mapped}) == len(engines)
    victim = segments.creator(min(mapped))
    assert victim is not None
    left = {name for name in mapped if segments.creator(name) == victim}
    pidfd = os.pidfd_open(victim)
    os.kill(victim, signal.SIGKILL)
    assert select.select([pidfd], [], [], WAIT_S)[0]
    os.close(pidfd)
    until(lambda: not left & segments.segments())
    assert mapped - left <= segments.segments()
    assert not list(segments.SHM.glob(f"sem.*-{victim}-*"))
