"""Cancels work whose client has disconnected."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from search.tools.tasks import cancel_and_wait

T = TypeVar("T")


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Awaits ``work``, cancelling it when the client disconnects or this task is cancelled.

    Serve cancels the request itself when its client disconnects; other ASGI servers only send
    ``http.disconnect``. The request's body must already have been read.

    Raises:
        ClientDisconnect: the client has disconnected; ``work`` was cancelled and has ended.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        leaving.cancel()
        await cancel_and_wait(working)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
