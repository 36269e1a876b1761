"""Cancellation of asyncio tasks."""

import asyncio
from typing import Any


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancels a task and waits until it has ended; its result or exception is ignored. If the caller is cancelled while
    it waits, the task still ends by itself."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
