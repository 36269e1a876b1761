"""A set of local processes, without those that have ended. Standard library only."""

import os
import select
import threading


class Processes:
    """A set of process ids. Pidfds keep them apart from other processes with a recycled id. Thread-safe."""

    def __init__(self) -> None:
        self._pidfds: dict[int, int] = {}
        self._lock = threading.Lock()

    def add(self, pid: int) -> None:
        """Does nothing if the process has ended or is in the set already."""
        with self._lock:
            self._forget_ended()
            if pid not in self._pidfds:
                try:
                    self._pidfds[pid] = os.pidfd_open(pid)
                except ProcessLookupError:
                    return

    def remove(self, pid: int) -> None:
        """Does nothing if the process is not in the set."""
        with self._lock:
            self._close(pid)

    def living(self) -> set[int]:
        """Ids of the processes that have not ended."""
        with self._lock:
            self._forget_ended()
            return set(self._pidfds)

    def _forget_ended(self) -> None:
        poll = select.poll()
        numbers = {pidfd: pid for pid, pidfd in self._pidfds.items()}
        for pidfd in numbers:
            poll.register(pidfd, select.POLLIN)
        for pidfd, _ in poll.poll(0):
            self._close(numbers[pidfd])

    def _close(self, pid: int) -> None:
        pidfd = self._pidfds.pop(pid, None)
        if pidfd is not None:
            os.close(pidfd)
