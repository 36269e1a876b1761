"""Limit of a job's requests in flight: raised until the service refuses, as TCP does with its window."""

import asyncio
import time
from collections.abc import Callable

FIRST = 16
"""Initial limit. It doubles with every round of successes until the first refusal."""
MAX_PAUSE_S = 60.0
"""Upper limit of the wait that a refusal asks for, seconds."""
DEFAULT_PAUSE_S = 1.0


class Window:
    """Limits the requests in flight to what the service accepts. For use in one event loop.

    After a refusal the limit is the number of requests still in flight, which were accepted. It then grows by one with
    every round of successes (as TCP grows its window, Jacobson 1988). No request starts before the refusal's wait is
    over.
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
        """Changes the maximum of the limit. Requests in flight continue."""
        self._most = most
        self._limit = min(self._limit, float(most))

    async def enter(self) -> None:
        """Waits until one more request may start, and counts it as in flight."""
        while self.in_flight >= self.limit or self._pause_s > 0:
            self._changed.clear()
            try:
                # In a pause the clock has to wake us, else a request that leaves.
                async with asyncio.timeout(self._pause_s or None):
                    await self._changed.wait()
            except TimeoutError:
                continue
        self.in_flight += 1

    def leave(self) -> None:
        """Ends a request in flight."""
        self.in_flight -= 1
        self._changed.set()

    def granted(self) -> None:
        """Records a success, which raises the limit."""
        self._limit = min(float(self._most), self._limit + (1 if self._grows_fast else 1 / self._limit))
        self._changed.set()

    def refused(self, retry_after_s: float | None) -> None:
        """Records a refusal, which lowers the limit and starts a pause. Call it before `leave`."""
        self.refusals += 1
        self._grows_fast = False
        self._limit = float(max(1, min(self.limit, self.in_flight - 1)))
        pause_s = DEFAULT_PAUSE_S if retry_after_s is None else min(retry_after_s, MAX_PAUSE_S)
        self._resumes_at = max(self._resumes_at, self._now() + pause_s)

    @property
    def _pause_s(self) -> float:
        return max(0.0, self._resumes_at - self._now())
