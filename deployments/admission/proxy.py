"""Middleware of Serve's HTTP proxy: drops harmful headers, and refuses requests that controllers would refuse and what
is no client's concern. Also installs the proxy's HTTP protocol and its limits on bodies.

``RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`` (`deployments/startup/environment.sh`) names this module. It runs in the
proxy's process, so it imports next to nothing.
"""

import asyncio
import hashlib
import math
import os
import time
from collections import Counter
from typing import NamedTuple

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.admission import protocol
from deployments.admission.error_body import error_body
from deployments.admission.proxy_bodies import BodyLimits
from deployments.admission.proxy_flow import ProxyFlow
from deployments.admission.route_path import route_path

CONTROL_HEADERS = frozenset(
    {b"x-request-disconnect-disabled", b"x-request-timeout-seconds", b"serve-multiplexed-model-id"}
)
"""Request headers that control Serve: ignore a client's disconnect, change the timeout, choose a replica by its model.
``_`` counts as ``-``, as it does for Serve."""
ROUTER_PREFIX = b"x-serve-router-"
"""Prefix of the headers that Serve's own request router sets."""
TURNED_AWAY = b"x-banyan-turned-away"
"""Header from the proxy to a controller, for its metrics: the requests refused since the last such header, by reason:
``places 12, owner 3``."""

APPLICATIONS = "/-/routes"
"""Path at which Serve tells anyone the names and prefixes of all applications. Operators have ``serve status``, and
nothing else asks: load balancers and KubeRay ask ``/-/healthz``, which tells only that the proxy is up."""

WORK = ("/v1/chat/completions", "/v1/responses", "/v1/search", "/v1/completions", "/v1/score")
"""Routes that need a slot: their registered paths get the `Admission` of the controller."""
CAPACITY_HEADER = "x-banyan-room"
"""Header from a controller to the proxy: the controller's name and how many requests it has room for: ``3f6c 128``."""
REMEMBERED_S = 60.0
"""How long an announced room is valid."""
RETRY_AFTER_S = 2
FIRST_PART_S = 1.0
"""Longest wait of the proxy for the first part of a body."""
BACKOFF_HEADER = "x-banyan-rest"
"""Header from a controller to the proxy, sent when a request's key is at its limits: the reason, the seconds for which
the proxy shall refuse the key, and the client's ``Retry-After`` in seconds: ``owner 0.5 4``."""
MOST_RESTING = 10_000
"""Maximum number of keys remembered as at their limits. All were valid, but one key can be written in many ways."""
MESSAGES = {
    "places": "all slots for searches are taken; try again shortly",
    "owner": "this API key has reached its limit of concurrent requests (limits.places)",
    "tokens_per_minute": "this API key has reached its limit of tokens per minute (limits.tokens_per_minute)",
}
"""Error message by reason of refusal."""


def middlewares() -> list[Middleware]:
    """Returns the proxy's middleware, the innermost first, and installs its protocol. Serve calls this when a proxy
    starts, before it starts uvicorn."""
    protocol.install()
    # uvicorn would take the address in X-Forwarded-For for the client's on every connection from this machine. Which
    # proxies may name addresses, only the controllers know (http.trusted_proxies).
    os.environ["FORWARDED_ALLOW_IPS"] = ""
    order = (ProxyFlow, DropOrders, HideApplications, ProxyAdmission, BodyLimits)
    return [Middleware(each) for each in order]


class DropOrders:
    """ASGI middleware: removes headers that control Serve, and headers that are not UTF-8, on which Serve would answer
    500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            scope["headers"] = [(name, value) for name, value in scope["headers"] if is_harmless(name, value)]
        await self._app(scope, receive, send)


def is_harmless(name: bytes, value: bytes) -> bool:
    """Whether a header may be passed to Serve."""
    plain = name.lower().replace(b"_", b"-")
    if plain in CONTROL_HEADERS or plain == TURNED_AWAY or plain.startswith(ROUTER_PREFIX):
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


class HideApplications:
    """ASGI middleware: answers 404 at `APPLICATIONS`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and route_path(scope) == APPLICATIONS:
            body = error_body(f"no such route: {APPLICATIONS}", "invalid_request_error", "unknown_url")
            app = Response(body, 404, media_type="application/json")
        await app(scope, receive, send)


class Room(NamedTuple):
    """The room that a controller announced last."""

    requests: int
    said_at: float
    """Monotonic seconds."""


class KeyRefusal(NamedTuple):
    """A key at its limits."""

    reason: str
    until: float
    """The proxy refuses the key until then, monotonic seconds."""
    again: float
    """The client may retry then, monotonic seconds."""


