"""Transfers in flight: copies from and to an engine's blocks, which the cache server makes itself.

LMCache treats all of them as ended when the server misses a heartbeat, and the engine reallocates the blocks. A server
that was only slow still makes the copies later: it stores another path's keys and values under the wrong hashes, for
every engine to find, or overwrites the blocks of another path. So a transfer keeps its blocks until it is done or its
server is gone; a server that does not answer is killed after half a minute.

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
"""Longest wait for a transfer, in seconds of the engine's running time, before it counts as failed. Long before that,
`CacheKeeper` kills a server of its own that does not answer. The process of a server on another host cannot be seen,
and a server that cannot make a transfer may never report it."""
LOOK_EVERY_S = 1.0
"""Seconds between two checks of a server's process. A longer pause counts as this: the engine stood still too."""


class TransferStart(NamedTuple):
    """Start and server of one transfer."""

    at: float
    """Start time on the adapter's clock, seconds."""
    server: psutil.Process | None
    """Process of the server; None if it cannot be seen."""


class Reply:
    """The server's reply to one transfer, with the methods of LMCache's future. A transfer that failed, or whose server
    is gone, is done and unsuccessful."""

    def __init__(self, future: Any) -> None:
        self._future = future
        self._lost = False

    def query(self) -> bool:
        if self._lost:
            return True
        try:
            return bool(self._future.query())
        except Exception:  # the server's; raised here it would end the engine
            self._lost = True
            return True

    def result(self, timeout: float | None = None) -> bool:
        """Whether the transfer succeeded; waits until it is done."""
        return not self._lost and bool(self._future.result(timeout=timeout))

    def lose(self) -> None:
        """Marks the transfer as failed: no reply will come."""
        self._lost = True


class PatientWorkerAdapter(LMCacheMPWorkerAdapter):  # type: ignore[misc]
    """LMCache's adapter in a worker, but it waits for the transfers of a server that does not answer.

    Such a server gets no new transfers, as in LMCache. The open transfers of a server that is gone have failed: a path
    that was to be loaded is computed, and a path that was to be stored is not stored.
    """

    def __init__(self, server_url: str, *args: Any, **kwargs: Any) -> None:
        self._url = server_url
        self._server: psutil.Process | None = None
        self._asked: dict[Reply, TransferStart] = {}
        self._gone: set[psutil.Process] = set()
        self._clock = self._looked_at = 0.0
        self._now = time.monotonic()
        self._collects = False
        super().__init__(server_url, *args, **kwargs)

    @property
    def is_healthy(self) -> bool:
        """Whether the server answers. Always true while replies are collected, or LMCache would drop the open ones."""
        return self._collects or bool(super().is_healthy)

    def submit_store_request(self, request_id: str, *args: Any, **kwargs: Any) -> None:
        super().submit_store_request(request_id, *args, **kwargs)
        if (future := self.store_futures.get(request_id)) is not None:
            self.store_futures[request_id] = Reply(future)

    def submit_retrieve_request(self, request_id: str, *args: Any, **kwargs: Any) -> None:
        super().submit_retrieve_request(request_id, *args, **kwargs)
        if (retrieval := self.retrieve_futures.get(request_id)) is not None:
            future, block_ids = retrieval
            self.retrieve_futures[request_id] = (Reply(future), block_ids)

    def handle_preemptions(self, need_flush_before_forward: bool) -> None:
        """Waits for nothing: a store keeps the blocks of a preempted request."""

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
        """Fails the transfers whose server is gone, and those that took longer than ``HELD_S``."""
        last, self._now = self._now, time.monotonic()
        self._clock += min(self._now - last, LOOK_EVERY_S)
        in_flight = [*self.store_futures.values(), *(reply for reply, _ in self.retrieve_futures.values())]
        self._asked = {reply: self._asked.get(reply) or TransferStart(self._clock, self._server) for reply in in_flight}
        if not in_flight:
            return
        if self._clock - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = self._clock
            self._gone = {each.server for each in self._asked.values() if each.server and not is_there(each.server)}
        for reply, asked in self._asked.items():
            failed = asked.server in self._gone or self._clock - asked.at >= HELD_S
            if failed and not reply.query():
                reply.lose()


def listening_at(url: str) -> psutil.Process | None:
    """The process that listens at a loopback address; None for other addresses, or if no process can be seen."""
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
    """Whether the process is still running."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
