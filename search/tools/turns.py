"""Long work on the event loop, cut into turns between which others run."""

import asyncio
import time

TURN_S = 0.001
"""About how long one turn lasts, seconds."""


class Turns:
    """Of one task, for one piece of work: ``pass_on`` after each part of it, which itself should take far less than a
    turn."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    async def pass_on(self) -> None:
        """Lets others run, if this turn has lasted long enough."""
        if time.monotonic() - self._began >= TURN_S:
            await asyncio.sleep(0)
            self._began = time.monotonic()
