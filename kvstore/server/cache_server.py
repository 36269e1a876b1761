"""The node's LMCache server as a child process, and the keeper that restarts it.

Owns the process, its ports and its log. Knows neither engines (``connector``) nor Ray (``deployments.node_cache``).
"""

import http.client
import json
import logging
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from kvstore.server.guard import GuardSpec
from kvstore.server.segments import remove_orphans
from kvstore.settings import CacheSettings

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_LOG_TAIL_BYTES = 4000
_LOG_LIMIT_BYTES = 8 << 20
_POLL_S = 0.1
_MISSED_MARGIN_S = 0.5
_PROBE_TIMEOUT_S = 3.0
PROBE_INTERVAL_S = 5.0
"""Seconds between two health checks of the server by its keeper. The end of its process is noticed at once."""
PROBE_FAILURES = 3
"""The number of failed health checks in a row after which the keeper kills the server and starts it again."""
_REFUSED = re.compile(r"^\S+: error: (.+)\Z", re.MULTILINE)
"""Last line of a server that rejects its command line; pages of usage precede it."""
_RESTART_PAUSES_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
_ARGUMENTS: dict[str, Any] = {
    "eviction_policy": "LRU",  # LMCache has no default
    "l1_init_size_gb": 1,  # its minimum; the rest of a larger cache is allocated on demand
    "kv_event_log_size": 0,  # not used; takes 1.7 kB for each of the last 32,768 stored chunks
}
"""Banyan's defaults for ``lmcache server``; ``lmcache_args`` overrides them."""
_ENVIRONMENT_KEPT = (
    *("PATH", "HOME", "USER", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"),
    *("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "PYTHONPYCACHEPREFIX"),
)
_ENVIRONMENT_SET = {
    "LMCACHE_TRACK_USAGE": "false",  # it would report to LMCache's statistics server
    "LMCACHE_DISABLE_BANNER": "1",
    "LMCACHE_LOG_LEVEL": "WARNING",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


class CacheServerError(RuntimeError):
    """The cache server did not start or did not answer. The message ends with the tail of its log, if any; if it
    rejected its command line, with the reason."""


class CacheAddress(NamedTuple):
    """Where a server listens."""

    host: str
    port: int
    """For engines."""
    http_port: int
    """For health, status and metrics."""

    @property
    def http(self) -> str:
        return f"http://{self.host}:{self.http_port}"


class CacheServer:
    """One ``lmcache server`` on loopback. It ends with this process, however this process ends.

    Without an ``address`` it uses the ports of the settings, or free ones. Once started it keeps its ports over every
    ``restart``, because engines cannot change the address. ``relied_on``: engines may know the address from a
    predecessor. The constructor does not start the server. Thread-safe.
    """

    def __init__(self, settings: CacheSettings, address: CacheAddress | None = None, *, relied_on: bool = True) -> None:
        self._settings = settings
        self._address = address
        self._relied_on = relied_on and address is not None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._guard: subprocess.Popen[str] | None = None
        self._pidfd = -1
        self._gone_since = time.monotonic()
        self.pid: int | None = None
        """Process id of the server; None if there is none."""
        handle, path = tempfile.mkstemp(prefix="banyan-lmcache-", suffix=".log")
        os.close(handle)
        self._log = Path(path)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def address(self) -> CacheAddress:
        """Raises ``CacheServerError`` before the first start, unless the address was given."""
        if self._address is None:
            raise CacheServerError("the cache server has no address before it is started")
        return self._address

    def start(self) -> CacheAddress:
        """Start the server and wait until it answers ``/healthcheck``; do nothing if it already runs.

        Raises:
            CacheServerError: it ended early, or gave no answer within ``start_timeout_s``; nothing is left running.
        """
        with self._lock:
            if self.alive():
                return self.address
            self._closing.clear()
            self._await_missed()
            remove_orphans()
            deadline = time.monotonic() + self._settings.start_timeout_s
            while True:
                address = self._address or choose_address(self._settings)
                self._await_free_ports(address, deadline)
                self._launch(address)
                try:
                    self._await_healthy(address, deadline)
                except CacheServerError:
                    lost_port = self.pid is not None and not self.alive() and "in use" in self._tail()
                    self._end()
                    if lost_port and time.monotonic() < deadline and not self._closing.is_set():
                        continue  # another process took a chosen port before the server bound it
                    raise
                self._address, self._relied_on = address, True
                return address

    def alive(self) -> bool:
        """Whether the process runs; says nothing of its health."""
        return self._pidfd >= 0 and not _readable(self._pidfd, 0.0)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the process to end; True when it has (or none was started)."""
        pidfd = self._pidfd
        return pidfd < 0 or _readable(pidfd, timeout_s)

    def healthy(self) -> bool:
        """Whether ``/healthcheck`` reports a healthy server within three seconds."""
        if not self.alive():
            return False
        try:
            return bool(_request(self.address, "GET", "/healthcheck").get("status") == "healthy")
        except CacheServerError:
            return False

    def stop(self) -> None:
        """End the process, even while it is starting: SIGTERM, then SIGKILL after ``stop_timeout_s``."""
        self._closing.set()
        with self._lock:
            self._end()
            self._log.unlink(missing_ok=True)

    def restart(self) -> CacheAddress:
        """Stop, then start on the same ports. Raises ``CacheServerError`` as ``start`` does."""
        with self._lock:
            self._end()
        return self.start()

    def sweep(self) -> None:
        """Remove the shared memory of dead engines and truncate a long log. Cheap; to be called periodically."""
        for name in remove_orphans():
            logger.warning("removed %s from shared memory: its engine is gone", name)
        with suppress(FileNotFoundError):
            if self._log.stat().st_size > _LOG_LIMIT_BYTES:
                os.truncate(self._log, 0)

    def _launch(self, address: CacheAddress) -> None:
        spec = GuardSpec(
            command=_command(self._settings, address),
            environment=_environment(),
            log_path=str(self._log),
            stop_timeout_s=self._settings.stop_timeout_s,
        )
        self._log.write_bytes(b"")
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "kvstore.server.guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment() | {"PYTHONPATH": str(Path(__file__).parent.parent)},
            start_new_session=True,
        )
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._guard.stdin.write(spec.to_json() + "\n")
        self._guard.stdin.flush()
        line = self._guard.stdout.readline()
        self._guard.wait()  # reaps the process that forked; the guard itself is detached
        if not line:
            raise CacheServerError("the cache server's guard process did not start")
        self.pid = int(line)
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self._pidfd = -1

    def _await_missed(self) -> None:
        """Wait until every engine has noticed the loss of the previous server at this address.

        An engine registers again only after an unanswered heartbeat. A new server that is there before the next
        heartbeat would answer it, the engine would never register, and the server would refuse all of its stores.
        """
        if not self._relied_on:
            return
        missed = self._gone_since + 2 * self._settings.heartbeat_interval_s + _MISSED_MARGIN_S
        if self._closing.wait(max(0.0, missed - time.monotonic())):
            raise CacheServerError("the cache server was stopped while it started")

    def _await_free_ports(self, address: CacheAddress, deadline: float) -> None:
        # A predecessor on these ports may still be stopping, within the grace period of its guard.
        while taken := [port for port in (address.port, address.http_port) if not _port_free(port)]:
            if time.monotonic() > deadline:
                raise CacheServerError(f"port {taken[0]} on {LOOPBACK} is in use")
            if self._closing.wait(_POLL_S):
                raise CacheServerError("the cache server was stopped while it started")

    def _await_healthy(self, address: CacheAddress, deadline: float) -> None:
        while not self.wait(_POLL_S):
            if self._closing.is_set():
                raise CacheServerError("the cache server was stopped while it started")
            if time.monotonic() > deadline:
                raise CacheServerError(
                    f"the cache server did not answer within {self._settings.start_timeout_s:g} s{self._tail()}"
                )
            try:
                if _request(address, "GET", "/healthcheck").get("status") == "healthy":
                    return
            except CacheServerError:
                continue
        raise CacheServerError(f"the cache server ended while it started{self._tail()}")

    def _end(self) -> None:
        guard, self._guard = self._guard, None
        if guard is None:
            return
        assert guard.stdin is not None
        assert guard.stdout is not None
        with suppress(BrokenPipeError):  # the guard is gone, and the server with it
            guard.stdin.write("x")
            guard.stdin.flush()
        # The guard closes its end of the pipe once it has reaped the server.
        _readable(guard.stdout.fileno(), self._settings.stop_timeout_s + 10.0)
        with suppress(BrokenPipeError):
            guard.stdin.close()
        guard.stdout.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
        self._pidfd, self.pid = -1, None
        self._gone_since = time.monotonic()
        remove_orphans()

    def _tail(self) -> str:
        try:
            tail = self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        except OSError:
            return ""
        if refused := _REFUSED.search(tail):
            return f": {refused[1]}"
        return f"; its log ends:\n{tail}" if tail else ""


class CacheKeeper:
    """Keeps one server running: restarts it, on the same ports, when it dies or stops answering.

    Engines notice the return by themselves and register again; what was cached is lost.
    """

    def __init__(
        self,
        settings: CacheSettings,
        address: CacheAddress | None = None,
        *,
        relied_on: bool = True,
        probe_interval_s: float = PROBE_INTERVAL_S,
        probe_failures: int = PROBE_FAILURES,
    ) -> None:
        self._probe_interval_s, self._probe_failures = probe_interval_s, probe_failures
        self._server = CacheServer(settings, address, relied_on=relied_on)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.restarts = 0
        """Number of restarts."""

    @property
    def server(self) -> CacheServer:
        return self._server

    @property
    def started(self) -> bool:
        """Whether there is a server, or one that is being restarted."""
        return self._thread is not None

    def start(self) -> CacheAddress:
        """Start the server, then watch it from a thread. Raises ``CacheServerError`` as ``CacheServer.start``."""
        address = self._server.start()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="cache-keeper", daemon=True)
                self._thread.start()
        return address

    def stop(self) -> None:
        """Stop watching, then the server."""
        self._stopping.set()
        self._server.stop()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            died = self._server.wait(self._probe_interval_s)
            if self._stopping.is_set():
                return
            failures = 0 if self._server.healthy() else failures + 1
            if died or failures >= self._probe_failures:
                logger.warning("the cache server %s; restarting it", "died" if died else "does not answer")
                self._revive()
                failures = 0
            self._server.sweep()

    def _revive(self) -> None:
        attempt = 0
        while not self._stopping.wait(_RESTART_PAUSES_S[min(attempt, len(_RESTART_PAUSES_S) - 1)]):
            attempt += 1
            try:
                self._server.restart()
            except CacheServerError:
                if not self._stopping.is_set():
                    logger.exception("the cache server could not be restarted (attempt %d)", attempt)
                continue
            self.restarts += 1
            return


def existing_server(settings: CacheSettings) -> CacheAddress:
    """Waits up to ``start_timeout_s`` for the server at ``settings.host`` to answer, and returns its address.

    Raises:
        CacheServerError: it does not answer at both ports, or its chunk size differs from the settings.
    """
    address = CacheAddress(settings.host, settings.port, settings.http_port)
    answering = Retrying(
        retry=retry_if_exception_type(CacheServerError),
        stop=stop_after_delay(settings.start_timeout_s),
        wait=wait_fixed(_POLL_S),
        reraise=True,
    )
    for attempt in answering:
        with attempt:
            size = _request(address, "GET", "/status").get("chunk_size")
            _connect(address)
    if size != settings.chunk_size:
        raise CacheServerError(
            f"the cache server at {settings.host} has chunk size {size}, but cache.chunk_size is {settings.chunk_size}"
        )
    return address


def _command(settings: CacheSettings, address: CacheAddress) -> list[str]:
    # The module behind `lmcache server`: it starts two seconds sooner without the imports of LMCache's other commands.
    command = [sys.executable, "-m", "lmcache.v1.multiprocess.http_server"]
    further = {name.replace("-", "_"): value for name, value in settings.lmcache_args.items()}
    # Banyan's own arguments come last: the server accepts abbreviated names, and the last of two values wins.
    options = (
        _ARGUMENTS
        | further
        | {
            "host": address.host,
            "port": address.port,
            "http_host": address.host,
            "http_port": address.http_port,
            "l1_size_gb": settings.l1_size_gb,
            "chunk_size": settings.chunk_size,
            "supported_transfer_mode": "lmcache_driven",  # the other mode unpickles what a client sends
            "l2_adapter": settings.l2_adapters,
        }
    )
    for name, value in options.items():
        command += _argument(name.replace("_", "-"), value)
    return command


def _argument(name: str, value: Any) -> list[str]:
    """One argument as ``lmcache server`` takes it: see `CacheSettings.lmcache_args`."""
    match value:
        case bool():
            return [f"--{name}" if value else f"--no-{name}"]
        case list() | tuple() if all(isinstance(each, dict) for each in value):
            return [word for each in value for word in _argument(name, each)]
        case list() | tuple():
            return [f"--{name}", *map(_text, value)]
        case _:
            return [f"--{name}", _text(value)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _environment() -> dict[str, str]:
    """Only the variables that the server needs: it publishes its environment on ``/env``."""
    kept = {name: os.environ[name] for name in _ENVIRONMENT_KEPT if name in os.environ}
    return kept | _ENVIRONMENT_SET


def choose_address(settings: CacheSettings) -> CacheAddress:
    """A loopback address with the ports of the settings, or with ports that are free now."""
    # Both sockets stay open until both ports are known: otherwise the ports could be the same.
    with socket.socket() as first, socket.socket() as second:
        chosen = []
        for holder, wanted in ((first, settings.port), (second, settings.http_port)):
            if wanted:
                chosen.append(wanted)
                continue
            holder.bind((LOOPBACK, 0))
            chosen.append(holder.getsockname()[1])
    return CacheAddress(LOOPBACK, chosen[0], chosen[1])


def _connect(address: CacheAddress) -> None:
    """Raises CacheServerError if the engines' port is closed: an engine that cannot connect would end its replica."""
    try:
        socket.create_connection((address.host, address.port), _PROBE_TIMEOUT_S).close()
    except OSError as error:
        raise CacheServerError(f"no cache server for engines at {address.host}:{address.port}: {error}") from error


def _port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does; ignores TIME_WAIT
        try:
            probe.bind((LOOPBACK, port))
            return True
        except OSError:
            return False


def _readable(fd: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def request_text(address: CacheAddress, method: str, path: str) -> str:
    """The server's reply, as text. Raises ``CacheServerError`` if there is none within three seconds."""
    request = urllib.request.Request(address.http + path, method=method)
    # Never through a proxy from the environment: the server is on this node.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_PROBE_TIMEOUT_S) as reply:
            return str(reply.read(), "utf-8")
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise CacheServerError(f"{method} {path} at the cache server failed: {error}") from error


def _request(address: CacheAddress, method: str, path: str) -> dict[str, Any]:
    text = request_text(address, method, path)
    try:
        body = json.loads(text)
    except ValueError as error:
        raise CacheServerError(f"{method} {path} at the cache server returned invalid JSON: {error}") from error
    if not isinstance(body, dict):
        raise CacheServerError(f"{method} {path} at the cache server returned {type(body).__name__}, not an object")
    return body
