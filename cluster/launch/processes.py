"""Processes that this one starts, directly or through others: none of them may outlive their purpose."""

from collections.abc import Iterator
from contextlib import contextmanager

import psutil  # type: ignore[import-untyped, unused-ignore]

GRACE_S = 10.0
FORCE_S = 5.0


class Descendants:
    """Remembers processes below this one, so that they are known still when their parent has died."""

    def __init__(self) -> None:
        self._before = set(psutil.Process().children(recursive=True))
        self._seen: set[psutil.Process] = set()

    def look(self) -> None:
        """Remembers those that there are now and were not at the beginning."""
        self._seen |= set(psutil.Process().children(recursive=True)) - self._before

    def end(self) -> int:
        """Waits for all that were seen, then ends them by force; how many needed force."""
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
    """What the body starts is gone when it is left: by itself within ``GRACE_S``, or by force."""
    descendants = Descendants()
    try:
        yield descendants
    finally:
        descendants.end()
