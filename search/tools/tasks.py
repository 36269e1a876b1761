"""Ending what runs beside."""

import asyncio
from typing import Any


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancels a task and waits until it has ended, however it ends. Cancelled meanwhile, it goes on
    ending by itself."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
