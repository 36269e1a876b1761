"""What Serve's HTTP proxy does with a request before it reads it.

Named by ``RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`` (`cluster/launch/environment.sh`) and run in the proxy's process:
it imports next to nothing.
"""

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

ORDERS = frozenset({b"x-request-disconnect-disabled", b"x-request-timeout-seconds", b"serve-multiplexed-model-id"})
"""Headers by which a request tells Serve what to do: not to notice that the client has gone, another time limit, a
replica that has a certain model. ``_`` counts as ``-``, as it does for Serve."""
ROUTER_PREFIX = b"x-serve-router-"
"""Headers that Serve's own request router sets."""


def middlewares() -> list[Middleware]:
    """Called by Serve when a proxy starts; the result is applied to every request."""
    return [Middleware(DropOrders)]


class DropOrders:
    """ASGI middleware: takes from a request the headers that are orders to Serve, and those that are not UTF-8, on
    which it would fail with a 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            scope["headers"] = [(name, value) for name, value in scope["headers"] if is_harmless(name, value)]
        await self._app(scope, receive, send)


def is_harmless(name: bytes, value: bytes) -> bool:
    """Whether Serve may see this header."""
    plain = name.lower().replace(b"_", b"-")
    if plain in ORDERS or plain.startswith(ROUTER_PREFIX):
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
