"""What a cache server owes an engine: copies from the engine's blocks and into them, which it makes itself.

LMCache takes all of it for ended when the server misses a heartbeat, and the engine gives the blocks to other paths. A
server that was only slow copies all the same when it comes to it: another path's keys and values under the name of the
one that was to be stored, for every engine to find, or one path's over another's. So what was asked is waited for until
it is done, or until nobody is left to do it.

Imports LMCache.
"""

import ipaddress
import time
from contextlib import suppress
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


class Asked(NamedTuple):
    """Of one transfer."""

    at: float
    """When, on the adapter's clock."""
    server: psutil.Process | None
    """Of which; None where its process cannot be seen."""


class Reply:
    """The server's reply to one transfer, as LMCache asks a future of it. One that the server could not make, or that
    nobody is left to make, is done and did not go well."""

    def __init__(self, future: Any) -> None:
        self._future = future
        self._lost = False

    def query(self) -> bool:
        if self._lost:
            return True
        try:
            return bool(self._future.query())
        except Exception:  # the server's; raised further it would end the engine
            self._lost = True
            return True

    def result(self, timeout: float | None = None) -> bool:
        """Once it is done."""
        return not self._lost and bool(self._future.result(timeout=timeout))

    def lose(self) -> None:
        """It will not come."""
        self._lost = True


class PatientWorkerAdapter(LMCacheMPWorkerAdapter):  # type: ignore[misc]
    """LMCache's side in a worker, which waits for a server that does not answer.

    Nothing more is asked of such a one, as before. What a server that is gone leaves undone has failed: a path that was
    to be loaded is computed, one that was to be stored is not.
    """

    def __init__(self, server_url: str, *args: Any, **kwargs: Any) -> None:
        self._url = server_url
        self._server: psutil.Process | None = None
        self._asked: dict[Reply, Asked] = {}
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
        super().submit_store_request(request_id, *args, **kwargs)
        if (future := self.store_futures.get(request_id)) is not None:
            self.store_futures[request_id] = Reply(future)

    def submit_retrieve_request(self, request_id: str, *args: Any, **kwargs: Any) -> None:
        super().submit_retrieve_request(request_id, *args, **kwargs)
        if (told := self.retrieve_futures.get(request_id)) is not None:
            future, block_ids = told
            self.retrieve_futures[request_id] = (Reply(future), block_ids)

    def handle_preemptions(self, need_flush_before_forward: bool) -> None:
        """Nothing is waited for: what is being stored of a request that is put back keeps its blocks."""

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
        """What a server owes that is gone, and what has taken too long."""
        last, self._now = self._now, time.monotonic()
        self._clock += min(self._now - last, LOOK_EVERY_S)
        in_flight = [*self.store_futures.values(), *(reply for reply, _ in self.retrieve_futures.values())]
        self._asked = {reply: self._asked.get(reply) or Asked(self._clock, self._server) for reply in in_flight}
        if not in_flight:
            return
        if self._clock - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = self._clock
            self._gone = {each.server for each in self._asked.values() if each.server and not is_there(each.server)}
        for reply, asked in self._asked.items():
            late = asked.server in self._gone or self._clock - asked.at >= HELD_S
            if late and not reply.query():
                reply.lose()


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
