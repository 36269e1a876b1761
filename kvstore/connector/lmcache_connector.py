"""LMCache's connector for vLLM, with fixes for aborted requests and for long-running engines.

Imports vLLM and LMCache.
"""

import logging
import time
from collections.abc import Iterable
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from lmcache.integration.vllm import lmcache_mp_connector
from lmcache.integration.vllm.lmcache_mp_metadata import LMCacheMPRequestMetadata
from lmcache.integration.vllm.lmcache_mp_metrics import LMCacheMPConnectorStats
from vllm.platforms import current_platform
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

from kvstore.connector.arguments import IDENTITY, LEAST_TOKENS, PREFILLED, kv_name
from kvstore.connector.evicted import EvictedPathsManager
from kvstore.connector.fetches import Fetches
from kvstore.connector.in_flight import PatientWorkerAdapter
from kvstore.connector.storing import STORING, StoringBlocks

logger = logging.getLogger(__name__)
LOOKUP_POLL_S = 0.01
"""Seconds between two polls of an aborted request's lookup."""


lmcache_mp_connector.LMCacheMPWorkerAdapter = PatientWorkerAdapter  # LMCache's own constructor creates it


class LMCacheMPConnector(lmcache_mp_connector.LMCacheMPConnector):  # type: ignore[misc]
    """The connector, under the name that vLLM knows. Without prefix caching it makes no stores and no lookups."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        settings = vllm_config.kv_transfer_config.kv_connector_extra_config
        if not vllm_config.cache_config.enable_prefix_caching:
            # Only a block's hash shows whether it still holds the KV to store, and here blocks have none.
            settings["lmcache.mp.lazy_offload"] = False
        super().__init__(vllm_config, *args, **kwargs)
        self._can_store &= self.lazy_offload
        identity = settings[IDENTITY]
        for adapter in (getattr(self, f"{role}_adapter", None) for role in ("scheduler", "worker")):
            if adapter is not None:
                adapter.model_name = kv_name(adapter.model_name, identity)
        self._storing = StoringBlocks()
        self._fetches = Fetches()
        self._lookups: GivenUpLookups | None = None
        if hasattr(self, "scheduler_adapter"):
            self._lookups = GivenUpLookups(self.scheduler_adapter)
            self._sessions = Sessions(self.scheduler_adapter)
            self._hashed_tokens = self._vllm_config.cache_config.block_size
            self._least_tokens: int = settings[LEAST_TOKENS]
            self._prefilled: bool = settings[PREFILLED]
            self._prefilling: set[str] = set()
            """Requests whose prompt is still being computed and is stored when it is complete."""
            if self.lazy_offload:
                self._lazy_offload_manager = EvictedPathsManager(
                    settings, self._group_tokens_per_block, self.scheduler_adapter, storing=self._storing
                )
            else:
                logger.warning("This engine has no prefix caching and shares nothing through the cache server")

    def register_kv_caches(self, *args: Any, **kwargs: Any) -> None:
        super().register_kv_caches(*args, **kwargs)
        if current_platform.is_cpu():  # on other devices it must not disturb the graph capture
            self.worker_adapter._ensure_heartbeat_started()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        finished: tuple[set[str] | None, set[str] | None] = super().get_finished(finished_req_ids)
        # LMCache starts its heartbeat with the first store. A server that got no heartbeat for an hour, or that was
        # restarted meanwhile, would refuse this store and all later ones.
        self.worker_adapter._ensure_heartbeat_started()
        return finished

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        # vLLM overrides the answer for requests that skip the prefix cache: it would neither wait for a lookup, whose
        # locks nobody would then release, nor load anything.
        if not self.lazy_offload or request.skip_reading_prefix_cache:
            self._get_or_create_request_tracker(request)
            return 0, False
        whole = self._whole_chunk_tokens(request.num_tokens)
        lacks = None if num_computed_tokens >= whole else self._block_at(request, num_computed_tokens)
        looked_up = request.request_id in self._sessions
        if not looked_up and lacks is not None and self._fetches.awaits(lacks, request.request_id, request.priority):
            return None, True
        if not looked_up and self._needs_no_lookup(request, num_computed_tokens, whole):
            tracker = self._get_or_create_request_tracker(request)
            alignment = self._hit_alignment_tokens
            tracker.num_vllm_hit_tokens = num_computed_tokens // alignment * alignment
            return 0, False
        self._sessions.begun(request.request_id)
        if lacks is not None and not self._fetches.awaits(lacks, request.request_id, request.priority):
            self._fetches.asks(lacks, request.request_id, request.priority)
        found: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if found[0] is not None:
            self._fetches.answered(request.request_id)
            if not self._prefilled:
                self._lazy_offload_manager.lookups.ended(found[0] > 0)
        return found

    def _needs_no_lookup(self, request: Any, computed: int, whole: int) -> bool:
        """Whether a request skips the lookup: it has no whole chunk, it lacks so few tokens that computing them is less
        work, or the missing KV has probably not been stored."""
        if not whole:
            return True
        if (last := self._block_before(request, whole)) is not None:
            self._lazy_offload_manager.gone_on_with(make_block_hash_with_group_id(last, 0))
        if whole - computed < self._least_tokens:
            return True
        if self._prefilled:
            return False
        missing = self._block_at(request, computed)
        return not self._lazy_offload_manager.lookups.worth(make_block_hash_with_group_id(missing, 0))

    def _whole_chunk_tokens(self, tokens: int) -> int:
        """Number of tokens in whole chunks among the first ``tokens``. The last token is not counted: the engine always
        computes it."""
        chunk: int = self.scheduler_adapter.lmcache_tokens_per_chunk
        return (tokens - 1) // chunk * chunk

    def _block_before(self, request: Any, tokens: int) -> Any:
        """Hash of the block that ends the last whole chunk of the first ``tokens``; None if there is no whole chunk."""
        chunk = self.scheduler_adapter.lmcache_tokens_per_chunk
        last = tokens // chunk * chunk // self._hashed_tokens - 1
        return request.block_hashes[last] if 0 <= last < len(request.block_hashes) else None

    def _block_at(self, request: Any, tokens: int) -> Any:
        """Hash of the block after the first ``tokens``; at least one whole chunk must follow them."""
        return request.block_hashes[tokens // self._hashed_tokens]

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        metadata = super().build_connector_meta(scheduler_output)
        for each in metadata.requests:
            self._sessions.begun(each.request_id)
        return metadata

    def _process_new_requests(self, scheduler_output: Any, metadata: Any) -> None:
        if not (self._prefilled and self._can_store):
            return
        for new in scheduler_output.scheduled_new_reqs:
            self._prefilling.discard(new.req_id)
            whole = self._whole_chunk_tokens(self.request_trackers[new.req_id].num_prompt_tokens)
            if whole - new.num_computed_tokens >= self._least_tokens:
                self._prefilling.add(new.req_id)
                self._prefills(new.req_id, new.num_computed_tokens, scheduler_output)

    def _process_cached_requests(self, scheduler_output: Any, metadata: Any) -> None:
        """Handles only prompts that are stored as soon as they are computed. Blocks that may be evicted belong to no
        running request, so their stores are prepared when a request ends, not in every step."""
        if not self._prefilling:
            return
        going_on = scheduler_output.scheduled_cached_reqs
        for request_id, computed in zip(going_on.req_ids, going_on.num_computed_tokens, strict=True):
            if request_id in self._prefilling:
                self._prefills(request_id, computed, scheduler_output)

    def _prefills(self, request_id: str, computed: int, scheduler_output: Any) -> None:
        """Stores a prompt in the step that computes its last token. ``computed``: tokens computed before this step."""
        tracker = self.request_trackers[request_id]
        computed += scheduler_output.num_scheduled_tokens[request_id]
        if computed < tracker.num_prompt_tokens:
            return
        self._prefilling.discard(request_id)
        # The blocks that it holds now: with a sliding window its first blocks may belong to another request by now.
        tracker.allocated_block_ids = dict(
            enumerate(scheduler_output.kv_connector_block_state.get_block_ids(request_id))
        )
        tracker.num_scheduled_tokens = computed - _found(tracker)
        begin = tracker.num_stored_tokens
        if (prompt := self._to_store(tracker, decoded=False)) is not None:
            self._lazy_offload_manager.store_now(prompt)
        # A store on eviction covers the whole path again: by then the server may have evicted the prompt.
        tracker.num_stored_tokens = begin

    def _offer(self, tracker: Any, computed: int, block_ids: Iterable[list[int]]) -> None:
        """Adds a pending store of blocks that the engine may evict from now on, unless the path is too short for a
        lookup. ``computed``: tokens in these blocks. ``block_ids``: the blocks of one request, by group."""
        if computed < self._least_tokens:
            return
        tracker.allocated_block_ids = dict(enumerate(block_ids))
        tracker.num_scheduled_tokens = computed - _found(tracker)
        if (offered := self._to_store(tracker, decoded=True)) is not None:
            self._lazy_offload_manager.add_store_candidate(offered)

    def _to_store(self, tracker: Any, decoded: bool) -> Any:
        """The store of a request's computed, unstored tokens. ``decoded``: include the tokens that it wrote."""
        if not self._can_store:
            return None
        return LMCacheMPRequestMetadata.GetStoreMetadata(
            tracker,
            self.scheduler_adapter.lmcache_tokens_per_chunk,
            self._group_tokens_per_block,
            save_decode_cache=decoded,
        )

    def _report_block_allocation_deltas(self, scheduler_output: Any) -> None:
        """Reports nothing: the server would only count the blocks, and every step would send it all new tokens."""

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        # Every request that is scheduled passes here, and from here on has a tracker, whether or not vLLM heeded the
        # answer to its lookup.
        if request.request_id not in self.request_trackers:
            self._get_or_create_request_tracker(request)
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens > 0:
            self._fetches.loads(request.request_id)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        tracker = self.request_trackers.get(request.request_id)
        if tracker is not None:
            hashed = len(request.block_hashes) * self._hashed_tokens
            self._offer(tracker, min(request.num_computed_tokens - request.num_in_flight_tokens, hashed), block_ids)
        return self.request_finished(request, block_ids[0] if block_ids else [])

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._fetches.ends(request.request_id)
        self._prefilling.discard(request.request_id)
        tracker = self.request_trackers.get(request.request_id)
        if self._lookups is not None and tracker is not None and self._lookups.take(tracker):
            self._cleanup_request_tracker(request.request_id)
            self._sessions.forget(request.request_id)
            self._lazy_offload_manager.on_request_finished(request.request_id)
            return False, None
        finished: tuple[bool, dict[str, Any] | None] = super().request_finished(request, block_ids)
        return finished

    def update_connector_output(self, connector_output: Any) -> None:
        super().update_connector_output(connector_output)
        for request_id in connector_output.finished_recving or ():
            self._fetches.ends(request_id)

    def get_kv_connector_stats(self) -> LMCacheMPConnectorStats | None:
        stats = super().get_kv_connector_stats()
        if self._lookups is None or not (storing := self._storing.count(self._gpu_block_pool)):
            return stats
        return StoringStats(data={**(stats.data if stats else {}), STORING: storing})

    @classmethod
    def build_prom_metrics(cls, *args: Any, **kwargs: Any) -> None:
        """No metrics of the connector among vLLM's own (``telemetry.engine_metrics``): LMCache's histogram names no
        buckets, without which Ray refuses it and no engine starts."""

    def shutdown(self) -> None:
        if self._lookups is not None:
            self._lookups.close()
        super().shutdown()


