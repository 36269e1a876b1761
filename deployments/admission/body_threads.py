"""Work on request bodies: short ones on the event loop, long ones in threads in which clients take turns."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from deployments.admission.errors import Busy
from search.tools.fair_threads import FairThreads, ThreadsFull

T = TypeVar("T")

INLINE_BYTES = 4096
"""Longest body processed on the event loop. Parsing, validating, templating and tokenizing a megabyte takes up to
a second, so longer bodies go to a thread."""
WAITING_BYTES = 64 << 20
"""Maximum size of all bodies that the threads process or that wait for them. One client alone gets half of it."""
WAIT_S = 30.0
"""Longest time of one body in the threads, its wait included."""
_THREADS = FairThreads(2, WAITING_BYTES, "requests")


async def read_by(work: Callable[[bytes], T], body: bytes, client: str) -> T:
    """Returns ``work(body)``; see `by_size`."""
    return await by_size(partial(work, body), len(body), client)


async def by_size(work: Callable[[], T], size: int, client: str) -> T:
    """Returns ``work()``; runs it in a thread if it processes more than `INLINE_BYTES`. Clients take turns there.

    Raises:
        Busy: too many long bodies wait, of the client or of all, or the work was not done in time.
    """
    if size <= INLINE_BYTES:
        return work()
    try:
        async with asyncio.timeout(WAIT_S):
            return await _THREADS.run(client, work, size)
    except ThreadsFull:
        raise Busy("too many long bodies are being read; send fewer at a time", "bodies") from None
    except TimeoutError:
        raise Busy(f"the body was not read within {WAIT_S:.0f} s; send shorter bodies, or fewer", "bodies") from None
