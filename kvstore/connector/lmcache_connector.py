"""LMCache's connector as vLLM loads it, made good for requests that are given up, and for engines that run for long.

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
ASK_EVERY_S = 0.01
"""The pause before a lookup that has not ended is asked for again."""


lmcache_mp_connector.LMCacheMPWorkerAdapter = PatientWorkerAdapter  # the one that LMCache's own constructor makes


class LMCacheMPConnector(lmcache_mp_connector.LMCacheMPConnector):  # type: ignore[misc]
    """Under the name that vLLM knows. With an engine that has no prefix caching it neither stores nor asks."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        settings = vllm_config.kv_transfer_config.kv_connector_extra_config
        if not vllm_config.cache_config.enable_prefix_caching:
            # Whether a block still holds what is to be stored is told by its hash, and there are none.
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
            """Requests whose prompt is computed in several steps and stored then."""
            if self.lazy_offload:
                self._lazy_offload_manager = EvictedPathsManager(
                    settings, self._group_tokens_per_block, self.scheduler_adapter, storing=self._storing
                )
            else:
                logger.warning("This engine has no prefix caching and shares nothing through the cache server")

    def register_kv_caches(self, *args: Any, **kwargs: Any) -> None:
        super().register_kv_caches(*args, **kwargs)
        if current_platform.is_cpu():  # elsewhere what is captured now must not be disturbed
            self.worker_adapter._ensure_heartbeat_started()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        finished: tuple[set[str] | None, set[str] | None] = super().get_finished(finished_req_ids)
        # LMCache's own begins with the first store. A server that has heard nothing for an hour, or was started again
        # meanwhile, would refuse that one and all that follow.
        self.worker_adapter._ensure_heartbeat_started()
        return finished

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if not self.lazy_offload:
            self._get_or_create_request_tracker(request)
            return 0, False
        whole = self._worth_having(request.num_tokens)
        lacks = None if num_computed_tokens >= whole else self._block_at(request, num_computed_tokens)
        asked = request.request_id in self._sessions
        if not asked and lacks is not None and self._fetches.awaits(lacks, request.request_id, request.priority):
            return None, True
        if not asked and self._need_not_ask(request, num_computed_tokens, whole):
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

    def _need_not_ask(self, request: Any, computed: int, whole: int) -> bool:
        """Whether a request need not ask what the server has of it: it has no whole chunk, the engine lacks so little
        of it that computing that is less work, or nobody has stored what it lacks."""
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

    def _worth_having(self, tokens: int) -> int:
        """How many of the first ``tokens`` an engine would ask for: whole chunks, and it computes the last token in any
        case."""
        chunk: int = self.scheduler_adapter.lmcache_tokens_per_chunk
        return (tokens - 1) // chunk * chunk

    def _block_before(self, request: Any, tokens: int) -> Any:
        """The hash of the last whole chunk within the first ``tokens``; None where there is none."""
        chunk = self.scheduler_adapter.lmcache_tokens_per_chunk
        last = tokens // chunk * chunk // self._hashed_tokens - 1
        return request.block_hashes[last] if 0 <= last < len(request.block_hashes) else None

    def _block_at(self, request: Any, tokens: int) -> Any:
        """The hash of the block behind the first ``tokens``, of which a whole chunk follows."""
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
            whole = self._worth_having(self.request_trackers[new.req_id].num_prompt_tokens)
            if whole - new.num_computed_tokens >= self._least_tokens:
                self._prefilling.add(new.req_id)
                self._prefills(new.req_id, new.num_computed_tokens, scheduler_output)

    def _process_cached_requests(self, scheduler_output: Any, metadata: Any) -> None:
        """Only of prompts that are stored as soon as they are computed. What is about to be lost is no request's, so
        what that would be is put together at a request's end, not in every step."""
        if not self._prefilling:
            return
        going_on = scheduler_output.scheduled_cached_reqs
        for request_id, computed in zip(going_on.req_ids, going_on.num_computed_tokens, strict=True):
            if request_id in self._prefilling:
                self._prefills(request_id, computed, scheduler_output)

    def _prefills(self, request_id: str, computed: int, scheduler_output: Any) -> None:
        """A prompt that others may lack as this engine did, ``computed`` tokens of it before this step: it is stored in
        the step that computes the last of them."""
        tracker = self.request_trackers[request_id]
        computed += scheduler_output.num_scheduled_tokens[request_id]
        if computed < tracker.num_prompt_tokens:
            return
        self._prefilling.discard(request_id)
        # Those that it has now: where layers look back over a window only, the first are another's by now.
        tracker.allocated_block_ids = dict(
            enumerate(scheduler_output.kv_connector_block_state.get_block_ids(request_id))
        )
        tracker.num_scheduled_tokens = computed - _found(tracker)
        begin = tracker.num_stored_tokens
        if (prompt := self._to_store(tracker, decoded=False)) is not None:
            self._lazy_offload_manager.store_now(prompt)
        # What is stored of it when it is lost is all of it: by then the server may have lost the prompt.
        tracker.num_stored_tokens = begin

    def _offer(self, tracker: Any, computed: int, block_ids: Iterable[list[int]]) -> None:
        """From now on the engine may lose these blocks: of one request, by group, ``computed`` tokens in all. Nothing
        is offered of a path so short that nobody would ask for it."""
        if computed < self._least_tokens:
            return
        tracker.allocated_block_ids = dict(enumerate(block_ids))
        tracker.num_scheduled_tokens = computed - _found(tracker)
        if (offered := self._to_store(tracker, decoded=True)) is not None:
            self._lazy_offload_manager.add_store_candidate(offered)

    def _to_store(self, tracker: Any, decoded: bool) -> Any:
        """What of a request is computed and not stored; ``decoded``: also of what it has written."""
        if not self._can_store:
            return None
        return LMCacheMPRequestMetadata.GetStoreMetadata(
            tracker,
            self.scheduler_adapter.lmcache_tokens_per_chunk,
            self._group_tokens_per_block,
            save_decode_cache=decoded,
        )

    def _report_block_allocation_deltas(self, scheduler_output: Any) -> None:
        """Nothing: the server would only count, and every step would send it all new tokens."""

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
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

    def shutdown(self) -> None:
        if self._lookups is not None:
            self._lookups.close()
        super().shutdown()


