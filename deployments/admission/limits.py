"""Reading the bodies of requests: bounded in size, in time and in number, so that slow ones keep nobody out."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from deployments.admission.errors import BodyTimeout, BodyTooLarge, Busy
from deployments.service.live import LiveSettings

BODY_TIMEOUT_S = 30.0
"""A body that is not complete by then is given up, however fast it comes."""
GRACE_S = 5.0
SEATS = 4
"""Bodies that are read at a time for each place, so that one client alone may send twice as many as there are."""
MIN_BYTES_PER_S = 16_384
"""After the grace a body is given up as soon as it falls behind this."""


class Bodies:
    """All bodies that one controller reads at the moment, each for a client: an API key, or an address.

    A client may send as many at a time as seats are free beside its own: alone, half of them all; and however many
    clients hold theirs with slow bodies, the next one still finds some.
    """

    def __init__(self, live: LiveSettings) -> None:
        """``live``: how long a body may be, and how many places there are."""
        self._live = live
        self._reading: Counter[str] = Counter()

    @property
    def _limit(self) -> int:
        return self._live.now.limits.body_bytes

    async def read(self, scope: Scope, receive: Receive, client: str) -> bytes:
        """The whole body.

        Raises:
            BodyTooLarge: by the declared length before a byte is read, else at the first byte too many.
            Busy: the client sends too many at a time; nothing was read.
            BodyTimeout: it comes too slowly.
            ClientDisconnect: the client has gone.
        """
        check_declared(scope, self._limit)
        if self._reading[client] >= SEATS * self._live.now.most_inside - self._reading.total():
            raise Busy(f"{self._reading[client]} bodies are on their way already; send fewer at a time", "bodies")
        self._reading[client] += 1
        try:
            return b"".join([part async for part in arriving(receive, self._limit, BODY_TIMEOUT_S)])
        finally:
            self._reading[client] -= 1
            if not self._reading[client]:
                del self._reading[client]


async def arriving(receive: Receive, most: int, longest_s: float) -> AsyncGenerator[bytes, None]:
    """A body of ``most`` bytes, as it comes.

    Raises:
        BodyTooLarge: at the first byte too many.
        BodyTimeout: it falls behind `MIN_BYTES_PER_S`, or is not complete after ``longest_s``.
        ClientDisconnect: the client has gone.
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
            raise BodyTimeout(f"the request body came too slowly: {read} bytes in {allowed:.0f} s") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        read += len(part)
        if read > most:
            raise too_large(most, "more than that")
        more = message.get("more_body", False)
        yield part


def check_declared(scope: Scope, most: int) -> None:
    """
    Raises:
        BodyTooLarge: the request says itself that its body is longer; nothing was read.
    """
    declared = Headers(scope=scope).get("content-length", "")
    # Only digits: int() would take "-1" and "1_0", and raise on thousands of digits.
    if declared.isascii() and declared.isdigit() and (len(declared) > 18 or int(declared) > most):
        raise too_large(most, f"{declared[:18]} bytes")


def too_large(most: int, size: str) -> BodyTooLarge:
    return BodyTooLarge(f"the request body may have {most} bytes, not {size}")
