"""The second tier of a server, on disk or in Redis."""

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

from cluster.launch.application import free_port
from kvstore.server.cache_server import CacheServer
from kvstore.server.figures import ServerFigures
from tests.cache.engines import Engine, engine_of, prompt, together
from tests.cache.servers import BLOCK, SETTINGS, clear, until
from tests.debian import program


class Tier(NamedTuple):
    """A second tier: LMCache's settings for it, and the number of its objects."""

    adapter: dict[str, Any]
    stored: Callable[[], int]


@contextmanager
def on_disk(directory: Path) -> Iterator[Tier]:
    yield Tier({"type": "fs", "base_path": str(directory)}, lambda: len(list(directory.rglob("*.data"))))


@contextmanager
def in_redis(directory: Path) -> Iterator[Tier]:
    """A real server, as Debian ships it."""
    packages = ["redis-server", "redis-tools", "libjemalloc2", "liblua5.1-0", "liblzf1", "libatomic1", "lua-cjson"]
    found, environment = program("redis-server", [*packages, "lua-bitop"], directory)
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)]
    with subprocess.Popen([found, *options], env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            client = redis.Redis(port=port)
            until(lambda: _answers(client))
            yield Tier({"type": "resp", "host": "127.0.0.1", "port": port}, lambda: int(str(client.dbsize())))
        finally:
            process.terminate()


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


@pytest.mark.long
@pytest.mark.parametrize("second_tier", [on_disk, in_redis])
def test_the_second_tier_separates_salts_and_weights_across_a_restart(
    model: Path,
    runner: asyncio.Runner,
    tmp_path: Path,
    second_tier: Callable[[Path], AbstractContextManager[Tier]],
) -> None:
    with ExitStack() as stack:
        tier = stack.enter_context(second_tier(tmp_path))
        settings = SETTINGS.model_copy(update={"l2_adapters": (tier.adapter,)})
        server = stack.enter_context(CacheServer(settings))
        figures = ServerFigures()

        # Before and after an update that puts other weights under the same path.
        identities = ("these weights", "other weights")
        of_each = (engine_of(model, server.address, identity=identity) for identity in identities)
        engine, other = stack.enter_context(together(*of_each))
        runner.run(engine.ask(prompt(1), salt="mine"))
        until(
            lambda: tier.stored() >= 8,
            again=lambda: runner.run(engine.compute(prompt(1), salt="mine")),
        )
        server.restart()

        def cached(salt: str, engine: Engine = engine) -> int:
            return runner.run(engine.compute(prompt(1), salt=salt)).cached

        until(lambda: cached("mine") == 8 * BLOCK)
        assert cached("yours") == 0
        assert cached("mine") == 8 * BLOCK

        def counted() -> bool:
            counters = figures.read(server.address)
            return min(counters.get(f"lmcache_second_tier_{event}_chunks", 0) for event in ("written", "read")) >= 8

        def from_the_second_tier() -> None:
            clear(server)  # the objects of the first model only
            cached("mine")

        until(counted, again=from_the_second_tier)
        assert cached("mine", other) == 0
        until(lambda: cached("mine", other) == 8 * BLOCK)
        assert cached("mine") == 8 * BLOCK
