"""Paths that an engine stores because it is about to evict them: LMCache's classes around a pool of plain objects."""

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.connector import evicted
from kvstore.connector.evicted import LOOK_EVERY, LOOKUP_INTERVAL, MAX_MISSES, MOST, EvictedPaths, Lookups

SIGNALS: Any = SimpleNamespace(blocked_request_ids=set(), finished_request_ids=set())


class Pool:
    """Blocks with hashes, and the order in which free blocks are taken."""

    def __init__(self, count: int = 200) -> None:
        self.blocks = [SimpleNamespace(block_id=n, block_hash=f"hash {n}", next_free_block=None) for n in range(count)]
        self.free_block_queue = SimpleNamespace(fake_free_list_head=SimpleNamespace(next_free_block=None))

    def frees(self, *order: int) -> None:
        queue: list[Any] = [self.free_block_queue.fake_free_list_head, *(self.blocks[n] for n in order)]
        queue.append(SimpleNamespace(block_id=-1, next_free_block=None))
        for block, following in itertools.pairwise(queue):
            block.next_free_block = following


@pytest.fixture
def pool() -> Pool:
    return Pool()


def offer(paths: EvictedPaths, pool: Pool, name: str, blocks: Sequence[int]) -> None:
    hashes = {block: pool.blocks[block].block_hash for block in blocks}
    paths.add(SimpleNamespace(request_id=name), hashes)


def stored(paths: EvictedPaths, new_blocks: int, blocked: Sequence[str] = ()) -> list[str]:
    if not paths.due(new_blocks):
        return []
    signals: Any = SimpleNamespace(blocked_request_ids=set(blocked), finished_request_ids=set())
    return [item.request_id for item in paths.drain(signals).items]


def test_a_path_is_stored_once_when_its_last_block_is_about_to_be_taken(pool: Pool) -> None:
    paths = EvictedPaths(pool)
    offer(paths, pool, "near", [1, 2, 3])
    offer(paths, pool, "far", [1, 2, 4])
    pool.frees(3, 50, 51, 4, 2, 1)

    assert stored(paths, 0) == [], "an engine at rest stores nothing"
    assert stored(paths, 1) == ["near"]
    assert stored(paths, 1) == []
    assert not paths.has_pending_request("near")
    assert stored(paths, 2) == ["far"]


def test_a_path_offered_again_replaces_its_old_blocks(pool: Pool) -> None:
    paths = EvictedPaths(pool)
    offer(paths, pool, "path", [1, 2])
    offer(paths, pool, "path", [1, 2, 3])
    pool.frees(2, 1)
    assert stored(paths, 2) == [], "it has grown since: its last block is another one"
    pool.frees(3, 2, 1)

    assert paths.due(1)
    (item,) = paths.drain(SIGNALS).items
    assert [list(hashes) for _, hashes in item.metadatas] == [[1, 2, 3]]


def test_a_path_stored_at_once_is_not_pending_and_is_known(pool: Pool) -> None:
    paths = EvictedPaths(pool)
    now: Any = SimpleNamespace(request_id="prompt")
    paths.store_now(now, {1: "hash 1", 2: "hash 2"})
    paths.store_now(SimpleNamespace(request_id="windowed"), {0: None, 3: "hash 3"})
    offer(paths, pool, "prompt", [1, 2, 4])
    pool.frees(4, 2, 1)

    assert stored(paths, 1) == ["prompt"], "of one request one store at a time"
    assert paths.has_pending_request("prompt")
    assert stored(paths, 1, blocked=["prompt"]) == []
    assert stored(paths, 1) == ["prompt"]
    paths.store_now(now, {1: "hash 1"})
    assert stored(paths, 0, blocked=["prompt"]) == [], "a request of that name is being stored"
    lookups = Lookups(paths.stored)
    for _ in range(MAX_MISSES):
        lookups.ended(found=False)
    assert lookups.worth("hash 2")
    assert not lookups.worth("hash 3")


def test_a_path_whose_blocks_were_taken_is_dropped(pool: Pool) -> None:
    paths = EvictedPaths(pool)
    offer(paths, pool, "path", [1, 2])
    pool.blocks[2].block_hash = "another"
    pool.frees(2, 1)

    assert paths.due(1)
    drained = paths.drain(SIGNALS)
    assert (drained.items, drained.emptied_request_ids) == ([], ["path"])


def test_of_equal_paths_one_is_stored(pool: Pool) -> None:
    paths = EvictedPaths(pool)
    offer(paths, pool, "first", [1, 2])
    offer(paths, pool, "again", [1, 2])
    pool.frees(2, 1)

    assert paths.due(1)
    drained = paths.drain(SIGNALS)
    assert [item.request_id for item in drained.items] == ["again"]
    assert drained.emptied_request_ids == ["first", "again"]


def test_a_path_under_way_is_stored_again_if_the_store_fails(pool: Pool) -> None:
    paths = EvictedPaths(pool)
    offer(paths, pool, "path", [1, 2])
    pool.frees(2, 1)
    assert stored(paths, 1, blocked=["path"]) == []
    assert paths.mark_store_failed("path") == 0
    assert stored(paths, 1) == ["path"]


def test_a_path_with_an_unhashed_block_is_dropped(pool: Pool) -> None:
    paths = EvictedPaths(pool)
    pool.blocks[2].block_hash = None
    offer(paths, pool, "path", [1, 2])
    pool.frees(2, 1)
    assert stored(paths, 2) == []


def test_a_step_stores_a_limited_number_of_paths(pool: Pool) -> None:
    paths = EvictedPaths(pool)
    for block in range(MOST + 5):
        offer(paths, pool, f"path {block}", [block])
    pool.frees(*range(MOST + 5))

    assert len(stored(paths, MOST + 5)) == MOST
    assert len(stored(paths, MOST + 5)) == 5


def test_lookups_become_rare_after_misses_except_for_stored_prefixes(pool: Pool) -> None:
    paths = EvictedPaths(pool)
    offer(paths, pool, "path", [1, 2])
    pool.frees(2, 1)
    assert stored(paths, 1) == ["path"]
    lookups = Lookups(paths.stored)

    for _ in range(MAX_MISSES):
        assert lookups.worth("unknown")
        lookups.ended(found=False)
    assert sum(lookups.worth("unknown") for _ in range(10 * LOOKUP_INTERVAL)) == 10
    assert lookups.worth("hash 1")
    assert lookups.worth("hash 2")
    lookups.ended(found=True)
    assert lookups.worth("unknown")


def test_paths_older_than_the_usual_return_time_are_not_stored(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(evicted.time, "monotonic", lambda: now)
    paths = EvictedPaths(pool)
    for number in range(LOOK_EVERY):
        offer(paths, pool, f"path {number}", [10, 20 + number])
        now += 0.1
        paths.gone_on_with(f"hash {20 + number}")
        paths.gone_on_with("hash of nothing")
    offer(paths, pool, "old", [1, 2])
    now += 0.2
    offer(paths, pool, "young", [1, 3])
    now += 0.2
    pool.frees(2, 3, 1)

    assert stored(paths, 2) == ["young"]
    assert not paths.has_pending_request("old")
