"""Metrics of a cache server, across its restarts and while it is unreachable."""

from typing import Any

import pytest

from kvstore.server import figures as server_figures
from kvstore.server.cache_server import CacheAddress, CacheServerError
from kvstore.server.figures import ServerFigures

ADDRESS = CacheAddress("127.0.0.1", 5555, 8080)


def metrics_text(used: int, written: int, other: int = 0) -> str:
    return f"""
# HELP lmcache_mp_l1_memory_usage_bytes L1 memory
# TYPE lmcache_mp_l1_memory_usage_bytes gauge
lmcache_mp_l1_memory_usage_bytes{{backend="dram",l1_tag="_default"}} {float(used)}
# TYPE lmcache_mp_l1_write_chunks_total counter
lmcache_mp_l1_write_chunks_total{{model_name="one"}} {float(written)}
lmcache_mp_l1_write_chunks_total{{model_name="other"}} {float(other)}
# TYPE lmcache_mp_lookups_requests_total counter
lmcache_mp_lookups_requests_total 155.0
"""


def test_counters_keep_growing_across_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[str | Exception] = []

    def answer(*_: Any) -> str:
        given = answers.pop(0)
        if isinstance(given, Exception):
            raise given
        return given

    monkeypatch.setattr(server_figures, "request_text", answer)
    figures = ServerFigures()
    reported = []
    for each in (
        metrics_text(4096, 3),
        metrics_text(8192, 5, other=2),
        CacheServerError("away"),
        "lmcache_mp_l1_write_chunks_total{ is no such text",
        metrics_text(0, 1),  # restarted
        metrics_text(64, 4),
    ):
        answers.append(each)
        now = figures.read(ADDRESS)
        reported.append((now["lmcache_up"], now["lmcache_used_bytes"], now["lmcache_written_chunks"]))

    assert reported == [(1, 4096, 3), (1, 8192, 7), (0, 8192, 7), (0, 8192, 7), (1, 0, 8), (1, 64, 11)]
    assert now.keys() == {"lmcache_up", "lmcache_used_bytes", "lmcache_written_chunks"}, "what it has told"
