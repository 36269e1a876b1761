"""Splits long work on the event loop into turns, so that other tasks run in between."""

import asyncio
import time

TURN_S = 0.001
"""Minimum length of a turn, seconds."""


class Turns:
    """Time slices for one piece of work in one task. Call ``pass_on`` after each part of the work; a part should take
    far less than a turn."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    async def pass_on(self) -> None:
        """Yields to other tasks if this turn has lasted ``TURN_S``."""
        if time.monotonic() - self._began >= TURN_S:
            await asyncio.sleep(0)
            self._began = time.monotonic()
