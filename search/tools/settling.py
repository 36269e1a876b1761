"""Waiting for something to become idle that tells nobody when it does."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

EVERY_S = 0.05
"""Seconds between two looks."""


async def settled(is_busy: Callable[[], object], within_s: float) -> None:
    """Returns when ``is_busy`` is falsy, or after ``within_s`` seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while is_busy():  # noqa: ASYNC110  # nothing tells
                await asyncio.sleep(EVERY_S)
