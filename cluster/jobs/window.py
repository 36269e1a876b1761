"""How many requests are in flight: as many as the service grants, found by asking for one more."""

import asyncio
import time
from collections.abc import Callable

FIRST = 16
"""In flight at the beginning; doubles with every round that none is refused, until the first one is."""
MAX_PAUSE_S = 60.0
"""Longest wait that a refusal is believed to want."""
DEFAULT_PAUSE_S = 1.0


class Window:
    """Lets requests in, as many at once as went well. Single-threaded: one event loop.

    What is left in flight when one is refused was granted: that many from then on, and one more each time that all of
    them went well (as TCP grows its window, Jacobson 1988). Nothing begins before the refusal's wait is over.
    """

    def __init__(self, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._now = now
        self._limit = float(min(FIRST, most))
        self._grows_fast = True
        self._resumes_at = 0.0
        self._changed = asyncio.Event()
        self.in_flight = 0
        self.refusals = 0

    @property
    def limit(self) -> int:
        return int(self._limit)

    def resize(self, most: int) -> None:
        """From now on at most so many; what is in flight stays there."""
        self._most = most
        self._limit = min(self._limit, float(most))

    async def enter(self) -> None:
        """Returns when one more may begin, which is then in flight."""
        while self.in_flight >= self.limit or self._pause_s > 0:
            self._changed.clear()
            try:
                # While nothing may begin, the clock has to wake us; else whoever leaves.
                async with asyncio.timeout(self._pause_s or None):
                    await self._changed.wait()
            except TimeoutError:
                continue
        self.in_flight += 1

    def leave(self) -> None:
        """One is not in flight any more."""
        self.in_flight -= 1
        self._changed.set()

    def granted(self) -> None:
        """One went well."""
        self._limit = min(float(self._most), self._limit + (1 if self._grows_fast else 1 / self._limit))
        self._changed.set()

    def refused(self, retry_after_s: float | None) -> None:
        """One was refused, to be asked again after so long; to be told before it leaves."""
        self.refusals += 1
        self._grows_fast = False
        self._limit = float(max(1, min(self.limit, self.in_flight - 1)))
        pause_s = DEFAULT_PAUSE_S if retry_after_s is None else min(retry_after_s, MAX_PAUSE_S)
        self._resumes_at = max(self._resumes_at, self._now() + pause_s)

    @property
    def _pause_s(self) -> float:
        return max(0.0, self._resumes_at - self._now())
