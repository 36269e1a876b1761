"""Reads request bodies with limits on size, rate, time and number, so that no client's bodies block other clients."""

import asyncio
from collections.abc import AsyncGenerator
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from deployments.admission.errors import BodyTimeout, BodyTooLarge, Busy
from deployments.admission.quotas import MinuteUsage
from deployments.service.live import LiveSettings

BODY_TIMEOUT_S = 30.0
"""Timeout of a whole body, however fast it arrives."""
GRACE_S = 5.0
"""Seconds before the minimum rate applies."""
BODIES_PER_REQUEST = 4
"""Bodies read at once, as a multiple of the requests that may work or wait. One client alone gets half of them."""
BODIES_PER_MINUTE = 32
"""Bytes that one client may send in a minute, as a multiple of the longest body."""
PATIENCE_S = 1.0
"""When all slots are taken, a body in transit for longer than this gives up its slot to a client that has none."""
MIN_BYTES_PER_S = 16_384
"""Minimum rate of a body; a slower one times out."""


class Bodies:
    """Limits the bodies that one controller reads at once, by client: an API key or an address.

    A client may start another body while it has fewer in progress than there are free slots. So one client alone gets
    half of the slots, the next one half of the rest, and so on. A client without a slot gets one even if all are
    taken: then the body that has been in transit longest times out, if that is longer than `PATIENCE_S`. So a few
    slow clients, each with its share, do not block the others.

    A client's bytes of the minute are limited, too, whatever becomes of its requests: each byte is charged before it is
    read.
    """

    def __init__(self, live: LiveSettings) -> None:
        """``live``: for the size limit of a body and the number of slots."""
        self._live = live
        self._bytes = MinuteUsage()
        self._reading: dict[asyncio.Timeout, _Slot] = {}
        """The longest in transit first."""

    @property
    def _limit(self) -> int:
        return self._live.now.limits.body_bytes

    async def read(self, scope: Scope, receive: Receive, client: str) -> bytes:
        """Reads a whole body.

        Raises:
            BodyTooLarge: the declared length is over the limit and nothing was read, or the bytes read are.
            Busy: the client sends too many bodies at once, or all slots are taken; nothing was read. Or it has used its
                bytes of the minute.
            BodyTimeout: the body arrives too slowly.
            ClientDisconnect: the client has disconnected.
        """
        charged = check_declared(scope, self._limit)
        self._check_bytes(client, charged)
        self._make_room(client)
        self._bytes.charge(client, charged)
        parts: list[bytes] = []
        read = 0
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._reading[limit] = _Slot(client, asyncio.get_running_loop().time())
                async for part in arriving(receive, self._limit, BODY_TIMEOUT_S):
                    read += len(part)
                    if read > charged:  # of a body whose length was not declared
                        self._check_bytes(client, read - charged)
                        self._bytes.charge(client, read - charged)
                        charged = read
                    parts.append(part)
                return b"".join(parts)
        except TimeoutError:
            raise BodyTimeout("the request body arrived too slowly while others waited for its slot") from None
        finally:
            self._reading.pop(limit, None)

    def _check_bytes(self, client: str, count: int) -> None:
        """Checks that a client may send ``count`` more bytes in this minute.

        Raises:
            Busy: it may not.
        """
        most = BODIES_PER_MINUTE * self._limit
        refusal = f"this client has reached its limit of {most} body bytes per minute; send shorter bodies, or fewer"
        self._bytes.check(client, most, refusal, "body_bytes", count)

    def _make_room(self, client: str) -> None:
        """Makes sure that there is a slot for the client.

        Raises:
            Busy: there is none.
        """
        own = sum(slot.client == client for slot in self._reading.values())
        free = BODIES_PER_REQUEST * self._live.now.most_inside - len(self._reading)
        if own < free:
            return
        now = asyncio.get_running_loop().time()
        slowest, slot = next(iter(self._reading.items()))
        if own:
            raise Busy(f"{own} request bodies of this client are in transfer already; send fewer at a time", "bodies")
        if now - slot.since < PATIENCE_S:
            raise Busy("too many request bodies of other clients are in transfer; try again shortly", "bodies")
        del self._reading[slowest]
        slowest.reschedule(now)


class _Slot(NamedTuple):
    """The slot of one body in transit."""

    client: str
    since: float
    """The event loop's time, seconds."""


async def arriving(receive: Receive, most: int, longest_s: float) -> AsyncGenerator[bytes, None]:
    """Yields the parts of a body of at most ``most`` bytes as they arrive.

    Raises:
        BodyTooLarge: more than ``most`` bytes have arrived.
        BodyTimeout: the body is slower than `MIN_BYTES_PER_S`, or not complete after ``longest_s``.
        ClientDisconnect: the client has disconnected.
    """
    started = asyncio.get_running_loop().time()
    read = 0
    more = True
    while more:
        allowed = min(longest_s, GRACE_S + read / MIN_BYTES_PER_S)
        try:
            async with asyncio.timeout_at(started + allowed):
                message = await receive()
        except TimeoutError:
            raise BodyTimeout(f"the request body arrived too slowly: {read} bytes in {allowed:.0f} s") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        read += len(part)
        if read > most:
            raise too_large(most, "more than that")
        more = message.get("more_body", False)
        yield part


def check_declared(scope: Scope, most: int) -> int:
    """Checks the declared length of a body, before any of it is read, and returns it; 0 if none is declared.

    Raises:
        BodyTooLarge: the declared length is over ``most`` bytes.
    """
    declared = Headers(scope=scope).get("content-length", "")
    # Digits only: int() would accept "-1" and "1_0", and raise on thousands of digits.
    if not (declared.isascii() and declared.isdigit()):
        return 0
    if len(declared) > 18 or int(declared) > most:
        raise too_large(most, f"{declared[:18]} bytes")
    return int(declared)


def too_large(most: int, size: str) -> BodyTooLarge:
    return BodyTooLarge(f"the request body may have at most {most} bytes, not {size}")
