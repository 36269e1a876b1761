"""Errors that leave the endpoint, counted by status and code."""

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.http.errors import REFUSAL, ApiError


class CountRefusals:
    """ASGI middleware, outside all others. A code is a word of our own, never of the request."""

    def __init__(self, app: ASGIApp, refused: Callable[[int, str], None]) -> None:
        self._app = app
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                self._refused(message["status"], scope.get(REFUSAL, "none"))
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:
            # The framework answers outside all middleware what nobody expected.
            self._refused(500, ApiError.default_code or "none")
            raise
