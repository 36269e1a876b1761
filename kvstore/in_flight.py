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
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped, unused-ignore]
from lmcache.integration.vllm.vllm_multi_process_adapter import LMCacheMPWorkerAdapter

HELD_S = 60.0
"""For so long at most, while the engine runs. Who started a server that does not answer has killed it long before
(`CacheKeeper`). Of one on another host it cannot be seen that it is gone, and one that could not do what it was asked
may never say so."""
LOOK_EVERY_S = 1.0
"""How often a server's process is looked at, and as how much a pause counts in which the engine stood still too."""
POLL_S = 0.001
BUSY = 0.05
"""Of a core, while the engine waits: it has not hung, and whoever watches it tells that by the time that it uses."""


class Asked(NamedTuple):
    """Of one transfer."""

    at: float
    """When, on the adapter's clock."""
    server: psutil.Process | None
    """Of which; None where its process cannot be seen."""


class Lost:
    """A reply that will not come: as one of a transfer that failed."""

    def query(self) -> bool:
        return True

    def result(self, timeout: float | None = None) -> bool:
        return False


LOST = Lost()


class Stores:
    """Of one request, as LMCache asks a future of one: done when all are, well if all went well."""

    def __init__(self) -> None:
        self.waited_for: list[Any] = []
        self._went_well = True

    def query(self) -> bool:
        self.waited_for = [future for future in self.waited_for if not self._is_done(future)]
        return not self.waited_for

    def result(self, timeout: float | None = None) -> bool:
        """Once all are done."""
        return self._went_well

    def lose(self, futures: Collection[Any]) -> None:
        """These will not come."""
        left = [future for future in self.waited_for if future not in futures]
        self._went_well &= len(left) == len(self.waited_for)
        self.waited_for = left

    def _is_done(self, future: Any) -> bool:
        if failed(future):
            self._went_well = False
            return True
        if future.query():
            self._went_well &= bool(future.result(timeout=0))
            return True
        return False


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
        self._clock = self._looked_at = 0.0
        self._now = time.monotonic()
        self._collects = False
        super().__init__(server_url, *args, **kwargs)

    @property
    def is_healthy(self) -> bool:
        """Whether the server answers. While replies are collected it does, or LMCache would drop those to come."""
        return self._collects or bool(super().is_healthy)

    def submit_store_request(self, request_id: str, *args: Any, **kwargs: Any) -> None:
        stores = self.store_futures.pop(request_id, None) or Stores()
        super().submit_store_request(request_id, *args, **kwargs)
        if (future := self.store_futures.get(request_id)) is not None:
            stores.waited_for.append(future)
            self.finished_stores.discard(request_id)  # an earlier one was
        if stores.waited_for:
            self.store_futures[request_id] = stores

    def handle_preemptions(self, need_flush_before_forward: bool) -> None:
        """Waits until nothing is stored any more of a request whose blocks were taken from it.

        LMCache waits for each store for ``mq_timeout``, in which the engine seems to hang, and not at all for a server
        that missed a heartbeat. Where paths are stored when they are about to be lost, their blocks are held meanwhile.
        """
        if not need_flush_before_forward or self.lazy_offload:
            return
        began, used = time.monotonic(), time.thread_time()
        while not all(stores.query() for stores in self.store_futures.values()):
            self._give_up()
            if time.thread_time() - used >= BUSY * (time.monotonic() - began):
                time.sleep(POLL_S)

    def get_finished(self, finished_req_ids_from_engine: set[str]) -> tuple[set[str] | None, set[str] | None]:
        with self._collecting():
            finished: tuple[set[str] | None, set[str] | None] = super().get_finished(finished_req_ids_from_engine)
        return finished

    def get_finished_with_lazy_offload(self) -> tuple[set[str] | None, set[str] | None]:
        with self._collecting():
            finished: tuple[set[str] | None, set[str] | None] = super().get_finished_with_lazy_offload()
        return finished

    @contextmanager
    def _collecting(self) -> Iterator[None]:
        self._give_up()
        self._collects = True
        try:
            yield
        finally:
            self._collects = False

    def _send_register_kv_caches_request(self, kv_caches: Any) -> None:
        super()._send_register_kv_caches_request(kv_caches)
        self._server = listening_at(self._url)

    def _give_up(self) -> None:
        """What failed, what a server owes that is gone, and what has taken too long."""
        last, self._now = self._now, time.monotonic()
        self._clock += min(self._now - last, LOOK_EVERY_S)
        in_flight = [future for stores in self.store_futures.values() for future in stores.waited_for]
        in_flight += [future for future, _ in self.retrieve_futures.values()]
        self._asked = {future: self._asked.get(future) or Asked(self._clock, self._server) for future in in_flight}
        if not in_flight:
            return
        if self._clock - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = self._clock
            self._gone = {each.server for each in self._asked.values() if each.server and not is_there(each.server)}
        lost = {future for future in in_flight if self._is_lost(future)}
        if not lost:
            return
        for stores in self.store_futures.values():
            stores.lose(lost)
        for request_id, (future, block_ids) in self.retrieve_futures.items():
            if future in lost:
                self.retrieve_futures[request_id] = (LOST, block_ids)

    def _is_lost(self, future: Any) -> bool:
        asked = self._asked[future]
        late = asked.server in self._gone or self._clock - asked.at >= HELD_S
        return failed(future) or (late and not future.query())


def failed(future: Any) -> bool:
    """Whether the server said so; asked what it has, such a future raises, which would end the engine."""
    try:
        future.query()
    except Exception:
        return True
    return False


def listening_at(url: str) -> psutil.Process | None:
    """The process of this machine that listens at a loopback address; None for another one's or if none is seen."""
    where = urlsplit(url)
    host = "127.0.0.1" if where.hostname == "localhost" else where.hostname or ""
    try:
        if not ipaddress.ip_address(host).is_loopback:
            return None
    except ValueError:
        return None
    at = {(ip, where.port) for ip in (host, "0.0.0.0", "::")}
    with suppress(psutil.Error, OSError, RuntimeError):
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and tuple(each.laddr) in at and each.pid:
                return psutil.Process(each.pid)
    return None


def is_there(process: psutil.Process) -> bool:
    """Whether it has not ended."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
