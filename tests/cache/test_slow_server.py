"""A cache server that is slow, but not dead."""

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvstore.server.cache_server import CacheKeeper
from kvstore.settings import CacheSettings
from tests.cache.engines import VOCABULARY, Engine, engine_of, together
from tests.cache.servers import BLOCK, SETTINGS

UNNOTICED_S = 2 * 2.0


def settings_of(store: str) -> CacheSettings:
    return SETTINGS.model_copy(
        update={"store": store, "least_tokens": 9 * BLOCK, "heartbeat_interval_s": UNNOTICED_S / 2}
    )


@pytest.fixture(scope="module")
def small_engines(model: Path, model_with_windows: Path, keeper: CacheKeeper) -> Iterator[dict[str, Engine]]:
    """Engines with little memory and a fast heartbeat, by what they store or have."""
    dense = {"prefix_cache_retention_interval": None}  # else blocks behind the window are not stored
    kinds: dict[str, tuple[Path, str, int, dict[str, Any]]] = {
        "evicted": (model, "evicted", 6 << 20, {}),
        "prefilled": (model, "prefilled", 6 << 20, {}),
        "windows": (model_with_windows, "prefilled", 3 << 20, dense),
    }
    of_each = (
        engine_of(path, keeper.server.address, settings_of(store), kv_bytes=memory, **arguments)
        for path, store, memory, arguments in kinds.values()
    )
    with together(*of_each) as all_of_them:
        yield dict(zip(kinds, all_of_them, strict=True))


@contextmanager
def stopped_server(keeper: CacheKeeper) -> Iterator[None]:
    """Stops the server for longer than goes unnoticed."""
    pid = keeper.server.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Paths:
    """Random token paths."""

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)

    def some(self, blocks: int) -> list[int]:
        """``blocks`` blocks and one token."""
        return [self._rng.randrange(1, VOCABULARY - 1) for _ in range(blocks * BLOCK + 1)]

    async def push_out(self, engine: Engine) -> None:
        """Evicts everything by other prompts, which are too short to be stored when they are evicted."""
        for _ in range(2):
            await asyncio.gather(*(engine.ask(self.some(8), max_tokens=1) for _ in range(8)))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["prefilled", "windows"])
def test_a_stopped_server_stores_no_wrong_kv_of_prompts_and_evicted_paths(
    kind: str, small_engines: dict[str, Engine], keeper: CacheKeeper, runner: asyncio.Runner
) -> None:
    """The server itself copies from the engines' blocks, also long after it was asked to: they must still be the same.
    One engine reuses those of its prompts once they are behind a sliding window, or the request has ended; another one
    evicts a path."""
    engine, evicting, paths = small_engines[kind], small_engines["evicted"], Paths(kind)

    async def written_when_it_stops() -> tuple[list[int], list[list[int]]]:
        path = paths.some(4)
        path += (await evicting.ask(path, max_tokens=8 * BLOCK)).tokens
        began, prompts = asyncio.Event(), [paths.some(12) for _ in range(4)]
        writing = [asyncio.create_task(engine.ask(each, max_tokens=3 * BLOCK, began=began)) for each in prompts]
        await began.wait()  # the server has been asked to store them, and copies one after the other
        with stopped_server(keeper):
            await asyncio.gather(*writing, paths.push_out(evicting))
            await paths.push_out(engine)
            await asyncio.sleep(UNNOTICED_S + 1)
            # Now the engines could reuse blocks that they believe free.
            await asyncio.gather(paths.push_out(engine), paths.push_out(evicting))
        return path, prompts

    of_path = of_prompts = 0
    for _ in range(3):  # what arrives while a busy server counts as lost is not stored
        path, prompts = runner.run(written_when_it_stops())
        runner.run(asyncio.sleep(UNNOTICED_S + 1))
        computed = runner.run(evicting.compute(path, salt="computed"))
        reply = runner.run(evicting.compute(path))
        assert reply.tokens == computed.tokens
        of_path = max(of_path, reply.cached)
        for prompt in prompts:
            # Each block of the last ones is within the window of the tokens after it.
            starts = [prompt[: blocks * BLOCK + 1] for blocks in range(9, 13)]
            expected = [runner.run(engine.ask(start, salt="computed")).tokens for start in starts]
            replies = [runner.run(engine.compute(start)) for start in starts]
            assert [reply.tokens for reply in replies] == expected
            of_prompts = max(of_prompts, replies[-1].cached)
        if of_path == of_prompts == 12 * BLOCK:
            break
    assert of_path == of_prompts == 12 * BLOCK, "what was lost while it stood still was stored"