def _found(tracker: Any) -> int:
    """Tokens of a request that were in the engine's prefix cache or came from the server."""
    found: int = max(tracker.num_vllm_hit_tokens, tracker.num_lmcache_hit_tokens)
    return found


class StoringStats(LMCacheMPConnectorStats):  # type: ignore[misc]
    """LMCache's stats, and the number of blocks that only stores hold."""

    def is_empty(self) -> bool:
        return False


class Sessions:
    """Sends ``end_session`` only for requests that have a session: those that made a lookup or a store."""

    def __init__(self, adapter: Any) -> None:
        self._begun: set[str] = set()
        self._end_session = adapter.end_session
        adapter.end_session = self._end

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._begun

    def begun(self, request_id: str) -> None:
        self._begun.add(request_id)

    def forget(self, request_id: str) -> None:
        """Forgets a session that is ended elsewhere (`GivenUpLookups`)."""
        self._begun.discard(request_id)

    def _end(self, request_id: str) -> None:
        if request_id in self._begun:
            self._begun.discard(request_id)
            self._end_session(request_id)


class _Lookup(NamedTuple):
    """A lookup that no load will follow. By server: the futures of its acknowledgement and of its result, and the
    result."""

    tracker: Any
    acknowledged: dict[str, Any]
    asked: dict[str, Any]
    hits: dict[str, int]


