"""Which requests are let in to work: what has no place is refused before its body is read, parsed or tokenized."""

import uuid
from collections.abc import Collection
from contextlib import AsyncExitStack

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.admission.auth import key_of
from deployments.admission.body import read_by
from deployments.admission.disconnect import while_connected
from deployments.admission.errors import ApiError, Busy, api_error
from deployments.admission.limits import Bodies
from deployments.admission.proxy import REST, ROOM
from deployments.admission.quotas import TokenQuotas
from deployments.admission.route_path import route_path
from deployments.admission.service_tier import asks_flex, may_ask_flex
from deployments.config import KeyRecord
from deployments.loop.delay import LoopDelay
from deployments.service.live import LiveSettings
from deployments.service.places import NoPlace, Owner, Place, Places

SPARE = 16
"""Requests, at least, that the proxy hands over beyond those that find a place: some that it counts get refused."""
RESTS = {"owner": 0.5, "tokens_per_minute": 5.0}
"""For how many seconds at most the proxy refuses for us a key that is at its limits, by the reason: a place may come
free at any time, tokens come with the next minute."""


class Admission:
    """ASGI middleware, right behind the check of the API key: a request for work passes with its whole body read and a
    place held until its reply has been sent. All other requests pass as they are.

    In this order, the cheap and sure first: is the event loop in time, has the key tokens left, is there a place or
    room in the queue; then the body, which holds no place however slowly it comes, and says whether the request is
    flex; then the place, or the wait for one.

    Outside of FastAPI, whose routing and dependencies cost more than all of this.
    """

    def __init__(
        self,
        app: ASGIApp,
        paths: Collection[str],
        places: Places,
        loop_delay: LoopDelay,
        live: LiveSettings,
    ) -> None:
        """``paths``: where work is asked for, by POST."""
        self._app = app
        self._paths = frozenset(paths)
        self._places = places
        self._bodies = Bodies(live)
        self._quotas = TokenQuotas()
        self._loop_delay = loop_delay
        self._live = live
        self._name = uuid.uuid4().hex

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or route_path(scope) not in self._paths:
            await self._app(scope, receive, send)
            return
        await self._work(scope, receive, self._telling(send))

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = key_of(scope)
        async with AsyncExitStack() as stack:
            try:
                body = await self._body(scope, receive, key)
                flex = may_ask_flex(body) and await read_by(asks_flex, body)
                holding = stack.enter_async_context(self._places.hold(_owner(scope, key), flex))
                place: Place = await while_connected(receive, holding)
            except (ApiError, NoPlace) as error:
                await _refused(error)(scope, receive, send)
                return
            except ClientDisconnect:
                return
            scope.setdefault("state", {})["place"] = place
            try:
                await self._app(scope, _replayed(body, receive), send)
            finally:
                if key is not None:
                    await self._quotas.charge(key, place.tokens)

    def _telling(self, send: Send) -> Send:
        """``send`` with a word to the proxy about this controller's room."""

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                now = self._live.now
                room = now.most_inside + max(SPARE, now.searches // 4)
                MutableHeaders(scope=message)[ROOM] = f"{self._name} {room}"
            await send(message)

        return told

    async def _body(self, scope: Scope, receive: Receive, key: KeyRecord | None) -> bytes:
        """
        Raises:
            NoPlace, Busy: there is no place, or the request may not have one; nothing was read.
            ApiError: the body is too long or too slow.
            ClientDisconnect: the client has gone.
        """
        owner = _owner(scope, key)
        late = self._loop_delay.seconds
        if late > self._live.now.max_loop_delay_s:
            raise Busy(f"the server is {late:.1f} s behind its work; try again shortly", "event_loop")
        if key is not None:
            await self._quotas.check(key)
        self._places.check(owner)
        return await self._bodies.read(scope, receive, owner.name)


def _refused(error: ApiError | NoPlace) -> Response:
    """The reply; where the key is at its limits, with a word to the proxy."""
    told = api_error(error)
    response = told.response()
    if isinstance(told, Busy) and (rest_s := RESTS.get(told.reason)):
        response.headers[REST] = f"{told.reason} {min(rest_s, told.retry_after_s)} {told.retry_after_s}"
    return response


def place_of(scope: Scope) -> Place:
    """The place of a request that was let in."""
    place: Place = scope["state"]["place"]
    return place


def _owner(scope: Scope, key: KeyRecord | None) -> Owner:
    """Clients are told apart by their keys; where there are none, by their addresses."""
    if key is not None:
        return Owner(key.digest, key.limits.places)
    host, *_ = scope.get("client") or ("",)
    return Owner(str(host))


def _replayed(body: bytes, receive: Receive) -> Receive:
    """``receive`` of a request whose body was read: the body in one message, then whatever comes."""
    told = False

    async def replayed() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
