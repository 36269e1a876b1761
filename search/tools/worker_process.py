"""A process beside this one that answers a line with a line, within a deadline."""

import os
import select
import subprocess
import sys
import time
from pathlib import Path


class WorkerLost(RuntimeError):
    """The worker died, gave no reply in time, or cannot be started."""


class WorkerProcess:
    """Runs a script of ours, started at first use and replaced when it hangs or dies.

    The script says one line when it is ready, and then one for each line of its stdin, at whose end it ends: so it
    never outlives the one who started it, however that one ends. Blocking, and for one caller at a time.
    """

    def __init__(self, name: str, script: Path, startup_s: float, greeting: bytes = b"") -> None:
        """
        Args:
            name: what errors call it.
            startup_s: how long it may take until it is ready.
            greeting: a line that it is told first, if it wants one.
        """
        self._name = name
        self._script = script
        self._startup_s = startup_s
        self._greeting = greeting
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> bytes:
        """Starts the process if there is none, and waits until it is ready.

        Returns what it says then; nothing if it was ready before.

        Raises:
            WorkerLost: it did not get ready in time.
        """
        if self._process is not None and self._process.poll() is None:
            return b""
        self.close()
        # -P: the script's own directory, full of short module names, must not be on the import path.
        command = [sys.executable, "-P", str(self._script)]
        self._process = subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        return self._exchanged(self._greeting, self._startup_s)

    def exchange(self, line: bytes, timeout_s: float) -> bytes:
        """The reply to ``line``, which ends with a newline, as the reply does.

        Raises:
            WorkerLost: the process is replaced at the next use.
        """
        if self._process is None:
            raise WorkerLost(f"the {self._name} is not started")
        return self._exchanged(line, timeout_s)

    def kill(self) -> None:
        """Ends the process from any thread: who waits for its reply learns that it is lost."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Ends the process, working or not. The next use starts another."""
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
        except OSError as error:  # what a timeout is, too
            self.close()
            raise WorkerLost(f"the {self._name} died or gave no reply in {timeout_s:g} s") from error

    def _write(self, descriptor: int, line: bytes, end: float) -> None:
        """Not more at a time than the pipe takes: a process that is stopped reads nothing."""
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
    # poll, not select: a server may well have more than 1024 descriptors open.
    poller = select.poll()
    poller.register(descriptor, event)
    if not poller.poll(max(0.0, end - time.monotonic()) * 1000):
        raise TimeoutError
