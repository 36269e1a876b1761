"""The end of serving: what has begun is finished for a while, what comes then is refused, and both are told."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.admission.errors import Unavailable

CODE = "stopping"


class Stopping(Unavailable):
    """For a client that is no longer served; another replica, or the next server, is welcome to it."""

    def __init__(self) -> None:
        super().__init__("the server is stopping; try again shortly", code=CODE)
        self.args = ()

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": "1"}


class Door:
    """Who is inside, and whether others may come in. Single-threaded: one event loop."""

    def __init__(self) -> None:
        self.closed = False
        self._inside: set[asyncio.Timeout] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def enter(self, limit: asyncio.Timeout) -> None:
        """``limit`` is the time limit of a request, which has none yet."""
        self._inside.add(limit)
        self._empty.clear()

    def leave(self, limit: asyncio.Timeout) -> None:
        self._inside.discard(limit)
        if not self._inside:
            self._empty.set()

    async def close(self, grace_s: float) -> None:
        """Lets nobody in any more; returns when all have left, which they must within ``grace_s``."""
        self.closed = True
        at = asyncio.get_running_loop().time() + grace_s
        for limit in self._inside:
            limit.reschedule(at)
        await self._empty.wait()


class StoppingMiddleware:
    """ASGI middleware: every request goes through the door.

    A request whose time is over gets 503 where nothing was sent yet; a stream that has begun ends without its end.
    """

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._door.closed:
            await Stopping().response()(scope, receive, send)
            return
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._door.enter(limit)
                await self._app(scope, receive, sending)
        except TimeoutError:
            if not limit.expired():
                raise
            if not begun:
                await Stopping().response()(scope, receive, send)
        finally:
            self._door.leave(limit)
