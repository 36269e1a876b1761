"""A cache server alone, and its keeper."""

import os
import signal
import time
from pathlib import Path

import pytest

from kvstore.server.cache_server import CacheKeeper, CacheServer, CacheServerError
from tests.cache.servers import BLOCK, SETTINGS, exists, status, until


def test_a_server_answers_once_started_and_is_gone_once_stopped() -> None:
    server = CacheServer(SETTINGS)
    address = server.start()
    pid = server.pid
    assert pid is not None
    assert server.healthy()
    assert status(server)["chunk_size"] == BLOCK
    assert server.start() == address
    assert server.pid == pid
    server.stop()
    assert not exists(pid)
    assert not server.alive()


def test_a_server_has_no_secret_of_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANYAN_API_KEYS", "a-secret")
    with CacheServer(SETTINGS) as server:
        process = Path(f"/proc/{server.pid}")
        assert b"LMCACHE_TRACK_USAGE=false" in (process / "environ").read_bytes()
        assert b"a-secret" not in (process / "environ").read_bytes() + (process / "cmdline").read_bytes()


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


def test_extra_arguments_reach_the_server() -> None:
    arguments = {"eviction_policy": "ARC", "l1_use_lazy": True, "max_cpu_workers": 2}
    with CacheServer(SETTINGS.model_copy(update={"lmcache_args": arguments})) as server:
        command = Path(f"/proc/{server.pid}/cmdline").read_bytes().split(b"\0")
        assert {b"--l1-use-lazy", b"--max-cpu-workers"} <= set(command)
        assert command[command.index(b"--eviction-policy") + 1] == b"ARC"
        assert server.healthy()


def test_the_keeper_restarts_a_killed_server_at_its_address() -> None:
    keeper = CacheKeeper(SETTINGS)
    try:
        address = keeper.start()
        first = keeper.server.pid
        assert first is not None
        killed = time.monotonic()
        os.kill(first, signal.SIGKILL)
        until(lambda: keeper.restarts == 1)
        # Otherwise an engine without a heartbeat in between would not know that it has to register again.
        assert time.monotonic() - killed > 2 * SETTINGS.heartbeat_interval_s
        assert keeper.server.healthy()
        assert keeper.server.address == address
        assert keeper.server.pid != first
    finally:
        keeper.stop()
    assert not keeper.server.alive()


def test_the_keeper_replaces_a_server_that_hangs() -> None:
    settings = SETTINGS.model_copy(update={"stop_timeout_s": 0.5})
    keeper = CacheKeeper(settings, probe_interval_s=0.5, probe_failures=1)
    try:
        keeper.start()
        first = keeper.server.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        until(lambda: keeper.restarts == 1)
        assert keeper.server.healthy()
        assert not exists(first)
    finally:
        keeper.stop()
