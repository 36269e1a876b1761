"""Cache settings refuse values on which the server or the engines would fail, and the connector gets the required
arguments."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kvstore.connector.arguments import connector_arguments, kv_name
from kvstore.server import cache_server, segments
from kvstore.server.cache_server import CacheAddress, CacheServer, CacheServerError, existing_server
from kvstore.settings import SET_BY_BANYAN, CacheSettings

ADDRESS = CacheAddress("127.0.0.1", 5555, 8080)
NO_SUCH_PID = 2**22 + 1  # above the kernel's maximum


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("l1_size_gb", 0),
        ("l1_size_gb", float("nan")),
        ("chunk_size", 0),
        ("chunk_size", 33),
        ("store", "always"),
        ("lmcache_args", ["--eviction-policy", "ARC"]),
        ("port", 65536),
        ("port", -1),
        ("heartbeat_interval_s", 41),
        ("host", "tcp://cache"),
        ("size", 1),
    ],
)
def test_an_invalid_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValidationError, match=field):
        CacheSettings.model_validate({field: value})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "port and http_port: must be given with host"),
        ({"port": 5555}, "http_port: must be given with host"),
        ({"port": 5555, "http_port": 8080, "l1_size_gb": 2}, "l1_size_gb: only for a server that Banyan starts"),
        (
            {
                "port": 5555,
                "http_port": 8080,
                "l2_adapters": [{"type": "fs"}],
                "lmcache_args": {"eviction_policy": "ARC"},
                "idle_s": 1,
            },
            "l2_adapters, lmcache_args, idle_s: only for a server that Banyan starts",
        ),
    ],
)
def test_an_existing_server_has_its_own_ports_and_settings(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CacheSettings.model_validate({"host": "127.0.0.1", **given})


def test_settings_are_frozen_and_survive_json() -> None:
    settings = CacheSettings(
        l2_adapters=({"type": "fs", "base_path": "/cache"},), lmcache_args={"eviction_policy": "ARC"}
    )
    with pytest.raises(ValidationError, match="frozen"):
        settings.port = 1  # type: ignore[misc]
    assert CacheSettings.model_validate(json.loads(settings.model_dump_json())) == settings


def test_the_connector_recomputes_after_a_failed_load_and_stores_evicted_blocks() -> None:
    arguments = connector_arguments(ADDRESS, CacheSettings(heartbeat_interval_s=1), "weights")
    assert arguments["kv_load_failure_policy"] == "recompute"
    assert arguments["kv_connector_extra_config"] == {
        "lmcache.mp.host": "tcp://127.0.0.1",
        "lmcache.mp.port": 5555,
        "lmcache.mp.mq_timeout": 10.0,
        "lmcache.mp.heartbeat_interval": 1.0,
        "lmcache.mp.mp_transfer_mode": "lmcache_driven",
        "lmcache.mp.lazy_offload": True,
        "banyan.least_tokens": 128,
        "banyan.prefilled": True,
        "banyan.identity": "9a129038d9a00aed0cf6a7ea059ca50a",
    }
    assert json.loads(json.dumps(arguments)) == arguments


def test_kv_is_stored_under_a_short_name_with_the_digest_of_its_settings() -> None:
    assert kv_name("/models/Qwen2.5-Math/", "1f") == "Qwen2.5-Math-1f"
    assert kv_name("Qwen/Qwen2.5-Math##lmcache-dcp-d2", "1f") == "Qwen2.5-Math##lmcache-dcp-d2-1f"
    assert kv_name("weights@2", "1f") == "weights-2-1f", "LMCache refuses the sign, of which it makes keys"


def test_the_server_gets_the_allocators_settings_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "3")
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "1048576")
    monkeypatch.setenv("BANYAN_API_KEYS", "a-secret")
    environment = cache_server._environment()
    assert (environment["MALLOC_ARENA_MAX"], environment["MALLOC_MMAP_THRESHOLD_"]) == ("3", "1048576")
    assert "a-secret" not in environment.values()


def arguments(**settings: Any) -> list[str]:
    """Arguments of ``lmcache server``, without the program's name."""
    _, _, _, *words = cache_server._command(CacheSettings(**settings), ADDRESS)
    return words


def value(of: str, words: list[str]) -> str:
    """The word after the only occurrence of ``of``."""
    assert words.count(of) == 1
    return words[words.index(of) + 1]


def test_extra_arguments_are_written_in_the_servers_syntax() -> None:
    words = arguments(
        lmcache_args={
            "eviction_ratio": 0.5,
            "max-gpu-workers": 2,
            "disable_metrics": True,
            "l1_use_lazy": False,
            "runtime_plugin_config": {"level": "high"},
            "enable": ["transfer_query", "more"],
            "server_module": [{"module_path": "one"}, {"module_path": "other"}],
        }
    )

    assert (value("--eviction-ratio", words), value("--max-gpu-workers", words)) == ("0.5", "2")
    assert "--disable-metrics" in words
    assert "--no-l1-use-lazy" in words
    assert value("--runtime-plugin-config", words) == '{"level": "high"}'
    enabled = words.index("--enable")
    assert words[enabled + 1 : enabled + 3] == ["transfer_query", "more"]
    modules = [words[at + 1] for at, word in enumerate(words) if word == "--server-module"]
    assert modules == ['{"module_path": "one"}', '{"module_path": "other"}']