def _found(tracker: Any) -> int:
    """Tokens of a request that the engine had, or got from the server."""
    found: int = max(tracker.num_vllm_hit_tokens, tracker.num_lmcache_hit_tokens)
    return found


class StoringStats(LMCacheMPConnectorStats):  # type: ignore[misc]
    """LMCache's own and how many blocks only stores hold."""

    def is_empty(self) -> bool:
        return False


class Sessions:
    """Spares the servers the end of sessions that they never began: of requests that neither looked up nor stored."""

    def __init__(self, adapter: Any) -> None:
        self._begun: set[str] = set()
        self._end_session = adapter.end_session
        adapter.end_session = self._end

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._begun

    def begun(self, request_id: str) -> None:
        self._begun.add(request_id)

    def forget(self, request_id: str) -> None:
        """Somebody else ends that one."""
        self._begun.discard(request_id)

    def _end(self, request_id: str) -> None:
        if request_id in self._begun:
            self._begun.discard(request_id)
            self._end_session(request_id)


class _Lookup(NamedTuple):
    """One that was asked of the servers and will not be followed by a load. By server: the futures of its
    acknowledgement and of its result, and the result."""

    tracker: Any
    acknowledged: dict[str, Any]
    asked: dict[str, Any]
    hits: dict[str, int]


class GivenUpLookups:
    """Gives back what the lookups of requests hold that ended before they were scheduled.

    A lookup locks what it finds until it is loaded. LMCache ends the session of such a request without releasing the
    locks: nothing of that prefix could be evicted for five minutes, and the server kept the lookup for good. A search
    that stops leaves dozens of them. The server handles requests in any order, so each step waits for the one before;
    that happens on a thread of its own, because the scheduler has better to do.
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter
        self._given_up: SimpleQueue[_Lookup | None] = SimpleQueue()
        # A daemon: an engine that ends does not wait for a server that hangs.
        Thread(target=self._give_back_all, name="given-up-lookups", daemon=True).start()

    def take(self, tracker: Any) -> bool:
        """Take over the lookup of a request that has ended, and its session; False if it has none to be given back."""
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
                    # The server is gone or hangs. Its locks expire, and a new one has none.
                    logger.debug("a lookup's locks at %s are left to expire", url, exc_info=True)

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
            # Asked again and again: a call that waits at the server occupies the one worker that all lookups share,
            # and the answers to heartbeats.
            hits = client.query_prefetch_status(tracker.request_id).result(timeout_s)
            if hits is None:
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"the lookup of {tracker.request_id} has not ended in {timeout_s:g} s")
                time.sleep(ASK_EVERY_S)
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
