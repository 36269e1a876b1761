"""What Serve's HTTP proxy does with a request before it reads it.

Named by ``RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`` (`cluster/launch/environment.sh`) and run in the proxy's process:
it imports next to nothing.
"""

import asyncio
import hashlib
import json
import math
import time
from collections import Counter
from typing import NamedTuple

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ORDERS = frozenset({b"x-request-disconnect-disabled", b"x-request-timeout-seconds", b"serve-multiplexed-model-id"})
"""Headers by which a request tells Serve what to do: not to notice that the client has gone, another time limit, a
replica that has a certain model. ``_`` counts as ``-``, as it does for Serve."""
ROUTER_PREFIX = b"x-serve-router-"
"""Headers that Serve's own request router sets."""
TURNED_AWAY = b"x-banyan-turned-away"
"""The header by which the proxy tells a controller whom it has refused since it last said so, for its metrics:
``places 12, owner 3``."""

WORK = ("/v1/chat/completions", "/v1/responses", "/v1/search", "/v1/completions", "/v1/score")
"""What a place is needed for."""
ROOM = "x-banyan-room"
"""The header by which a controller tells the proxy who it is and how many requests it has room for: ``3f6c 128``."""
REMEMBERED_S = 60.0
"""A controller that has said nothing for so long is not counted on."""
RETRY_AFTER_S = 2
FIRST_PART_S = 1.0
REST = "x-banyan-rest"
"""The header by which a controller tells the proxy why a request's key is at its limits, for how many seconds it need
not hear of that key, and after how many the client was told to try again: ``owner 0.5 4``."""
MOST_RESTING = 10_000
"""Keys that are remembered at once; each was good, but may be written in many ways."""
SAID = {
    "places": "all places for searches are taken; try again shortly",
    "owner": "this API key has as many requests at work as it may (limits.places)",
    "tokens_per_minute": "this API key has used its tokens of the minute (limits.tokens_per_minute)",
}
"""What a client is told, by the reason of its refusal."""


def middlewares() -> list[Middleware]:
    """Called by Serve when a proxy starts; the result is applied to every request."""
    return [Middleware(DropOrders), Middleware(Door)]


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
    if plain in ORDERS or plain == TURNED_AWAY or plain.startswith(ROUTER_PREFIX):
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


class Room(NamedTuple):
    """What a controller has said last."""

    requests: int
    said_at: float
    """Monotonic seconds."""


class Rest(NamedTuple):
    """Why a key is at its limits, and until when (monotonic seconds)."""

    reason: str
    until: float
    """It is refused here."""
    again: float
    """Its client was told to come again."""


class Door:
    """ASGI middleware: refuses work that the controllers have just said to refuse: all of it while as much is inside as
    they have room for, and that of a key which is at its limits.

    To hand a request to a controller only to be refused costs the proxy and the controller milliseconds each: a burst
    of hundreds would keep all others waiting, /health among them. What is inside here is inside there or on its way, so
    who is refused at the door would be refused there too: rooms are larger than the places are many. A body that is
    still coming is not inside: it may be slow. Until a controller has answered, the door is open; and a key is known
    here only while a controller, which alone can tell a good one, has it rest.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._rooms: dict[str, Room] = {}
        self._inside = 0
        self._resting: dict[bytes, Rest] = {}
        """By application and key; see `_client`."""
        self._turned_away: Counter[str] = Counter()
        """By reason, since a controller was told."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith(WORK):
            await self._app(scope, receive, send)
            return
        client = _client(scope)
        if rest := self._rest_of(client):
            await self._refuse(rest.reason, rest.again - time.monotonic(), scope, receive, send)
            return
        # Of a burst all would be past the door before the first of them counts, if it did not look for itself whether
        # the body is there already, as a short one is.
        first = None if self._is_full() else await _begun(receive)
        if self._is_full():
            await self._refuse("places", RETRY_AFTER_S, scope, receive, send)
            return
        if self._turned_away:
            told = ", ".join(f"{reason} {number}" for reason, number in self._turned_away.items())
            scope["headers"] = [*scope["headers"], (TURNED_AWAY, told.encode())]
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
        most = sum(room.requests for room in self._rooms.values())
        return 0 < most <= self._inside

    async def _refuse(self, reason: str, again_s: float, scope: Scope, receive: Receive, send: Send) -> None:
        self._turned_away[reason] += 1
        headers = {"Retry-After": str(max(1, math.ceil(again_s)))}
        await Response(refusal(reason), 429, headers, "application/json")(scope, receive, send)

    def _rest_of(self, client: bytes | None) -> Rest | None:
        rest = self._resting.get(client) if client else None
        return rest if rest and rest.until > time.monotonic() else None

    def _listen(self, headers: MutableHeaders, client: bytes | None) -> None:
        if rest := headers.get(REST):
            del headers[REST]
            reason, seconds, again_s = rest.split(" ")
            now = time.monotonic()
            self._resting = {each: rest for each, rest in self._resting.items() if rest.until > now}
            if client and len(self._resting) < MOST_RESTING:
                self._resting[client] = Rest(reason, now + float(seconds), now + float(again_s))
        said = headers.get(ROOM)
        if said is not None:
            del headers[ROOM]
            name, _, requests = said.partition(" ")
            self._rooms[name] = Room(int(requests), time.monotonic())


def refusal(reason: str) -> bytes:
    """The body of a 429, in OpenAI's shape."""
    error = {"message": SAID[reason], "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"}
    return json.dumps({"error": error}).encode()


def _client(scope: Scope) -> bytes | None:
    """Who asks which application, by the key as it is written in the request; None without one."""
    application, _, _ = scope["path"].rpartition("/v1/")
    for name, value in scope["headers"]:
        if name == b"authorization":
            return hashlib.sha256(application.encode() + b" " + value).digest()
    return None


async def _begun(receive: Receive) -> Message | None:
    """The first part of a body; None where it does not come soon. How long it may take is the controller's business."""
    try:
        async with asyncio.timeout(FIRST_PART_S):
            return await receive()
    except TimeoutError:
        return None
