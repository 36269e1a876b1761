"""What an engine stores in LMCache only when it is about to lose it: few others make use of single steps.

LMCache's own policies for this look at all that waits to be stored in every step of the engine, or store after a time
whatever happens. A search leaves thousands of short paths: here each is found by its last block, and a step costs as
much as the few blocks that may go next. Imports LMCache.
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

from kvstore.connector.recent import Recent
from kvstore.connector.storing import StoringBlocks
from kvstore.memory.running_quantile import RunningQuantile

AHEAD = 2.5
"""Blocks that may be taken before a store has begun, in those of a step."""
MOST = 64
"""Paths stored in one step."""
GAPS = 1024
LOOK_EVERY = 64
QUANTILE = 0.99
MARGIN = 3.0
UNKNOWN_S = 60.0
"""After how long a path is not come back to, until enough have been."""
KNOWN = 1 << 17
"""Blocks of which it is remembered that they were stored."""
TRIES = 64
"""So many lookups in vain, and only one of ``SELDOM`` is made of what this engine has not stored itself."""
SELDOM = 16


class Returns:
    """After how long a path is not come back to any more, by how long it took others.

    What an engine loses is mostly of searches that have ended, and of branches that were pruned.
    """

    def __init__(self) -> None:
        self._gaps: RunningQuantile[float] = RunningQuantile(QUANTILE, GAPS, LOOK_EVERY)

    def came_back(self, after_s: float) -> None:
        self._gaps.saw(after_s)

    @property
    def within_s(self) -> float:
        usual = self._gaps.value
        return UNKNOWN_S if usual is None else MARGIN * usual


class _Path(NamedTuple):
    """What one request would store."""

    meta: Any
    hashes: dict[int, Any]
    """Of its blocks, in token order."""

    @property
    def last(self) -> tuple[int, Any]:
        """Its last block, and what that holds."""
        return next(reversed(self.hashes.items()))


class EvictedPaths(OffloadPolicy):  # type: ignore[misc]
    """Holds what requests would store until their last block is among those that the engine takes next; then it is
    stored, if the path is young enough to be come back to (`Returns`).

    An engine frees a request's blocks from the last to the first, so a path's last block goes first; blocks that
    another path shares go when that one has gone. Two requests with the same last block have the same path: one is
    enough. A last block that holds something else by now has been taken: its path is given up.
    """

    def __init__(self, pool: Any) -> None:
        """``pool``: the scheduler's, which is only looked at."""
        self._pool = pool
        self._paths: dict[str, _Path] = {}
        self._by_last: dict[int, str] = {}
        self._now: list[PendingStoreItem] = []
        self._emptied: list[str] = []
        self._per_step = 0.0
        self._added_at: dict[Any, float] = {}
        """When a path got its last block, by that block's hash."""
        self._returns = Returns()
        self.stored: Recent[Any] = Recent(KNOWN)
        """The hashes of the blocks that were stored last."""

    def add(self, meta: Any, block_hashes: dict[int, Any]) -> None:
        """All that a request that has ended would store."""
        name = meta.request_id
        if not block_hashes or any(block_hash is None for block_hash in block_hashes.values()):
            return  # nothing would tell that a block without a hash was taken
        self._drop(name)
        path = self._paths[name] = _Path(meta, block_hashes)
        block, _ = path.last
        if (other := self._by_last.get(block)) is not None:
            self._forget(other)
        self._by_last[block] = name
        self._added_at[path.last[1]] = time.monotonic()

    def store_now(self, meta: Any, block_hashes: dict[int, Any]) -> None:
        """What a request computes in this step, to be stored in it."""
        if all(block_hash is not None for block_hash in block_hashes.values()):
            self._now.append(PendingStoreItem(meta.request_id, [(meta, block_hashes)]))

    def gone_on_with(self, last: Any) -> None:
        """A request continues a path that ends in the block of hash ``last``."""
        if (added_at := self._added_at.get(last)) is not None:
            self._returns.came_back(time.monotonic() - added_at)

    def due(self, new_blocks: int) -> bool:
        """Whether a drain has anything to do. To be called once for every step, with the blocks that it took."""
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
        """Nothing is kept of it."""

    def mark_store_failed(self, request_id: str) -> int:
        """Nothing is dropped: what is still held of that request is its whole path."""
        return 0

    def log_final_stats(self) -> None:
        """Nothing is logged."""

    def _next_blocks(self) -> Iterator[int]:
        """Those that the engine takes next, as many as it may before a store has begun."""
        block = self._pool.free_block_queue.fake_free_list_head.next_free_block
        for _ in range(math.ceil(AHEAD * self._per_step)):
            if block is None or block.next_free_block is None:  # the queue's end is no block
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
    """Whether a lookup is worth its price: the branches of a search wait for theirs, each for its own.

    What an engine has stored itself is known. What one before it has stored is not, so the first lookups are all made,
    and after many in vain some, until one finds something.
    """

    def __init__(self, stored: Container[Any]) -> None:
        self._stored = stored
        self._in_vain = 0
        self._asked = 0

    def worth(self, first_missing: Any) -> bool:
        """``first_missing``: the hash of the first block that the engine does not hold."""
        if first_missing in self._stored or self._in_vain < TRIES:
            return True
        self._asked += 1
        return self._asked % SELDOM == 0

    def ended(self, found: bool) -> None:
        self._in_vain = 0 if found else self._in_vain + 1


class _Registry(LazyOffloadRequestRegistry):  # type: ignore[misc]
    """LMCache's registry of the stores that are under way; tells of the blocks that they hold."""

    def __init__(self, storing: StoringBlocks) -> None:
        super().__init__()
        self._storing = storing
        self._in_flight: set[str] = set()

    def register_batch(self, request_id: str, block_ids: list[int]) -> None:
        # They are freed in this order, and an engine that frees a path's first block first loses all of it.
        super().register_batch(request_id, block_ids[::-1])
        self._in_flight.add(request_id)
        self._storing.begins(request_id, block_ids)

    def complete_batch(self, request_id: str) -> SubmittedStoreBatch:
        self._in_flight.discard(request_id)
        self._storing.ends(request_id)
        return super().complete_batch(request_id)

    def in_flight_request_ids(self) -> set[str]:
        """Asked for in every step; LMCache's looks at all requests that may still store something: thousands."""
        return self._in_flight


class EvictedPathsManager(LazyOffloadManager):  # type: ignore[misc]
    """LMCache's manager of such stores with that policy, asked only when there is something to do."""

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
        # It would be gathered anew for every drain, from thousands of requests, and the policy does not look at it.
        self._requests.finished_request_ids = set

    def add_store_candidate(self, metadata: Any) -> None:
        """As LMCache's, which makes many parts of a request share its tokens: here there is one."""
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
