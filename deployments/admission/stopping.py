"""Graceful shutdown: requests in progress get a grace period, new requests get 503."""

import asyncio

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
        self.closed = False
        self._inside: set[asyncio.Timeout] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def enter(self, limit: asyncio.Timeout) -> None:
        """Registers a request. ``limit``: its timeout, not set yet; `close` sets it."""
        self._inside.add(limit)
        self._empty.clear()

    def leave(self, limit: asyncio.Timeout) -> None:
        self._inside.discard(limit)
        if not self._inside:
            self._empty.set()

    async def close(self, grace_s: float) -> None:
        """Refuses new requests, gives those in progress ``grace_s`` seconds, and returns when all have ended."""
        self.closed = True
        deadline = asyncio.get_running_loop().time() + grace_s
        for limit in self._inside:
            limit.reschedule(deadline)
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

        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._open_requests.enter(limit)
                await self._app(scope, receive, sending)
        except TimeoutError:
            if not limit.expired():
                raise
            if not reply_begun:
                await Stopping().response()(scope, receive, send)
        finally:
            self._open_requests.leave(limit)
