"""Event loop delay: the time from when a callback is due until it runs."""

import asyncio
import time
from collections import deque

EVERY_S = 0.05
"""Seconds between two samples."""
SAMPLES = 20
"""Window of the longest delay: one second."""


class LoopDelay:
    """The longest delay of the running event loop within the last second.

    Measured by a task that sleeps and compares the time with the planned one. The longest, not the mean: a new request
    must expect that delay.
    """

    def __init__(self) -> None:
        self._samples: deque[float] = deque([0.0], maxlen=SAMPLES)
        self._longest = 0.0
        self._due = float("inf")
        """Time at which the sleeper should wake up, monotonic seconds."""
        self._sleeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Measures the running loop from now on. Does nothing if already started."""
        if self._sleeper is None:
            self._due = time.monotonic() + EVERY_S
            self._sleeper = asyncio.create_task(self._sample())

    def stop(self) -> None:
        if self._sleeper is not None:
            self._sleeper.cancel()
            self._sleeper = None
            self._due = float("inf")

    @property
    def seconds(self) -> float:
        """The longest delay. It includes the current delay of the sleeper, because the caller may run before it."""
        return max(*self._samples, time.monotonic() - self._due, 0.0)

    def take_longest(self) -> float:
        """The longest delay, seconds, since the last call of this method, including one that still lasts."""
        longest, self._longest = max(self._longest, self.seconds), 0.0
        return longest

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(self._due - time.monotonic())
            now = time.monotonic()
            self._samples.append(max(0.0, now - self._due))
            self._longest = max(self._longest, self._samples[-1])
            self._due = now + EVERY_S
