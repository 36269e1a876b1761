"""Admission to a slot: a request that cannot get one is refused before its body is read, parsed or tokenized."""

import uuid
from contextlib import AsyncExitStack

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.admission.auth import key_of
from deployments.admission.body_threads import read_by
from deployments.admission.clients import client_of
from deployments.admission.disconnect import while_connected
from deployments.admission.errors import ApiError, Busy, no_slot
from deployments.admission.limits import Bodies
from deployments.admission.proxy import BACKOFF_HEADER, CAPACITY_HEADER
from deployments.admission.quotas import TokenQuotas
from deployments.admission.service_tier import asks_flex, may_ask_flex
from deployments.config import KeyRecord
from deployments.loop.delay import LoopDelay
from deployments.service.live import LiveSettings
from deployments.service.slots import NoSlot, Owner, Slot, Slots

SPARE = 16
"""Minimum surplus of the room announced to the proxy over slots and queue: the proxy also counts requests that are
then refused here."""
RESTS = {"owner": 0.5, "tokens_per_minute": 5.0}
"""Longest time, in seconds, for which the proxy refuses requests of a key at its limits, by reason. A slot may come
free at any time; tokens come back only with the next minute."""


class Admission:
    """Admits requests to routes that need a slot.

    An admitted request goes on with its whole body read, and holds a slot until its work is done: until its reply
    begins, or a streamed search ends (`leave`). A client that reads slowly holds no slot. The cheap
    checks come first: event loop delay, token quota, a free slot or room in the queue. Then the body is read; it says
    whether the request is flex, and while it arrives it holds no slot. Then the request takes a slot or waits for
    one.

    It stands between the router and the application of a route (`guard`). So it never reads a path itself: a request
    that the router sends to such a route has passed here, however its path was written. The handler's dependencies,
    which cost more than all of this, come later.
    """

    def __init__(self, slots: Slots, quotas: TokenQuotas, loop_delay: LoopDelay, live: LiveSettings) -> None:
        self._slots = slots
        self._bodies = Bodies(live)
        self._quotas = quotas
        self._loop_delay = loop_delay
        self._live = live
        self._name = uuid.uuid4().hex

    def guard(self, app: ASGIApp) -> ASGIApp:
        """Returns the application of a route with the admission before it."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            await self._work(app, scope, receive, self._announcing_room(send))

        return guarded

    async def _work(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        key = key_of(scope)
        async with AsyncExitStack() as stack:
            try:
                body = await self._body(scope, receive, key)
                owner = _owner(scope, key)
                flex = may_ask_flex(body) and await read_by(asks_flex, body, owner.name)
                holding = stack.enter_async_context(self._slots.hold(owner, flex))
                slot: Slot = await while_connected(receive, holding)
            except (ApiError, NoSlot) as error:
                await _refused(error)(scope, receive, send)
                return
            except ClientDisconnect:
                return
            if key is not None:
                stack.callback(lambda: self._quotas.charge(key, slot.tokens))
            scope.setdefault("state", {}).update(slot=slot, admitted=stack)
            await app(scope, _replayed(body, receive), _leaving(stack, send))

    def _announcing_room(self, send: Send) -> Send:
        """Returns ``send`` with a header that tells the proxy how many requests this controller has room for."""

        async def announcing(message: Message) -> None:
            if message["type"] == "http.response.start":
                now = self._live.now
                room = now.most_inside + max(SPARE, now.searches // 4)
                MutableHeaders(scope=message)[CAPACITY_HEADER] = f"{self._name} {room}"
            await send(message)

        return announcing

    async def _body(self, scope: Scope, receive: Receive, key: KeyRecord | None) -> bytes:
        """Makes the cheap checks, then reads the body.

        Raises:
            NoSlot, Busy: there is no slot, or the request may not have one; nothing was read.
            ApiError: the body is too long or too slow.
            ClientDisconnect: the client has disconnected.
        """
        owner = _owner(scope, key)
        delay_s = self._loop_delay.seconds
        if delay_s > self._live.now.max_loop_delay_s:
            raise Busy(f"the server's event loop is delayed by {delay_s:.1f} s; try again shortly", "event_loop")
        if key is not None:
            self._quotas.check(key)
        self._slots.check(owner)
        return await self._bodies.read(scope, receive, owner.name)


def _refused(error: ApiError | NoSlot) -> Response:
    """Returns the error reply. If the key is at its limits, a header tells the proxy to refuse it for a while."""
    reply = no_slot(error) if isinstance(error, NoSlot) else error
    response = reply.response()
    if isinstance(reply, Busy) and (rest_s := RESTS.get(reply.reason)):
        response.headers[BACKOFF_HEADER] = f"{reply.reason} {min(rest_s, reply.retry_after_s)} {reply.retry_after_s}"
    return response


def slot_of(scope: Scope) -> Slot:
    """Returns the place of an admitted request.

    Raises:
        ApiError: the request was not admitted, because its route is not in `WORK`.
    """
    slot: Slot | None = scope.get("state", {}).get("slot")
    if slot is None:
        raise ApiError(
            "this route needs a slot but is not listed in WORK (deployments/admission/proxy.py)", code="not_admitted"
        )
    return slot


def taken_over(scope: Scope) -> AsyncExitStack:
    """Takes the slot out of an admitted request, for work that outlives it: the slot is held, and the key's quota not
    charged, until the caller closes the returned stack."""
    admitted: AsyncExitStack = scope["state"]["admitted"]
    return admitted.pop_all()


async def leave(scope: Scope) -> None:
    """Gives back the place of an admitted request, whose work is done."""
    admitted: AsyncExitStack = scope["state"]["admitted"]
    await admitted.aclose()


def _leaving(admitted: AsyncExitStack, send: Send) -> Send:
    """Returns ``send`` that gives back the slot when a reply begins, unless it is a stream of events: its search goes
    on."""

    async def leaving(message: Message) -> None:
        if message["type"] == "http.response.start":
            media = Headers(raw=message.get("headers", [])).get("content-type", "")
            if not media.startswith("text/event-stream"):
                await admitted.aclose()
        await send(message)

    return leaving


def _owner(scope: Scope, key: KeyRecord | None) -> Owner:
    """Returns the owner that a request counts for: its API key, else its client's address."""
    return Owner(client_of(scope), None if key is None else key.limits.places)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Returns a ``receive`` that yields the body in one message, then continues with the original."""
    sent = False

    async def replayed() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
