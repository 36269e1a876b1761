"""Stores a path in LMCache only when the engine is about to evict it: other engines rarely need a search's steps.

LMCache's own lazy policies scan all pending stores in every engine step, or store after a fixed time. A search leaves
thousands of short paths. Here a path is found by its last block, so a step costs only a look at the few blocks that are
evicted next. Imports LMCache.
"""

import math
import time
from collections.abc import Callable, Container, Iterator
from typing import Any, NamedTuple

from lmcache.integration.vllm.lazy_offload_manager import LazyOffloadActions, LazyOffloadManager, _new_blocks
from lmcache.integration.vllm.lazy_offload_policy.base import (
    DrainSignals,
    LazyOffloadDrain,
    OffloadPolicy,
    PendingStoreItem,
)
from lmcache.integration.vllm.lazy_offload_state import LazyOffloadRequestRegistry, SubmittedStoreBatch

from kvstore.connector.recent import BoundedSet
from kvstore.connector.storing import StoringBlocks
from kvstore.memory.running_quantile import RunningQuantile

EVICTION_HORIZON = 2.5
"""Blocks that the engine may reallocate before a store has begun, as a multiple of the blocks allocated per step."""
MOST = 64
"""Maximum number of paths stored in one step."""
GAP_WINDOW = 1024
"""Window of the quantile of reuse gaps."""
LOOK_EVERY = 64
"""The quantile is recomputed after this many gaps."""
QUANTILE = 0.99
MARGIN = 3.0
"""Reuse window, as a multiple of the quantile."""
DEFAULT_WINDOW_S = 60.0
"""Reuse window in seconds until ``LOOK_EVERY`` gaps are known."""
STORED_WINDOW = 1 << 17
"""Number of stored blocks whose hashes are remembered."""
MAX_MISSES = 64
"""Consecutive misses after which few lookups are made for KV that this engine has not stored itself."""
LOOKUP_INTERVAL = 16
"""After ``MAX_MISSES`` misses only every 16th of those lookups is made."""


class ReuseWindow:
    """Reuse window: how long a path is likely to be used again, estimated from the gaps of reused paths.

    Most evicted paths belong to pruned branches, or to searches that have ended.
    """

    def __init__(self) -> None:
        self._gaps: RunningQuantile[float] = RunningQuantile(QUANTILE, GAP_WINDOW, LOOK_EVERY)

    def came_back(self, after_s: float) -> None:
        """Records that a path was used again after this gap."""
        self._gaps.saw(after_s)

    @property
    def within_s(self) -> float:
        """Seconds after which a path is not expected to be used again."""
        quantile = self._gaps.value
        return DEFAULT_WINDOW_S if quantile is None else MARGIN * quantile


class _Path(NamedTuple):
    """The pending store of one request."""

    meta: Any
    hashes: dict[int, Any]
    """Hash of each block by its id, in token order."""

    @property
    def last(self) -> tuple[int, Any]:
        """Id and hash of the last block."""
        return next(reversed(self.hashes.items()))


class EvictedPaths(OffloadPolicy):  # type: ignore[misc]
    """Holds pending stores until the engine is about to evict a path's last block. Then the path is stored, if it is
    recent enough to be used again (`ReuseWindow`).

    An engine frees a request's blocks from the last to the first, so the last block of a path is evicted first. Blocks
    that another path shares are evicted after that path. Two requests with the same last block have the same path, and
    only the newer one is kept. If the last block has another hash by now, it was reallocated, and the path is dropped.
    """

    def __init__(self, pool: Any) -> None:
        """``pool``: the scheduler's block pool, which is only read."""
        self._pool = pool
        self._paths: dict[str, _Path] = {}
        self._by_last: dict[int, str] = {}
        self._now: list[PendingStoreItem] = []
        self._emptied: list[str] = []
        self._per_step = 0.0
        self._added_at: dict[Any, float] = {}
        """Time at which a path was added, by the hash of its last block."""
        self._returns = ReuseWindow()
        self.stored: BoundedSet[Any] = BoundedSet(STORED_WINDOW)
        """Hashes of the blocks that were stored last."""

    def add(self, meta: Any, block_hashes: dict[int, Any]) -> None:
        """Adds the pending store of a request that has ended."""
        name = meta.request_id
        if not block_hashes or any(block_hash is None for block_hash in block_hashes.values()):
            return  # the reallocation of a block without a hash cannot be detected
        self._drop(name)
        path = self._paths[name] = _Path(meta, block_hashes)
        block, _ = path.last
        if (older := self._by_last.get(block)) is not None:
            self._forget(older)
        self._by_last[block] = name
        self._added_at[path.last[1]] = time.monotonic()

    def store_now(self, meta: Any, block_hashes: dict[int, Any]) -> None:
        """Adds a store of blocks that a request computes in this step, to be made in this step."""
        if all(block_hash is not None for block_hash in block_hashes.values()):
            self._now.append(PendingStoreItem(meta.request_id, [(meta, block_hashes)]))

    def gone_on_with(self, last: Any) -> None:
        """Records that a request continues the path whose last block has the hash ``last``."""
        if (added_at := self._added_at.get(last)) is not None:
            self._returns.came_back(time.monotonic() - added_at)

    def due(self, new_blocks: int) -> bool:
        """Whether a drain has anything to do. To be called once per step, with the number of allocated blocks."""
        self._per_step = max(float(new_blocks), 0.7 * self._per_step)
        return (
            bool(self._now)
            or len(self._emptied) >= MOST
            or any(block in self._by_last for block in self._next_blocks())
        )

    def drain(self, signals: DrainSignals) -> LazyOffloadDrain:
        drained = LazyOffloadDrain(
            items=[item for item in self._now if item.request_id not in signals.blocked_request_ids]
        )
        self._now = []
        storing = signals.blocked_request_ids | {item.request_id for item in drained.items}
        for block in list(self._next_blocks()):
            name = self._by_last.get(block)
            if name is None or name in storing:
                continue
            path = self._paths[name]
            _, last = path.last
            recent = time.monotonic() - self._added_at.get(last, -math.inf) <= self._returns.within_s
            if recent and self._pool.blocks[block].block_hash == last:
                drained.items.append(PendingStoreItem(name, [(path.meta, path.hashes)]))
            self._forget(name)
            if len(drained.items) >= MOST:
                break
        for item in drained.items:
            for _, hashes in item.metadatas:
                self.stored.update(hashes.values())
        drained.emptied_request_ids, self._emptied = self._emptied, []
        return drained

    def has_pending_request(self, request_id: str) -> bool:
        return request_id in self._paths

    def drop_request(self, request_id: str) -> int:
        return self._drop(request_id)

    def discard_for_reuse(self, request_id: str) -> None:
        self._drop(request_id)

    def release_request(self, request_id: str) -> None:
        """Does nothing: no state is kept per request."""

    def mark_store_failed(self, request_id: str) -> int:
        """Drops nothing: a pending store of the request covers its whole path."""
        return 0

    def log_final_stats(self) -> None:
        """Logs nothing."""

    def _next_blocks(self) -> Iterator[int]:
        """Ids of the blocks that the engine may reallocate before a store has begun, in that order."""
        block = self._pool.free_block_queue.fake_free_list_head.next_free_block
        for _ in range(math.ceil(EVICTION_HORIZON * self._per_step)):
            if block is None or block.next_free_block is None:  # the sentinel at the end of the queue
                return
            yield block.block_id
            block = block.next_free_block

    def _forget(self, name: str) -> None:
        if self._drop(name):
            self._emptied.append(name)

    def _drop(self, name: str) -> int:
        path = self._paths.pop(name, None)
        if path is None:
            return 0
        block, last = path.last
        if self._by_last.get(block) == name:
            del self._by_last[block]
            self._added_at.pop(last, None)
        return 1


