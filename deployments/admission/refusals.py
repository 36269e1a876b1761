"""Errors that leave the endpoint, and those that the proxy has sent, counted by status and code."""

from collections.abc import Callable, Iterator

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.admission.errors import REFUSAL, ApiError, Busy
from deployments.admission.proxy import SAID, TURNED_AWAY


class CountRefusals:
    """ASGI middleware, outside all others. A code is a word of our own, never of the request."""

    def __init__(self, app: ASGIApp, refused: Callable[[int, str, int], None]) -> None:
        self._app = app
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                self._refused(message["status"], scope.get(REFUSAL, "none"), 1)
            await send(message)

        for reason, count in _turned_away(scope):
            self._refused(Busy.status, reason, count)
        try:
            await self._app(scope, receive, watched)
        except Exception:
            # The framework answers outside all middleware what nobody expected.
            self._refused(500, ApiError.default_code or "none", 1)
            raise


def _turned_away(scope: Scope) -> Iterator[tuple[str, int]]:
    """For what reasons the proxy has refused how many requests since it last said so."""
    said = Headers(scope=scope).get(TURNED_AWAY.decode(), "") if scope["type"] == "http" else ""
    for each in said.split(", "):
        reason, _, count = each.partition(" ")
        if reason in SAID and count.isascii() and count.isdecimal() and len(count) < 10:
            yield reason, int(count)
