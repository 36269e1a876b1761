"""A child process that answers one line with one line, within a timeout."""

import os
import select
import subprocess
import sys
import time
from pathlib import Path


class WorkerLost(RuntimeError):
    """The worker died, gave no reply in time, or cannot be started."""

    status: int | None = None
    """Exit status of a worker that died by itself; the negative number of the signal that ended it."""


class WorkerProcess:
    """Runs a worker script, started at first use and replaced when it hangs or dies.

    The script writes one line when it is ready, then one line for each line of its stdin. It ends when its stdin
    closes, so it never outlives its parent. All methods block; `kill` aside, they are for one thread at a time.
    """

    def __init__(self, name: str, script: Path, startup_s: float, greeting: bytes = b"") -> None:
        """
        Args:
            name: its name in error messages.
            startup_s: timeout until it is ready.
            greeting: a first line to send to it, if it expects one.
        """
        self._name = name
        self._script = script
        self._startup_s = startup_s
        self._greeting = greeting
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> bytes:
        """Starts the process if none is running, and waits until it is ready.

        Returns its first line, or nothing if it was running already.

        Raises:
            WorkerLost: the process died or was not ready in time.
        """
        if self._process is not None and self._process.poll() is None:
            return b""
        self.close()
        # -P keeps the script's own directory off the import path: its short module names would shadow others.
        command = [sys.executable, "-P", str(self._script)]
        self._process = subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        return self._exchanged(self._greeting, self._startup_s)

    def exchange(self, line: bytes, timeout_s: float) -> bytes:
        """Sends ``line`` and returns the reply; both end with a newline.

        Raises:
            WorkerLost: the process died or did not reply within time. The next `start` replaces it.
        """
        if self._process is None:
            raise WorkerLost(f"the {self._name} is not started")
        return self._exchanged(line, timeout_s)

    def kill(self) -> None:
        """Kills the process, from any thread. A thread that waits for its reply gets `WorkerLost`."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Kills the process, busy or not. The next `start` starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _exchanged(self, line: bytes, timeout_s: float) -> bytes:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        end = time.monotonic() + timeout_s
        try:
            self._write(process.stdin.fileno(), line, end)
            return self._read(process.stdout.fileno(), end)
        except OSError as error:  # TimeoutError is an OSError too.
            self.close()
            lost = WorkerLost(f"the {self._name} died or did not reply within {timeout_s:g} s")
            lost.status = None if isinstance(error, TimeoutError) else process.returncode
            raise lost from error

    def _write(self, descriptor: int, line: bytes, end: float) -> None:
        """Writes without blocking: a stopped process does not read, and the pipe fills up."""
        os.set_blocking(descriptor, False)
        left = memoryview(line)
        while left:
            _wait(descriptor, select.POLLOUT, end)
            left = left[os.write(descriptor, left) :]

    def _read(self, descriptor: int, end: float) -> bytes:
        pieces: list[bytes] = []
        while not pieces or not pieces[-1].endswith(b"\n"):
            _wait(descriptor, select.POLLIN, end)
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                raise BrokenPipeError
            pieces.append(piece)
        return b"".join(pieces)


def _wait(descriptor: int, event: int, end: float) -> None:
    # poll, not select: a server may have more than 1024 descriptors open.
    poller = select.poll()
    poller.register(descriptor, event)
    if not poller.poll(max(0.0, end - time.monotonic()) * 1000):
        raise TimeoutError
