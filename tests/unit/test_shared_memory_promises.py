"""Engines that start together on a node do not rely on the same free shared memory."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from deployments import node_cache
from deployments.node_cache import CacheClient
from kvstore.server import segments
from kvstore.settings import CacheSettings

NO_SUCH_PID = 2**22 + 1  # above the kernel's maximum


@pytest.fixture(autouse=True)
def own_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SHM", tmp_path)
    monkeypatch.setattr(node_cache, "free_bytes", lambda: 100)


def earlier(size: int) -> segments.Reservation:
    """A reservation that a live process made a second ago."""
    promise = segments.Reservation(size, pid=1)
    second_ago = time.time_ns() - 1_000_000_000
    os.utime(promise._path, ns=(second_ago, second_ago))
    return promise


def test_the_later_of_two_starting_engines_counts_the_earlier_reservation(tmp_path: Path) -> None:
    (tmp_path / f"banyan_kv_{NO_SUCH_PID}_1024").touch()
    first = earlier(100)
    second = segments.Reservation(50)
    assert (first.before(), second.before()) == (0, 100)
    assert len(list(tmp_path.iterdir())) == 2, "that of a process which is gone is none"
    now = time.time_ns()
    for path in tmp_path.iterdir():
        os.utime(path, ns=(now, now))
    assert sorted((first.before(), second.before())) in ([0, 50], [0, 100]), "one of them comes first"
    first.end()
    first.end()
    assert second.before() == 0


async def test_an_engine_that_does_not_fit_beside_another_waits_for_it() -> None:
    other, client = earlier(80), CacheClient(CacheSettings())
    waiting = asyncio.create_task(client._promised(50))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    other.end()
    assert await asyncio.wait_for(waiting, 10) == 100


async def test_the_wait_is_limited_and_skipped_if_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier(80)
    client = CacheClient(CacheSettings())
    assert await asyncio.wait_for(client._promised(20), 1) == 20
    client.engine_started()
    monkeypatch.setattr(node_cache, "_OTHERS_START_S", 0.0)
    assert await CacheClient(CacheSettings()).attach(50) is None
    assert len(os.listdir(tmp_path)) == 1, "what takes none promises itself none"
