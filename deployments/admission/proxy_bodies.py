"""Limits on request bodies in Serve's proxy, which takes in every body whether or not it is read.

Serve passes a body on to a controller as fast as it arrives and buffers what the controller has not read. The
controller enforces the limits of each route; the limits here bound the buffer, also for requests that take no body.
"""

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.admission.error_body import error_body
from deployments.admission.route_path import route_path

MAX_BODY_BYTES = 1 << 24
"""Upper bound of the setting ``controller.limits.body_bytes``."""
MAX_ARRIVING_BYTES = 1 << 26
"""Maximum size of all incomplete bodies together, except uploads."""
MAX_UPLOADS = 32
"""Maximum number of uploads at once. Their sizes are limited by the controllers alone (``store.file_bytes_max``)."""
UPLOADS = "/v1/files"
TAKES_BODY = frozenset({"POST", "PUT", "PATCH"})
RETRY_AFTER_S = 2


class BodyLimits:
    """ASGI middleware: refuses bodies that are too long, and bodies of requests that take none."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._arriving = 0
        """Bytes of incomplete bodies."""
        self._uploads = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["method"] == "POST" and scope["path"].rstrip("/").endswith(UPLOADS):
            await self._upload(scope, receive, send)
        else:
            await self._limited(scope, receive, send)

    # Serve has not matched the application yet, so this may be another route whose path ends in the same way.
    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._uploads >= MAX_UPLOADS:
            await _busy(f"{MAX_UPLOADS} uploads are in transfer already; try again shortly")(scope, receive, send)
            return
        self._uploads += 1
        try:
            await self._limited(scope, receive, send, may_be_upload=True)
        finally:
            self._uploads -= 1

    async def _limited(self, scope: Scope, receive: Receive, send: Send, may_be_upload: bool = False) -> None:
        most = MAX_BODY_BYTES if scope["method"] in TAKES_BODY else 0
        declared = Headers(scope=scope).get("content-length", "0")  # digits: the parser has checked it
        if not may_be_upload and (len(declared) > 18 or int(declared) > most):
            await _too_large(scope["method"], most)(scope, receive, send)
            return
        refusal: Response | None = None
        begun = False
        own = read = 0

        async def counted() -> Message:
            """Ends the request, as if the client had disconnected, once its body is too long."""
            nonlocal refusal, own, read
            if refusal is not None:
                return {"type": "http.disconnect"}
            message = await receive()
            # Serve receives after it has put the application's prefix into the scope.
            if may_be_upload and route_path(scope).rstrip("/") == UPLOADS:
                return message
            size = len(message.get("body", b""))
            read += size
            own += size
            self._arriving += size
            if not message.get("more_body", False):
                self._arriving -= own
                own = 0
            if read > most:
                refusal = _too_large(scope["method"], most)
            elif self._arriving > MAX_ARRIVING_BYTES and own:
                refusal = _busy("too many long request bodies are in transfer already; try again shortly")
            return message if refusal is None else {"type": "http.disconnect"}

        async def sending(message: Message) -> None:
            nonlocal begun
            if refusal is None or begun:
                begun = True
                await send(message)

        try:
            await self._app(scope, counted, sending)
        finally:
            self._arriving -= own
        if refusal is not None and not begun:
            await refusal(scope, receive, send)


def _too_large(method: str, most: int) -> Response:
    message = f"the request body may have at most {most} bytes" if most else f"{method} takes no body"
    return _error(413, "invalid_request_error", "body_too_large", message)


def _busy(message: str) -> Response:
    reply = _error(429, "rate_limit_error", "rate_limit_exceeded", message)
    reply.headers["retry-after"] = str(RETRY_AFTER_S)
    return reply


def _error(status: int, kind: str, code: str, message: str) -> Response:
    return Response(error_body(message, kind, code), status, media_type="application/json")
