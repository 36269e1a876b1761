"""Requests in the forms that routes know: no trailing slash, and GET for HEAD."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Normalize:
    """ASGI middleware: removes trailing slashes of the path, and answers HEAD as GET, without a body.

    Starlette answers a trailing slash with a redirect, after which many clients repeat a POST without its body or key.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        path = scope["path"].rstrip("/")
        if path == scope.get("root_path", "").rstrip("/"):
            path += "/"  # the root keeps its slash: no route has an empty path
        if scope["method"] == "HEAD":
            await self._app({**scope, "path": path, "method": "GET"}, receive, without_body)
        else:
            await self._app({**scope, "path": path}, receive, send)
