"""Ends this process's descendants, so that none outlives its purpose."""

from collections.abc import Iterator
from contextlib import contextmanager

import psutil  # type: ignore[import-untyped, unused-ignore]

GRACE_S = 10.0
FORCE_S = 5.0


class Descendants:
    """Remembers descendants of this process, so that they are still known after their parent has died."""

    def __init__(self) -> None:
        self._before = set(psutil.Process().children(recursive=True))
        self._seen: set[psutil.Process] = set()

    def look(self) -> None:
        """Remembers the current descendants that did not exist at the beginning."""
        self._seen |= set(psutil.Process().children(recursive=True)) - self._before

    def end(self) -> int:
        """Waits for the remembered processes, then ends the rest by force. Returns how many needed force."""
        self.look()
        _, alive = psutil.wait_procs(self._seen, timeout=GRACE_S)
        for signal_one in (psutil.Process.terminate, psutil.Process.kill):
            for process in alive:
                try:
                    signal_one(process)
                except psutil.NoSuchProcess:
                    continue
            _, remaining = psutil.wait_procs(alive, timeout=FORCE_S if alive else 0)
            if signal_one is psutil.Process.terminate:
                forced, alive = len(alive), remaining
        return forced


@contextmanager
def no_process_left() -> Iterator[Descendants]:
    """Ends all processes that the block starts: they may exit within ``GRACE_S``, then force is used."""
    descendants = Descendants()
    try:
        yield descendants
    finally:
        descendants.end()
