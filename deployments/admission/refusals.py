"""Counts the errors that the endpoint and the proxy have sent, by status and reason."""

from collections.abc import Callable, Iterator

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.admission.errors import REFUSAL, ApiError, Busy
from deployments.admission.proxy import MESSAGES, TURNED_AWAY


class CountRefusals:
    """ASGI middleware, the outermost. Calls ``refused`` with status, reason and count.

    The reason is one of our own words, never text from the request.
    """

    def __init__(self, app: ASGIApp, refused: Callable[[int, str, int], None]) -> None:
        self._app = app
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                self._refused(message["status"], scope.get(REFUSAL, "none"), 1)
            await send(message)

        for reason, count in _proxy_refusals(scope):
            self._refused(Busy.status, reason, count)
        try:
            await self._app(scope, receive, watched)
        except Exception:
            # The framework answers unexpected exceptions outside of all middleware.
            self._refused(500, ApiError.default_code or "none", 1)
            raise


def _proxy_refusals(scope: Scope) -> Iterator[tuple[str, int]]:
    """Yields reason and count of the requests that the proxy reports as refused."""
    counts = Headers(scope=scope).get(TURNED_AWAY.decode(), "") if scope["type"] == "http" else ""
    for each in counts.split(", "):
        reason, _, count = each.partition(" ")
        if reason in MESSAGES and count.isascii() and count.isdecimal() and len(count) < 10:
            yield reason, int(count)