def test_extra_arguments_override_our_changes_of_lmcaches_defaults() -> None:
    assert value("--eviction-policy", arguments()) == "LRU"
    assert value("--eviction-policy", arguments(lmcache_args={"eviction_policy": "ARC"})) == "ARC"
    assert value("--kv-event-log-size", arguments(lmcache_args={"kv-event-log-size": 9})) == "9"


@pytest.mark.parametrize("name", [*sorted(SET_BY_BANYAN), "l1-size-gb"])
def test_arguments_that_banyan_sets_cannot_be_extra_arguments(name: str) -> None:
    with pytest.raises(ValidationError, match=rf"lmcache_args\n.*\b{name}: set by Banyan itself"):
        CacheSettings(lmcache_args={"eviction_policy": "ARC", name: 1})


def test_the_list_of_arguments_that_banyan_sets_is_complete() -> None:
    words = arguments(l2_adapters=({"type": "fs"},))
    set_here = {word.removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}
    assert set_here == SET_BY_BANYAN | cache_server._ARGUMENTS.keys()


@contextmanager
def external_server(chunk_size: int) -> Iterator[CacheSettings]:
    """An LMCache server of somebody else's: answers its status over HTTP, and listens for engines."""

    class Status(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/status" else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"chunk_size": chunk_size}).encode())

        def log_message(self, *_: Any) -> None: ...

    with socket.create_server(("127.0.0.1", 0)) as engines, HTTPServer(("127.0.0.1", 0), Status) as http:
        serving = threading.Thread(target=http.serve_forever)
        serving.start()
        try:
            ports = {"port": engines.getsockname()[1], "http_port": http.server_port}
            yield CacheSettings(host="127.0.0.1", chunk_size=32, **ports)
        finally:
            http.shutdown()
            serving.join()


def test_an_existing_server_is_asked_for_its_chunk_size() -> None:
    with external_server(32) as settings:
        assert existing_server(settings) == CacheAddress("127.0.0.1", settings.port, settings.http_port)
    with external_server(256) as settings, pytest.raises(CacheServerError, match="has chunk size 256"):
        existing_server(settings)


def test_a_missing_server_is_awaited_only_for_the_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_server, "_PROBE_TIMEOUT_S", 60.0)
    with external_server(32) as settings, socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # and does not listen: nobody can be connected to its port, nor take it
        missing = deaf.getsockname()[1]
        hasty = settings.model_copy(update={"start_timeout_s": 0.2})
        with pytest.raises(CacheServerError, match="no cache server for engines at"):
            existing_server(hasty.model_copy(update={"port": missing}))
        with pytest.raises(CacheServerError, match="GET /status at the cache server failed"):
            existing_server(hasty.model_copy(update={"http_port": missing}))


def test_a_server_that_fails_to_start_raises_and_is_stopped() -> None:
    server = CacheServer(CacheSettings())
    assert not server.alive()
    assert not server.healthy()
    with pytest.raises(CacheServerError, match="before it is started"):
        _ = server.address
    server.stop()


def test_only_segments_of_dead_processes_are_orphans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SHM", tmp_path)
    dead, living = f"lmcache_kv_{NO_SUCH_PID}_0", f"lmcache_kv_{os.getpid()}_0"
    foreign = [f"psm_{NO_SUCH_PID}", "lmcache_kv_1x_0", f"lmcache_kv_{NO_SUCH_PID}_0.txt"]
    for name in (dead, living, *foreign):
        (tmp_path / name).touch()
    assert segments.segments() == {dead, living}
    assert segments.remove_orphans([living, foreign[0]]) == []
    assert segments.remove_orphans() == [dead]
    assert {path.name for path in tmp_path.iterdir()} == {living, *foreign}


def test_a_recycled_pid_does_not_keep_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SHM", tmp_path)
    monkeypatch.setattr(segments, "_SETTLED_S", -1.0)
    name = f"lmcache_kv_{os.getpid()}_0"  # the process of this pid lives, but has not mapped the segment
    (tmp_path / name).touch()
    assert segments.remove_orphans() == [name]


@pytest.mark.parametrize(
    ("settings", "shared", "prefilled"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"l2_adapters": ({"type": "fs"},)}, False, True),
        ({"store": "evicted"}, True, False),
        ({"store": "prefilled"}, False, True),
        ({"host": "cache", "port": 5555, "http_port": 8080}, False, True),
    ],
)
def test_an_engine_that_shares_with_no_other_stores_what_it_evicts(
    settings: dict[str, Any], shared: bool, prefilled: bool
) -> None:
    given = CacheSettings.model_validate({"least_tokens": 256, **settings})

    told = connector_arguments(ADDRESS, given, "weights", shared)["kv_connector_extra_config"]
    assert told["banyan.prefilled"] == prefilled
    assert told["banyan.least_tokens"] == 256
