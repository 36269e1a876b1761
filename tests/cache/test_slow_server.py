"""A server that is slow, not dead."""

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.cache_server import CacheKeeper
from tests.cache.engines import VOCABULARY, Engine, engine_of, together
from tests.cache.servers import BLOCK, SETTINGS, until

UNNOTICED_S = 2 * 2.0


@pytest.fixture(scope="module")
def small_engines(model: Path, keeper: CacheKeeper) -> Iterator[dict[str, Engine]]:
    """Two with little memory and a fast heartbeat, by what they store."""
    of_each = {
        store: engine_of(
            model,
            keeper.server.address,
            SETTINGS.model_copy(
                update={"store": store, "least_tokens": 9 * BLOCK, "heartbeat_interval_s": UNNOTICED_S / 2}
            ),
            kv_bytes=6 << 20,
        )
        for store in ("always", "evicted")
    }
    with together(*of_each.values()) as both:
        yield dict(zip(of_each, both, strict=True))


@pytest.mark.parametrize("store", ["always", "evicted"])
def test_a_server_that_stands_still_for_a_while_keeps_nothing_wrong(
    store: str, small_engines: dict[str, Engine], keeper: CacheKeeper, runner: asyncio.Runner
) -> None:
    """It copies from the engine's blocks itself, also what it was asked for long ago: they are still the same then."""
    engine = small_engines[store]
    die = random.Random(store)

    def some(blocks: int) -> list[int]:
        return [die.randrange(1, VOCABULARY - 1) for _ in range(blocks * BLOCK + 1)]

    async def others(engine: Engine) -> None:
        """More than have room; too short to be kept when they are lost."""
        for _ in range(2):
            await asyncio.gather(*(engine.ask(some(8), max_tokens=1) for _ in range(8)))

    async def path_while_it_stands_still(engine: Engine) -> list[int]:
        began, path = asyncio.Event(), some(4)
        writing = asyncio.create_task(engine.ask(path, max_tokens=8 * BLOCK, began=began))
        await (began.wait() if store == "always" else writing)
        pid = keeper.server.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            path += (await writing).tokens
            if store == "evicted":
                await others(engine)
            await asyncio.sleep(UNNOTICED_S + 1)
            await others(engine)  # they get what the engine takes for free
        finally:
            os.kill(pid, signal.SIGCONT)
        return path

    found = 0
    for _ in range(3):  # what comes while a busy server counts as lost is not stored
        path = runner.run(path_while_it_stands_still(engine))
        runner.run(asyncio.sleep(UNNOTICED_S + 1))
        until(lambda: runner.run(engine.llm.reset_prefix_cache()))
        computed = runner.run(engine.ask(path, salt="computed"))
        reply = runner.run(engine.ask(path))
        assert reply.tokens == computed.tokens
        found = max(found, reply.cached)
        if found == 12 * BLOCK:
            break
    assert found == 12 * BLOCK, "what was lost or written while it stood still was stored"