class GivenUpLookups:
    """Releases the locks of lookups whose requests ended before they were scheduled.

    A lookup locks the chunks that it finds until they are loaded. LMCache ends the session of such a request without
    releasing the locks: the prefix could not be evicted for five minutes, and the server would keep the lookup forever.
    A search that stops leaves dozens of them. The server handles messages in any order, so every message waits for the
    reply to the previous one; a thread does this, so that the scheduler does not wait.
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter
        self._given_up: SimpleQueue[_Lookup | None] = SimpleQueue()
        # A daemon: an engine that ends does not wait for a server that hangs.
        Thread(target=self._give_back_all, name="given-up-lookups", daemon=True).start()

    def take(self, tracker: Any) -> bool:
        """Take over the lookup and the session of a request that has ended; False if it has no pending lookup."""
        adapter, request_id = self._adapter, tracker.request_id
        if request_id not in adapter._pending_lookups:
            return False
        unacknowledged = adapter._unacked_lookups.get(request_id)
        lookup = _Lookup(
            tracker,
            dict(unacknowledged.futures) if unacknowledged else {},
            {url: future for url, (future, _) in adapter._lookup_status.get(request_id, {}).items()},
            dict(adapter._per_server_hits.get(request_id, {})),
        )
        adapter.cleanup_lookup_result(request_id)
        self._given_up.put(lookup)
        return True

    def close(self) -> None:
        self._given_up.put(None)

    def _give_back_all(self) -> None:
        while (lookup := self._given_up.get()) is not None:
            for url in self._adapter.req_clients:
                try:
                    self._give_back_at(url, lookup)
                except Exception:
                    # The server is gone or hangs. Its locks expire, and a new server has none.
                    logger.debug("locks of an aborted lookup at %s were not released; they expire", url, exc_info=True)

    def _give_back_at(self, url: str, lookup: _Lookup) -> None:
        adapter, tracker = self._adapter, lookup.tracker
        client, timeout_s = adapter.req_clients[url], adapter._mq_timeout
        if url in lookup.acknowledged:
            lookup.acknowledged[url].result(timeout_s)
        hits = lookup.hits.get(url)
        if hits is None and url in lookup.asked:
            hits = lookup.asked[url].result(timeout_s)
        deadline = time.monotonic() + timeout_s
        while hits is None:
            # Polled: a call that waits at the server would occupy its only worker for lookups and heartbeats.
            hits = client.query_prefetch_status(tracker.request_id).result(timeout_s)
            if hits is None:
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"the lookup of {tracker.request_id} has not ended in {timeout_s:g} s")
                time.sleep(LOOKUP_POLL_S)
        if hits:
            key = adapter._create_key(
                tracker.get_token_ids(),
                start=0,
                end=hits * adapter.lmcache_tokens_per_chunk,
                request_id=tracker.request_id,
                cache_salt=tracker.cache_salt,
                request_configs=tracker.request_configs,
            ).no_worker_id_version()
            client.free_lookup_locks(key, adapter.tp_size).result(timeout_s)
        client.end_session(tracker.request_id)
