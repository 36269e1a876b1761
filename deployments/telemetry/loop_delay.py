"""How late the event loop is: what every request of a process waits before anything is done for it."""

import asyncio

SAMPLE_S = 0.1


class LoopDelay:
    """Measures from `start` on, with one timer."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """By how much the last sample was late."""
        self._longest = 0.0
        self._due = 0.0

    def start(self) -> None:
        self._due = asyncio.get_running_loop().time() + SAMPLE_S
        asyncio.get_running_loop().call_at(self._due, self._sample)

    def take_longest(self) -> float:
        """The longest delay, seconds, since this was last asked; also one that lasts."""
        longest, self._longest = max(self._longest, self.seconds), 0.0
        return longest

    def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        self.seconds = max(0.0, loop.time() - self._due)
        self._longest = max(self._longest, self.seconds)
        self._due = loop.time() + SAMPLE_S
        loop.call_at(self._due, self._sample)
