"""The process between the owner of a cache server and the server: it sees to it that nothing outlives the owner.

``python -m kvstore.server.guard`` reads a ``GuardSpec`` from stdin, starts the server and answers with its pid. Any
further byte on stdin is the owner's order to stop the server. When stdin ends, which happens however the owner dies, it
stops the server as well and waits for the engines, which are dying too, to remove the shared memory they leave.

Why a process of its own, and a detached one: Ray kills a worker's direct children together with it, with no chance to
clean up, and a parent-death signal (``prctl(2)``) would fire when the *thread* that forked ends, which for an actor's
method is soon. The guard has one thread, so its server can carry that signal: killing the guard kills the server.
Standard library only, so that it is there in milliseconds.
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
"""How long engines are given to end after their server, before their shared memory is left to the next sweep."""


@dataclass(frozen=True)
class GuardSpec:
    """What to run, for whom. Travels as one line of JSON."""

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
    """Detach, start the server, wait for its end, the owner's or an order to stop."""
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
    """Wait until the server has ended or stdin says something; False when what it says is its end, the owner's."""
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
            os.killpg(server.pid, signal.SIGKILL)  # not reaped yet, so this is still its group
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