class Lookups:
    """Decides whether a lookup is worth its latency: every branch of a search waits for its own.

    An engine knows which blocks it has stored itself, but not those of an earlier engine. So the first lookups are all
    made; after ``MAX_MISSES`` consecutive misses only one in ``LOOKUP_INTERVAL``, until one is a hit.
    """

    def __init__(self, stored: Container[Any]) -> None:
        self._stored = stored
        self._misses = 0
        self._candidates = 0

    def worth(self, first_missing: Any) -> bool:
        """Whether to make a lookup. ``first_missing``: hash of the first block that the engine lacks."""
        if first_missing in self._stored or self._misses < MAX_MISSES:
            return True
        self._candidates += 1
        return self._candidates % LOOKUP_INTERVAL == 0

    def ended(self, found: bool) -> None:
        """Records the result of a lookup."""
        self._misses = 0 if found else self._misses + 1


class _Registry(LazyOffloadRequestRegistry):  # type: ignore[misc]
    """LMCache's registry of the stores in flight, which also tells `StoringBlocks` which blocks they hold."""

    def __init__(self, storing: StoringBlocks) -> None:
        super().__init__()
        self._storing = storing
        self._in_flight: set[str] = set()

    def register_batch(self, request_id: str, block_ids: list[int]) -> None:
        # Blocks are freed in this order. If a path's first block were evicted first, the whole path would be lost.
        super().register_batch(request_id, block_ids[::-1])
        self._in_flight.add(request_id)
        self._storing.begins(request_id, block_ids)

    def complete_batch(self, request_id: str) -> SubmittedStoreBatch:
        self._in_flight.discard(request_id)
        self._storing.ends(request_id)
        return super().complete_batch(request_id)

    def in_flight_request_ids(self) -> set[str]:
        """Called in every step. LMCache's version scans all requests with pending stores: thousands."""
        return self._in_flight


class EvictedPathsManager(LazyOffloadManager):  # type: ignore[misc]
    """LMCache's manager of lazy stores with the `EvictedPaths` policy. Does nothing in steps without a store."""

    lookups: Lookups
    gone_on_with: Callable[[Any], None]

    def __init__(self, *args: Any, storing: StoringBlocks) -> None:
        super().__init__(*args)
        self._requests = _Registry(storing)

    def bind_block_pool(self, gpu_block_pool: Any) -> None:
        super().bind_block_pool(gpu_block_pool)
        self._policy = EvictedPaths(gpu_block_pool)
        self.lookups = Lookups(self._policy.stored)
        self.gone_on_with = self._policy.gone_on_with
        # LMCache would rebuild this set from thousands of requests for every drain, and the policy does not use it.
        self._requests.finished_request_ids = set

    def add_store_candidate(self, metadata: Any) -> None:
        """Adds a pending store. LMCache's version also makes a request's parts share their tokens: here it has one
        part."""
        self._require_policy().add(metadata, self._hashes(metadata))

    def store_now(self, metadata: Any) -> None:
        self._require_policy().store_now(metadata, self._hashes(metadata))

    def _hashes(self, metadata: Any) -> dict[int, Any]:
        blocks = self._require_block_pool().blocks
        return {each: blocks[each].block_hash for each in metadata.op.flat_block_ids}

    def on_scheduler_step(self, scheduler_output: Any) -> LazyOffloadActions:
        if not self._policy.due(_new_blocks(scheduler_output)):
            return LazyOffloadActions()
        return super().on_scheduler_step(scheduler_output)
