"""A cache server alone, and its keeper."""

import os
import signal
import time
from pathlib import Path

import pytest

from kvstore.server.cache_server import CacheKeeper, CacheServer, CacheServerError
from tests.cache.servers import BLOCK, SETTINGS, exists, status, until

WITHOUT_ENGINES = SETTINGS.model_copy(update={"heartbeat_interval_s": 1.0})
"""A restart waits for two heartbeats, and here nobody misses any."""


def test_a_server_answers_once_started_and_is_gone_once_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """With extra arguments, and without a secret of its owner."""
    monkeypatch.setenv("BANYAN_API_KEYS", "a-secret")
    arguments = {"eviction_policy": "ARC", "l1_use_lazy": True, "max_cpu_workers": 2}
    server = CacheServer(SETTINGS.model_copy(update={"lmcache_args": arguments}))
    address = server.start()
    pid = server.pid
    assert pid is not None
    until(server.healthy)
    assert status(server)["chunk_size"] == BLOCK
    assert server.start() == address
    assert server.pid == pid
    command, environment = ((Path(f"/proc/{pid}") / name).read_bytes() for name in ("cmdline", "environ"))
    words = command.split(b"\0")
    assert {b"--l1-use-lazy", b"--max-cpu-workers"} <= set(words)
    assert words[words.index(b"--eviction-policy") + 1] == b"ARC"
    assert b"LMCACHE_TRACK_USAGE=false" in environment
    assert b"a-secret" not in environment + command
    server.stop()
    assert not exists(pid)
    assert not server.alive()


def test_the_error_of_a_failed_start_quotes_the_log() -> None:
    settings = SETTINGS.model_copy(update={"l2_adapters": ({"type": "nothing-of-the-kind"},)})
    server = CacheServer(settings)
    with pytest.raises(CacheServerError, match="nothing-of-the-kind"):
        server.start()
    assert not server.alive()
    server.stop()


def test_an_argument_that_the_server_does_not_know_is_named() -> None:
    server = CacheServer(SETTINGS.model_copy(update={"lmcache_args": {"no_such_argument": 3}}))
    with pytest.raises(CacheServerError, match=r"started: unrecognized arguments: --no-such-argument 3$"):
        server.start()
    server.stop()


@pytest.mark.long
def test_the_keeper_replaces_a_server_that_is_killed_and_one_that_hangs() -> None:
    settings = WITHOUT_ENGINES.model_copy(update={"stop_timeout_s": 0.5})
    keeper = CacheKeeper(settings, probe_interval_s=0.5, probe_failures=1)

    def replaced_after(ending: signal.Signals) -> None:
        restarts, last = keeper.restarts, keeper.server.pid
        assert last is not None
        ended = time.monotonic()
        os.kill(last, ending)
        until(lambda: keeper.restarts == restarts + 1)
        # Otherwise an engine without a heartbeat in between would not know that it has to register again.
        assert time.monotonic() - ended > 2 * settings.heartbeat_interval_s
        assert keeper.server.healthy()
        assert keeper.server.address == address
        assert keeper.server.pid != last
        assert not exists(last)

    try:
        address = keeper.start()
        replaced_after(signal.SIGKILL)
        replaced_after(signal.SIGSTOP)
    finally:
        keeper.stop()
    assert not keeper.server.alive()
