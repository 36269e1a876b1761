"""Flow control between Serve's proxy and a controller: the proxy's end.

Serve passes a body on to a controller, and a reply to the proxy, as fast as they come, and buffers without bound what
the other side has not taken. So each side counts the bytes that it has taken and tells the sender, which waits once
`BODY_WINDOW_BYTES` or `REPLY_WINDOW_BYTES` are on their way. These counts travel with the ASGI messages: those of a
reply with what ``receive`` returns, those of a body as messages of their own. Short bodies and replies need none.

It runs in the proxy's process, so it imports next to nothing.
"""

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_WINDOW_BYTES = 1 << 20
"""Maximum size of what a controller has not yet taken of one body."""
REPLY_WINDOW_BYTES = 1 << 19
"""Maximum size of what the proxy has not yet written of one reply; a piece of `deployments.admission.flow` comes on
top."""
TELL_BODY_BYTES = 1 << 19
"""Number of a body's bytes after which a controller sends an acknowledgement."""
TELL_REPLY_BYTES = 1 << 16
"""Number of a reply's bytes after which the proxy sends an acknowledgement."""
TAKE_S = 300.0
"""Longest wait for a controller to take some of a body; then the request counts as disconnected."""
ANNOUNCE_S = 10.0
"""Time in which a controller says of a long body that it counts. Another application behind the proxy does not."""
FLOW = "banyan.flow"
"""Key of the scope that tells a controller that the proxy counts, and of the beginning of a reply to one that does."""
TAKEN = "banyan.taken"
"""Key of the count of a reply's bytes in a message, and type of the messages with the count of a body's."""
WAKE = "banyan.wake"
"""Key of the scope: makes a waiting ``receive`` of the protocol return a message without new bytes."""


class ProxyFlow:
    """ASGI middleware, the innermost of the proxy."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wake = scope.pop(WAKE, None)
        if wake is None:
            await self._app(scope, receive, send)
            return
        scope[FLOW] = True
        flow = _RequestFlow(receive, send, wake)
        await self._app(scope, flow.received, flow.sending)


class _RequestFlow:
    """One request, and its reply."""

    def __init__(self, receive: Receive, send: Send, wake: Callable[[], None]) -> None:
        self._receive = receive
        self._send = send
        self._wake = wake
        self._read = self._taken = 0
        """Bytes of the body passed on, and taken by the controller."""
        self._written = self._told = 0
        """Bytes of the reply written, and told to the controller."""
        self._replied = False
        self._is_counted = self._is_free = False
        """Whether the application counts, as controllers do; and whether it is known not to."""
        self._moved = asyncio.Event()

    async def received(self) -> Message:
        while self._is_ahead():
            self._moved.clear()
            try:
                async with asyncio.timeout(TAKE_S if self._is_counted else ANNOUNCE_S):
                    await self._moved.wait()
            except TimeoutError:
                if self._is_counted:
                    return {"type": "http.disconnect"}
                self._is_free = True
        message = await self._receive()
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            message[TAKEN] = self._written
        return message

    async def sending(self, message: Message) -> None:
        if message["type"] == TAKEN:
            self._is_counted = True
            self._taken = message["bytes"]
            self._moved.set()
            return
        if not self._replied:
            self._replied = True
            self._is_counted = message.pop(FLOW, False)
            self._moved.set()  # nobody may read the rest of the body, but the client may disconnect
        await self._send(message)
        self._written += len(message.get("body", b""))
        if self._is_counted and self._written - self._told >= TELL_REPLY_BYTES:
            self._told = self._written
            self._wake()

    def _is_ahead(self) -> bool:
        return self._read - self._taken > BODY_WINDOW_BYTES and not (self._replied or self._is_free)
