"""What a cache server owes an engine: copies from the engine's blocks and into them, which it makes itself.

LMCache takes all of it for ended when the server misses a heartbeat, and the engine gives the blocks to other paths. A
server that was only slow copies all the same when it comes to it: another path's keys and values under the name of the
one that was to be stored, for every engine to find, or one path's over another's. And of a request's stores, one behind
every chunk that is written, it waits for one only. So what was asked is waited for until it is done, or until nobody is
left to do it.

Imports LMCache.
"""

import ipaddress
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped, unused-ignore]
from lmcache.integration.vllm.vllm_multi_process_adapter import LMCacheMPWorkerAdapter

HELD_S = 60.0
"""For so long at most. Who started a server that does not answer has killed it long before (`CacheKeeper`); of one on
another host it cannot be told that it is gone."""
LOOK_EVERY_S = 1.0
"""How often a server's process is looked at."""


class Asked(NamedTuple):
    """Of one transfer."""

    at: float
    """When, on the monotonic clock."""
    server: psutil.Process | None
    """Of which; None where its process cannot be seen."""


class Stores:
    """Of one request, as LMCache asks a future of one: done when all are, well if all went well."""

    def __init__(self, futures: Iterable[Any]) -> None:
        self._futures = list(futures)
        self._went_well = True

    def and_another(self, future: Any) -> "Stores":
        self._futures.append(future)
        return self

    def query(self) -> bool:
        self._futures = [future for future in self._futures if not self._is_done(future)]
        return not self._futures

    def result(self, timeout: float | None = None) -> bool:
        """Once all are done."""
        return self._went_well

    def _is_done(self, future: Any) -> bool:
        try:
            if not future.query():
                return False
            self._went_well &= bool(future.result(timeout=0))
        except Exception:  # the server says that it failed, and whatever it raises would end the engine
            self._went_well = False
        return True


class PatientWorkerAdapter(LMCacheMPWorkerAdapter):  # type: ignore[misc]
    """LMCache's side in a worker, which waits for a server that does not answer.

    Nothing more is asked of such a one, as before. What a server that is gone leaves undone has failed: a path that was
    to be loaded is computed, one that was to be stored is not.
    """

    def __init__(self, server_url: str, *args: Any, **kwargs: Any) -> None:
        self._url = server_url
        self._server: psutil.Process | None = None
        self._asked: dict[Any, Asked] = {}
        """By the future of its reply."""
        self._gone: set[psutil.Process] = set()
        self._looked_at = 0.0
        self._collects = False
        super().__init__(server_url, *args, **kwargs)

    @property
    def is_healthy(self) -> bool:
        """Whether the server answers. While replies are collected it does, or LMCache would drop those to come."""
        return self._collects or bool(super().is_healthy)

    def submit_store_request(self, request_id: str, *args: Any, **kwargs: Any) -> None:
        before = self.store_futures.pop(request_id, None)
        super().submit_store_request(request_id, *args, **kwargs)
        if (future := self.store_futures.get(request_id)) is not None:
            self.store_futures[request_id] = before.and_another(future) if before is not None else Stores([future])
            self.finished_stores.discard(request_id)  # by an earlier one
        elif before is not None:
            self.store_futures[request_id] = before

    def get_finished(self, finished_req_ids_from_engine: set[str]) -> tuple[set[str] | None, set[str] | None]:
        self._give_up()
        self._collects = True
        try:
            finished: tuple[set[str] | None, set[str] | None] = super().get_finished(finished_req_ids_from_engine)
        finally:
            self._collects = False
        return finished

    def get_finished_with_lazy_offload(self) -> tuple[set[str] | None, set[str] | None]:
        self._give_up()
        self._collects = True
        try:
            finished: tuple[set[str] | None, set[str] | None] = super().get_finished_with_lazy_offload()
        finally:
            self._collects = False
        return finished

    def _send_register_kv_caches_request(self, kv_caches: Any) -> None:
        super()._send_register_kv_caches_request(kv_caches)
        self._server = listening_at(self._url)

    def _give_up(self) -> None:
        """What failed, what a server owes that is gone, and what has taken too long."""
        in_flight = [*self.store_futures.values(), *(future for future, _ in self.retrieve_futures.values())]
        if not in_flight:
            self._asked.clear()
            return
        now = time.monotonic()
        self._asked = {future: self._asked.get(future) or Asked(now, self._server) for future in in_flight}
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            self._gone = {each.server for each in self._asked.values() if each.server and not is_there(each.server)}
        for request_id in [name for name, future in self.store_futures.items() if self._is_lost(future, now)]:
            del self.store_futures[request_id]
            self.store_events.pop(request_id, None)
            self._pending_store_kv_events.pop(request_id, None)
            if self.lazy_offload:
                self._completed_store_requests[request_id] = 1
                self._failed_store_requests.add(request_id)
            else:
                self.finished_stores.add(request_id)
        for request_id in [name for name, (future, _) in self.retrieve_futures.items() if self._is_lost(future, now)]:
            _, block_ids = self.retrieve_futures.pop(request_id)
            self.retrieve_events.pop(request_id, None)
            self.error_block_ids.update(block_ids)
            self._failed_request_ids.add(request_id)
            self._dropped_retrieves.add(request_id)

    def _is_lost(self, future: Any, now: float) -> bool:
        try:
            if future.query():
                return False
        except Exception:  # as of `Stores`
            return True
        asked = self._asked[future]
        return asked.server in self._gone or now - asked.at >= HELD_S


def listening_at(url: str) -> psutil.Process | None:
    """The process of this machine that listens at a loopback address; None for another one's or if none is seen."""
    where = urlsplit(url)
    try:
        local = where.hostname == "localhost" or ipaddress.ip_address(where.hostname or "").is_loopback
    except ValueError:
        return None
    if not local:
        return None
    with suppress(psutil.Error, OSError):
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == where.port and each.pid:
                return psutil.Process(each.pid)
    return None


def is_there(process: psutil.Process) -> bool:
    """Whether it has not ended."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
