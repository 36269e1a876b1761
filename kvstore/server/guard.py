"""The process between a cache server and its owner: it ensures that nothing outlives the owner.

``python -m kvstore.server.guard`` reads a ``GuardSpec`` from stdin, starts the server and answers with its pid. Any
further byte on stdin is the owner's order to stop the server. Stdin ends however the owner dies. The guard then stops
the server too, waits for the engines, which are dying as well, and removes their shared memory.

Why a separate, detached process: Ray kills a worker's direct children together with it, with no chance to clean up. A
parent-death signal (``prctl(2)``) would fire when the *thread* that forked ends, which for an actor's method is soon.
The guard has one thread, so its server can have that signal: killing the guard kills the server. Standard library only,
so that it starts in milliseconds.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from kvstore.server.segments import creator, mapped_by, remove_orphans

PR_SET_PDEATHSIG = 1
_LINGER_S = 20.0
"""Seconds in which engines may end after their server. Later their shared memory is left to the next sweep."""


@dataclass(frozen=True)
class GuardSpec:
    """Command, environment and log of a server. Sent as one line of JSON."""

    command: list[str]
    environment: dict[str, str]
    log_path: str
    stop_timeout_s: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "GuardSpec":
        return cls(**json.loads(line))


class _Stop(Exception):
    """SIGTERM arrived."""


def main(spec: GuardSpec) -> NoReturn:
    """Detach, start the server, and wait for its end, for the owner's end or for an order to stop."""
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    server = _start(spec)
    signal.signal(signal.SIGTERM, _on_term)
    try:
        sys.stdout.write(f"{server.pid}\n")
        sys.stdout.flush()
        owner_lives = _await_end(server)
    except (_Stop, BrokenPipeError):
        owner_lives = False
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    shared = set() if owner_lives else mapped_by(server.pid)
    _stop(server, spec.stop_timeout_s)
    if not owner_lives:
        _remove_when_free(shared)
        Path(spec.log_path).unlink(missing_ok=True)
    sys.exit(0)


def _on_term(_number: int, _frame: object) -> None:
    raise _Stop


def _start(spec: GuardSpec) -> subprocess.Popen[bytes]:
    guard = os.getpid()
    libc = ctypes.CDLL(None)

    def die_with_guard() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)

    with open(spec.log_path, "ab") as log:
        return subprocess.Popen(
            spec.command,
            env=spec.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_guard,  # noqa: PLW1509 - this process has one thread
        )


def _await_end(server: subprocess.Popen[bytes]) -> bool:
    """Wait for the server's end or for stdin; False at the end of stdin: the owner is gone."""
    pidfd = os.pidfd_open(server.pid)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(sys.stdin.fileno(), select.POLLIN)
    try:
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if sys.stdin.fileno() in ready:
                return bool(os.read(sys.stdin.fileno(), 1))
            if pidfd in ready:
                return True
    finally:
        os.close(pidfd)


def _stop(server: subprocess.Popen[bytes], grace_s: float) -> None:
    if server.returncode is None:
        server.terminate()
        _await_exit(server.pid, grace_s)
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # not reaped yet, so the group id is still its own
    server.wait()


def _remove_when_free(shared: set[str]) -> None:
    """Unlink the segments the server had mapped, each once its engine has ended."""
    deadline = time.monotonic() + _LINGER_S
    for pid in {creator(name) for name in shared}:
        if pid is not None:
            _await_exit(pid, max(0.0, deadline - time.monotonic()))
    remove_orphans(shared)


def _await_exit(pid: int, timeout_s: float) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([pidfd], [], [], timeout_s)
    finally:
        os.close(pidfd)


if __name__ == "__main__":
    main(GuardSpec.from_json(sys.stdin.readline()))