class ProxyAdmission:
    """ASGI middleware: refuses work for which the controllers have no room, and work of a key at its limits.

    Forwarding a request that is then refused costs the proxy and the controller milliseconds each: a burst of hundreds
    would delay all other requests, /health included. A request is counted from the end of its body to the end of its
    reply; a body still arriving may be slow and does not count. The announced rooms exceed slots and queue, so a
    request refused here would be refused by a controller too. Until a controller has announced its room, no request is
    refused. The proxy cannot check API keys: it knows a key only after a controller has reported it at its limits.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._rooms: dict[str, Room] = {}
        self._inside = 0
        self._resting: dict[bytes, KeyRefusal] = {}
        """Keys at their limits, by `_client`."""
        self._turned_away: Counter[str] = Counter()
        """Refused requests not yet reported to a controller, by reason."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].rstrip("/").endswith(WORK):
            await self._app(scope, receive, send)
            return
        client = _client(scope)
        if rest := self._rest_for(client):
            await self._refuse(rest.reason, rest.again - time.monotonic(), scope, receive, send)
            return
        # A request counts once its body is complete, and a short body is complete at once. Without this read a whole
        # burst would pass before its first request counts.
        first = None if self._is_full() else await _first_part(receive)
        if self._is_full():
            await self._refuse("places", RETRY_AFTER_S, scope, receive, send)
            return
        if self._turned_away:
            counts = ", ".join(f"{reason} {number}" for reason, number in self._turned_away.items())
            scope["headers"] = [*scope["headers"], (TURNED_AWAY, counts.encode())]
            self._turned_away.clear()
        inside = False

        def note(message: Message) -> None:
            nonlocal inside
            if not inside and not message.get("more_body", False):
                inside = True
                self._inside += 1

        async def entered() -> Message:
            nonlocal first
            if first is not None:
                message, first = first, None
                return message
            message = await receive()
            note(message)
            return message

        if first is not None:
            note(first)

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._listen(MutableHeaders(scope=message), client)
            await send(message)

        try:
            await self._app(scope, entered, answered)
        finally:
            if inside:
                self._inside -= 1

    def _is_full(self) -> bool:
        if not self._rooms:
            return False
        now = time.monotonic()
        self._rooms = {name: room for name, room in self._rooms.items() if now - room.said_at <= REMEMBERED_S}
        total = sum(room.requests for room in self._rooms.values())
        return 0 < total <= self._inside

    async def _refuse(self, reason: str, again_s: float, scope: Scope, receive: Receive, send: Send) -> None:
        self._turned_away[reason] += 1
        headers = {"Retry-After": str(max(1, math.ceil(again_s)))}
        await Response(refusal(reason), 429, headers, "application/json")(scope, receive, send)

    def _rest_for(self, client: bytes | None) -> KeyRefusal | None:
        rest = self._resting.get(client) if client else None
        return rest if rest and rest.until > time.monotonic() else None

    def _listen(self, headers: MutableHeaders, client: bytes | None) -> None:
        """Reads a controller's announcements from a reply's headers and removes them."""
        if rest := headers.get(BACKOFF_HEADER):
            del headers[BACKOFF_HEADER]
            reason, seconds, again_s = rest.split(" ")
            now = time.monotonic()
            self._resting = {each: rest for each, rest in self._resting.items() if rest.until > now}
            if client and len(self._resting) < MOST_RESTING:
                self._resting[client] = KeyRefusal(reason, now + float(seconds), now + float(again_s))
        announced = headers.get(CAPACITY_HEADER)
        if announced is not None:
            del headers[CAPACITY_HEADER]
            name, _, requests = announced.partition(" ")
            self._rooms[name] = Room(int(requests), time.monotonic())


def refusal(reason: str) -> bytes:
    """Returns the body of a 429 in OpenAI's shape."""
    return error_body(MESSAGES[reason], "rate_limit_error", "rate_limit_exceeded")


def _client(scope: Scope) -> bytes | None:
    """Returns a hash of the application's path and the ``Authorization`` header; None without the header."""
    application, _, _ = scope["path"].rpartition("/v1/")
    for name, value in scope["headers"]:
        if name == b"authorization":
            return hashlib.sha256(application.encode() + b" " + value).digest()
    return None


async def _first_part(receive: Receive) -> Message | None:
    """Returns the first part of a body; None after `FIRST_PART_S`. The controller enforces the body's timeout."""
    try:
        async with asyncio.timeout(FIRST_PART_S):
            return await receive()
    except TimeoutError:
        return None
