"""Graceful shutdown: requests in progress get a grace period, new requests get 503."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.admission.errors import Unavailable

CODE = "stopping"


class Stopping(Unavailable):
    """The server is shutting down: another replica, or the restarted server, can answer a retry."""

    def __init__(self) -> None:
        super().__init__("the server is stopping; try again shortly", code=CODE)
        self.args = ()

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": "1"}


class OpenRequests:
    """The requests in progress, and whether new ones are admitted. For one event loop only."""

    def __init__(self) -> None:
        self._deadline: float | None = None
        """The event loop's time at which requests are ended; None while new ones are admitted."""
        self._inside: set[asyncio.Timeout] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def closed(self) -> bool:
        return self._deadline is not None

    @asynccontextmanager
    async def one(self) -> AsyncIterator[asyncio.Timeout]:
        """Registers a request, or work that outlives its request, for the duration of the block. Yields its timeout,
        which `close` sets.

        Raises:
            TimeoutError: the block was not done within the grace period.
        """
        async with asyncio.timeout_at(self._deadline) as limit:
            self._inside.add(limit)
            self._empty.clear()
            try:
                yield limit
            finally:
                self._inside.discard(limit)
                if not self._inside:
                    self._empty.set()

    async def close(self, grace_s: float) -> None:
        """Refuses new requests, gives those in progress ``grace_s`` seconds, and returns when all have ended."""
        self._deadline = asyncio.get_running_loop().time() + grace_s
        for limit in self._inside:
            limit.reschedule(self._deadline)
        await self._empty.wait()


class StoppingMiddleware:
    """ASGI middleware: registers every request, and refuses new ones once the controller stops.

    A request that runs into its timeout gets 503 if nothing was sent yet; a reply that has begun is cut off.
    """

    def __init__(self, app: ASGIApp, open_requests: OpenRequests) -> None:
        self._app = app
        self._open_requests = open_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._open_requests.closed:
            await Stopping().response()(scope, receive, send)
            return
        reply_begun = False

        async def sending(message: Message) -> None:
            nonlocal reply_begun
            reply_begun = True
            await send(message)

        try:
            async with self._open_requests.one() as limit:
                await self._app(scope, receive, sending)
        except TimeoutError:
            if not limit.expired():
                raise
            if not reply_begun:
                await Stopping().response()(scope, receive, send)
