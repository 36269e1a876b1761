"""A server that is slow, not dead."""

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvstore.cache_server import CacheKeeper
from kvstore.settings import CacheSettings
from tests.cache.engines import VOCABULARY, Engine, engine_of, together
from tests.cache.servers import BLOCK, SETTINGS, until

UNNOTICED_S = 2 * 2.0


def settings_of(store: str) -> CacheSettings:
    return SETTINGS.model_copy(
        update={"store": store, "least_tokens": 9 * BLOCK, "heartbeat_interval_s": UNNOTICED_S / 2}
    )


@pytest.fixture(scope="module")
def small_engines(model: Path, keeper: CacheKeeper) -> Iterator[dict[str, Engine]]:
    """Two with little memory and a fast heartbeat, by what they store."""
    stores = ("always", "evicted")
    of_each = (engine_of(model, keeper.server.address, settings_of(store), kv_bytes=6 << 20) for store in stores)
    with together(*of_each) as both:
        yield dict(zip(stores, both, strict=True))


@contextmanager
def standing_still(keeper: CacheKeeper) -> Iterator[None]:
    """The server, for longer than is not noticed."""
    pid = keeper.server.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Paths:
    """Of random tokens."""

    def __init__(self, seed: str) -> None:
        self._die = random.Random(seed)

    def some(self, blocks: int) -> list[int]:
        """So many blocks and a token."""
        return [self._die.randrange(1, VOCABULARY - 1) for _ in range(blocks * BLOCK + 1)]

    async def push_out(self, engine: Engine) -> None:
        """More than have room; too short to be kept when they are lost."""
        for _ in range(2):
            await asyncio.gather(*(engine.ask(self.some(8), max_tokens=1) for _ in range(8)))


@pytest.mark.parametrize("store", ["always", "evicted"])
def test_a_server_that_stands_still_for_a_while_keeps_nothing_wrong(
    store: str, small_engines: dict[str, Engine], keeper: CacheKeeper, runner: asyncio.Runner
) -> None:
    """It copies from the engine's blocks itself, also what it was asked for long ago: they are still the same then."""
    engine, paths = small_engines[store], Paths(store)

    async def path_while_it_stands_still() -> list[int]:
        began, path = asyncio.Event(), paths.some(4)
        writing = asyncio.create_task(engine.ask(path, max_tokens=8 * BLOCK, began=began))
        await (began.wait() if store == "always" else writing)
        with standing_still(keeper):
            path += (await writing).tokens
            if store == "evicted":
                await paths.push_out(engine)
            await asyncio.sleep(UNNOTICED_S + 1)
            await paths.push_out(engine)  # it gets what the engine takes for free
        return path

    found = 0
    for _ in range(3):  # what comes while a busy server counts as lost is not stored
        path = runner.run(path_while_it_stands_still())
        runner.run(asyncio.sleep(UNNOTICED_S + 1))
        until(lambda: runner.run(engine.llm.reset_prefix_cache()))
        computed = runner.run(engine.ask(path, salt="computed"))
        reply = runner.run(engine.ask(path))
        assert reply.tokens == computed.tokens
        found = max(found, reply.cached)
        if found == 12 * BLOCK:
            break
    assert found == 12 * BLOCK, "what was lost or written while it stood still was stored"


def test_nor_of_what_is_behind_a_window(model_with_windows: Path, keeper: CacheKeeper, runner: asyncio.Runner) -> None:
    """Which the engine takes from a path that is still written."""
    paths = Paths("windows")

    async def path_while_it_stands_still(engine: Engine) -> list[int]:
        began, path = asyncio.Event(), paths.some(4)
        writing = asyncio.create_task(engine.ask(path, max_tokens=8 * BLOCK, began=began))
        await began.wait()
        with standing_still(keeper):
            others = asyncio.create_task(paths.push_out(engine))
            await asyncio.sleep(UNNOTICED_S + 1)
        path += (await writing).tokens
        await others
        return path

    with engine_of(model_with_windows, keeper.server.address, settings_of("always"), kv_bytes=3 << 20) as engine:
        found = 0
        for _ in range(3):
            path = runner.run(path_while_it_stands_still(engine))
            runner.run(asyncio.sleep(UNNOTICED_S + 1))
            # Each block is within the window of what comes next behind it.
            starts = [path[: blocks * BLOCK + 1] for blocks in range(1, 13)]
            computed = [runner.run(engine.ask(start, salt="computed")).tokens for start in starts]
            until(lambda: runner.run(engine.llm.reset_prefix_cache()))
            replies = [runner.run(engine.ask(start)) for start in starts]
            assert [reply.tokens for reply in replies] == computed
            found = max(found, replies[-1].cached)
            if found == 12 * BLOCK:
                break
        assert found == 12 * BLOCK
