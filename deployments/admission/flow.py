"""Flow control between Serve's proxy and a controller: the controller's end. See `deployments.admission.proxy_flow`."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.admission.proxy_flow import BODY_WINDOW_BYTES, FLOW, REPLY_WINDOW_BYTES, TAKEN, TELL_BODY_BYTES

PIECE_BYTES = 1 << 16
"""Longer parts of a reply are sent in pieces."""
MAX_WAITING = 64
"""Maximum number of replies that wait for their readers at one controller."""
MAX_WAITING_BYTES = 1 << 28
"""Maximum size of what these replies hold in memory."""
PATIENCE_S = 2.0
"""Past a maximum, the replies that have waited longest are ended once that is longer than this."""
READ_S = 300.0
"""Longest wait for a reader. The proxy ends slow connections earlier (`deployments.admission.protocol`)."""
ON_DISK = "application/octet-stream"
"""Media type of the replies that are read from disk piece by piece."""


class Flow:
    """ASGI middleware, the outermost: ``send`` waits for the reader of a long reply, and the proxy is told what was
    read of a long body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._waiting = WaitingReplies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope.pop(FLOW, False):
            await self._app(scope, receive, send)
            return
        flow = _ReplyFlow(receive, send, self._waiting)
        headers = Headers(scope=scope)
        if "transfer-encoding" in headers or int(headers.get("content-length", "0")) > BODY_WINDOW_BYTES:
            await send({"type": TAKEN, "bytes": 0})
        try:
            await self._app(scope, flow.received, flow.sending)
        except Exception:
            if not flow.gone:
                raise


class _Waiting(NamedTuple):
    since: float
    """The event loop's time, seconds."""
    size: int
    """Bytes held in memory."""


class WaitingReplies:
    """The replies of one controller that wait for their readers, the longest waiting first."""

    def __init__(self) -> None:
        self._all: dict[asyncio.Timeout, _Waiting] = {}

    def add(self, limit: asyncio.Timeout, size: int) -> None:
        """Adds a reply that waits within ``limit`` and holds ``size`` bytes. Past a maximum, those that have waited
        longest are ended once they have waited for `PATIENCE_S`: their readers make the least progress."""
        now = asyncio.get_running_loop().time()
        self._all[limit] = _Waiting(now, size)
        while len(self._all) > MAX_WAITING or sum(each.size for each in self._all.values()) > MAX_WAITING_BYTES:
            longest, waiting = next(iter(self._all.items()))
            del self._all[longest]
            longest.reschedule(max(now, waiting.since + PATIENCE_S))

    def remove(self, limit: asyncio.Timeout) -> None:
        self._all.pop(limit, None)


class _ReplyFlow:
    """One request, and its reply."""

    def __init__(self, receive: Receive, send: Send, waiting: WaitingReplies) -> None:
        self._receive = receive
        self._send = send
        self._waiting = waiting
        self._turn = asyncio.Lock()
        """Held by the task that receives: the application's, or one whose ``send`` waits."""
        self._arrived: deque[Message] = deque()
        self._more_body = True
        self._read = self._told = 0
        """Bytes of the body read, and told to the proxy."""
        self._replied = False
        self._length = 0
        """Bytes of a reply that is held in memory."""
        self._sent = self._taken = 0
        """Bytes of the reply sent, and written by the proxy."""
        self.gone = False
        """Whether the client has disconnected, or its reply was ended."""

    async def received(self) -> Message:
        while not self._arrived:
            await self._take(lambda: not self._arrived)
        message = self._arrived.popleft()
        self._read += len(message.get("body", b""))
        if self._read - self._told >= TELL_BODY_BYTES and not self._replied:
            self._told = self._read
            await self._send({"type": TAKEN, "bytes": self._read})
        return message

    async def sending(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._replied = True
            message[FLOW] = True
            headers = Headers(raw=message.get("headers", []))
            self._length = 0 if headers.get("content-type") == ON_DISK else int(headers.get("content-length", "0"))
        body = message.get("body", b"")
        for begin in range(0, len(body) - PIECE_BYTES, PIECE_BYTES):
            await self._piece({**message, "body": body[begin : begin + PIECE_BYTES], "more_body": True})
        if len(body) > PIECE_BYTES:
            last = (len(body) - 1) // PIECE_BYTES * PIECE_BYTES
            message = {**message, "body": body[last:]}
        await self._piece(message)

    async def _piece(self, message: Message) -> None:
        if self._is_ahead():
            await self._taken_by_reader()
        self._sent += len(message.get("body", b""))
        await self._send(message)

    def _is_ahead(self) -> bool:
        return self._sent - self._taken > REPLY_WINDOW_BYTES and not self.gone

    async def _taken_by_reader(self) -> None:
        """Waits until the reader has taken enough for another piece.

        Raises:
            ClientDisconnect: the client has disconnected, or is too slow.
        """
        limit = asyncio.timeout(READ_S)
        try:
            async with limit:
                self._waiting.add(limit, max(0, self._length - self._sent))
                while self._is_ahead():
                    await self._take(self._is_ahead)
        except TimeoutError:
            self.gone = True
        finally:
            self._waiting.remove(limit)
        if self.gone:
            raise ClientDisconnect

    async def _take(self, is_needed: Callable[[], bool]) -> None:
        """Receives one message, unless another task has received what this one needs."""
        async with self._turn:
            if not is_needed():
                return
            message = await self._receive()
            self._taken = max(self._taken, message.pop(TAKEN, 0))
            if message["type"] == "http.disconnect":
                self.gone = True
            elif not self._more_body:
                return  # it has only told what the reader has taken
            else:
                self._more_body = message.get("more_body", False)
            self._arrived.append(message)
