"""A cap on request bodies that does not first read what it will refuse."""

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.http.errors import BodyTimeout, BodyTooLarge

BODY_TIMEOUT_S = 30.0
"""A client that sends its body more slowly than this gets 408 and frees its place."""


class LimitBody:
    """ASGI middleware: 413 for bodies of more than ``limit`` bytes.

    By the declared length where there is one, before a byte is read; else while reading, at the first
    byte too many, which reaches the application as `BodyTooLarge` out of ``receive``.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        # Only digits: int() would take "-1" and "1_0", and raise on thousands of digits.
        if declared.isascii() and declared.isdigit() and (len(declared) > 18 or int(declared) > self._limit):
            await self._error(f"{declared[:18]} bytes").response()(scope, receive, send)
            return
        await self._app(scope, self._counting(receive), send)

    def _counting(self, receive: Receive) -> Receive:
        read = 0
        complete = False

        async def counted() -> Message:
            nonlocal read, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout(BODY_TIMEOUT_S):
                    message = await receive()
            except TimeoutError:
                raise BodyTimeout(f"the request body did not arrive within {BODY_TIMEOUT_S:.0f} s") from None
            read += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if read > self._limit:
                raise self._error("more than that")
            return message

        return counted

    def _error(self, size: str) -> BodyTooLarge:
        return BodyTooLarge(f"the request body may have {self._limit} bytes, not {size}")
