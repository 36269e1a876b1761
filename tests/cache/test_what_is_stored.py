"""What engines store: paths that are about to be evicted, and prompts."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from kvstore.server.cache_server import CacheKeeper
from tests.cache.engines import Reply, engine_of, prompt, together
from tests.cache.servers import BLOCK, SETTINGS, empty, l1, lookups, objects, registered, until


@pytest.mark.long
def test_a_lone_engine_stores_paths_that_are_about_to_be_evicted(
    model: Path, keeper: CacheKeeper, runner: asyncio.Runner
) -> None:
    assert keeper.server.address is not None
    settings = SETTINGS.model_copy(update={"store": "evicted", "least_tokens": 4 * BLOCK})
    blocks = 32  # room for three such prompts and their output
    path, *others = (prompt(seed) for seed in range(901, 907))
    strangers = registered(keeper.server)  # some of these engines are gone
    with engine_of(model, keeper.server.address, settings, kv_bytes=blocks * 65_536) as engine:
        # It has stored nothing yet, and still notices the restart.
        restarts, new = keeper.restarts, registered(keeper.server) - strangers
        assert len(new) == 1
        assert keeper.server.pid is not None
        os.kill(keeper.server.pid, signal.SIGKILL)
        until(lambda: keeper.restarts > restarts and new <= registered(keeper.server))
        before = objects(keeper.server)
        written = runner.run(engine.ask(path))
        again = runner.run(engine.ask([*path, *written.tokens]))
        assert again.cached == len(path) - 1
        assert objects(keeper.server) == before, "nothing is about to be lost"

        for other in others:
            runner.run(engine.ask(other))
        until(lambda: objects(keeper.server) >= before + 8)
        came_back = runner.run(engine.ask(path))

        for other in others:
            runner.run(engine.ask(other))
        before = engine.external_hits

        async def siblings() -> list[Reply]:
            return await asyncio.gather(*(engine.ask(path) for _ in range(8)))

        found = runner.run(siblings())
        loaded = engine.external_hits - before

    assert came_back == written._replace(cached=len(path) - 1)
    assert found == 8 * [came_back]
    assert 0 < loaded < len(path), "one of them had it loaded, the others found it in the engine"


def test_prompts_are_stored_once_computed_and_steps_when_evicted(
    model: Path, keeper: CacheKeeper, runner: asyncio.Runner
) -> None:
    address = keeper.server.address
    assert address is not None
    settings = SETTINGS.model_copy(update={"store": "prefilled", "least_tokens": 4 * BLOCK})
    # There is memory for three such prompts, and this engine computes a prompt in several steps.
    parts = {"max_num_batched_tokens": 3 * BLOCK, "enable_chunked_prefill": True}
    with together(
        engine_of(model, address, settings, kv_bytes=32 * 65_536, **parts), engine_of(model, address, settings)
    ) as (first, second):
        empty(keeper.server)
        path, short, *others = prompt(951), prompt(952, blocks=3), *(prompt(seed) for seed in range(953, 958))
        written = runner.run(first.ask(path, max_tokens=2 * BLOCK))
        # The first engine does not compute it again: forgetting its cache, it would forget to store what was written.
        until(lambda: objects(keeper.server) >= 8, again=lambda: runner.run(second.compute(path, max_tokens=1)))
        runner.run(first.ask([*path, *written.tokens], max_tokens=1))
        runner.run(first.ask(short, max_tokens=1))
        assert l1(keeper.server)["total_object_count"] == 8, "neither what was written nor a short prompt"
        assert runner.run(second.compute(path, max_tokens=2 * BLOCK)) == written._replace(cached=8 * BLOCK)
        assert runner.run(second.ask(short, max_tokens=1)).cached == 0

        for other in others:
            runner.run(first.ask(other, max_tokens=1))
        # Stored are the other prompts, and what was written below the first path, which is evicted. The short prompt is
        # evicted too, but no engine would look it up.
        kept = 8 + 5 * 8 + 2
        until(lambda: objects(keeper.server) >= kept)
        runner.run(second.llm.reset_prefix_cache())
        assert runner.run(second.ask([*path, *written.tokens], max_tokens=1)).cached == 10 * BLOCK
        for other in others:
            assert runner.run(second.ask(other, max_tokens=1)).cached == 8 * BLOCK
        assert runner.run(first.ask(short, max_tokens=1)).cached == 0
        assert objects(keeper.server) == kept


@pytest.mark.long
def test_an_engine_without_prefix_caching_serves_and_shares_nothing(
    model: Path, keeper: CacheKeeper, runner: asyncio.Runner
) -> None:
    empty(keeper.server)
    with engine_of(model, keeper.server.address, enable_prefix_caching=False) as engine:
        before = lookups(keeper.server)
        first = runner.run(engine.ask(prompt(971)))
        assert runner.run(engine.ask(prompt(971))) == Reply(first.tokens, 0)
        assert (objects(keeper.server), lookups(keeper.server)) == (0, before)
