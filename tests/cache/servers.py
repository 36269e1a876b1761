"""Starting LMCache servers for these tests, and reading their state."""

import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from kvstore.server.cache_server import CacheServer, CacheServerError, request_text
from kvstore.settings import CacheSettings

BLOCK = 32
SETTINGS = CacheSettings(
    # The heartbeat's interval is also its deadline: a busy machine misses a shorter one.
    l1_size_gb=0.25,
    chunk_size=BLOCK,
    store="prefilled",
    least_tokens=BLOCK,
    heartbeat_interval_s=5.0,
)
WAIT_S = 180.0


def until(holds: Callable[[], bool], again: Callable[[], object] | None = None) -> None:
    """Waits until a condition holds that no process announces; fails after a limited time.

    ``again`` is called every few seconds: nothing was sent to a server that counted as unhealthy for a moment.
    """
    pause, deadline = threading.Event(), time.monotonic() + WAIT_S
    for tick in itertools.count(1):
        if holds():
            return
        assert time.monotonic() < deadline
        pause.wait(0.1)
        if again is not None and tick % 50 == 0:
            again()


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@retry(
    retry=retry_if_exception_type(CacheServerError), stop=stop_after_delay(WAIT_S), wait=wait_fixed(0.1), reraise=True
)
def answer(server: CacheServer, method: str, path: str) -> str:
    """The server's reply, as text. It is asked again where a busy machine lets a request run out of time."""
    return request_text(server.address, method, path)


def status(server: CacheServer) -> dict[str, Any]:
    """Sizes in bytes, numbers of objects, registered engines."""
    reported: dict[str, Any] = json.loads(answer(server, "GET", "/status"))
    return reported


def clear(server: CacheServer) -> None:
    """Drops all KV that no request is reading."""
    answer(server, "POST", "/cache/clear")


def l1(server: CacheServer) -> dict[str, int]:
    """Counters of the server's memory, by name."""
    counts: dict[str, int] = status(server)["storage_manager"]["l1_manager"]
    return counts


def objects(server: CacheServer) -> int:
    """Number of objects that can be read; others are being written."""
    counts = l1(server)
    return counts["total_object_count"] - counts["staging_object_count"]


def registered(server: CacheServer) -> set[int]:
    """Engines registered at the server; empty while it does not answer."""
    try:
        return set(json.loads(request_text(server.address, "GET", "/status"))["registered_gpu_ids"])
    except CacheServerError:
        return set()


def lookups(server: CacheServer) -> int:
    """Number of prefix lookups that the server has had."""
    threading.Event().wait(0.5)  # the counter follows a moment later
    lines = answer(server, "GET", "/metrics").splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("lmcache_mp_lookups_requests_total"))


def empty(server: CacheServer) -> None:
    """Clears until nothing is left: objects that are being written survive a clear."""

    def emptied() -> bool:
        clear(server)
        return l1(server)["total_object_count"] == 0

    until(emptied)
