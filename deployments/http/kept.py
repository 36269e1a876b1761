"""What clients leave here, as the routes see it: the store of whoever asks, its disk work in threads."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context
from typing import Annotated, Any, BinaryIO, Protocol, TypeVar

from fastapi import Query, Request

from deployments.admission.auth import key_of
from deployments.admission.errors import BadRequest, Busy, Unavailable
from deployments.admission.keys import store_owner
from deployments.admission.limits import Bodies
from deployments.service.live import LiveSettings
from deployments.store import Owned, Store

logger = logging.getLogger("banyan.http")
T = TypeVar("T")
Item = TypeVar("Item", bound="Named")

DISK_S = 30.0
"""A disk that has not done it by then is not to be waited for."""
MAX_UPLOADS = 4
"""Of one owner at a time, at each controller; so the next."""
MAX_DOWNLOADS = 16
MAX_STREAMS = 16
MIN_COPY_BYTES_PER_S = 4 << 20
"""A disk that takes less of an upload is not to be waited for either."""
_THREADS = ThreadPoolExecutor(4, thread_name_prefix="store")
_COPIES = ThreadPoolExecutor(2 * MAX_UPLOADS, thread_name_prefix="copies")
"""Apart from the others, which wait for no copy; more than one owner can keep busy."""

Limit = Annotated[int, Query(ge=1, le=100)]
After = Annotated[str | None, Query(description="The id of the last one of the page before.")]


class Kept:
    """The store of one application, as one controller sees it."""

    def __init__(self, store: Store, live: LiveSettings) -> None:
        self.store = store
        self.bodies = Bodies(live)
        """Those of requests that hold no place."""
        self._later: set[asyncio.Task[None]] = set()
        self.uploads = Few(MAX_UPLOADS, "uploads")
        self.downloads = Few(MAX_DOWNLOADS, "downloads")
        self.streams = Few(MAX_STREAMS, "streams of events")

    def owner(self, request: Request) -> str:
        """Who asks, as the store calls them."""
        return store_owner(key_of(request.scope))

    def owned(self, request: Request) -> Owned:
        """What belongs to whoever asks."""
        return self.store.owned(self.owner(request))

    def later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Done whatever becomes of the request: in a context of its own, for Serve would end it with that."""
        task = asyncio.create_task(work, context=Context())
        self._later.add(task)
        task.add_done_callback(self._later.discard)
        return task

    async def do(self, work: Callable[[], T]) -> T:
        """What ``work`` returns, done in a thread.

        Raises:
            Unavailable: the disk failed, or took too long.
            StoreError: as ``work`` raises it.
        """
        return await _done(work, _THREADS, DISK_S)

    async def copy(self, work: Callable[[], T], size: int) -> T:
        """As ``do``; so many bytes are copied by it, at `MIN_COPY_BYTES_PER_S` at least."""
        return await _done(work, _COPIES, DISK_S + size / MIN_COPY_BYTES_PER_S)

    def let_go(self, file: BinaryIO) -> None:
        """Closes it in a thread, and waits for nothing: somebody may still be reading it, on a disk that hangs."""
        _THREADS.submit(file.close)


async def _done(work: Callable[[], T], threads: ThreadPoolExecutor, seconds: float) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.get_running_loop().run_in_executor(threads, work)
    except OSError as error:  # a TimeoutError is one
        logger.error("the store failed: %s", type(error).__name__ if isinstance(error, TimeoutError) else error)
        raise Unavailable("what is kept here cannot be reached now; try again", code="store_unavailable") from None


class Few:
    """So many of a kind at a time, of one owner, at one controller."""

    def __init__(self, most: int, kind: str) -> None:
        self._most = most
        self._kind = kind
        self._now: Counter[str] = Counter()

    @contextmanager
    def one(self, owner: str) -> Iterator[None]:
        """
        Raises:
            Busy: there are so many already.
        """
        if self._now[owner] >= self._most:
            raise Busy(f"{self._most} {self._kind} are on their way already; open fewer at a time", "bodies")
        self._now[owner] += 1
        try:
            yield
        finally:
            self._now[owner] -= 1
            if not self._now[owner]:
                del self._now[owner]


class Named(Protocol):
    """What has an id."""

    @property
    def id(self) -> str: ...


def page(
    every: Sequence[Item], show: Callable[[Item], dict[str, Any]], after: str | None, limit: int
) -> dict[str, Any]:
    """The ``list`` of those that follow ``after``, ``limit`` at most.

    Raises:
        BadRequest: there is no such one.
    """
    begin = 0
    if after is not None:
        places = [index for index, each in enumerate(every) if each.id == after]
        if not places:
            raise BadRequest(f"after: no such one: {after[:100]!r}", "after")
        begin = places[0] + 1
    shown = every[begin : begin + limit]
    return {
        "object": "list",
        "data": [show(each) for each in shown],
        "first_id": shown[0].id if shown else None,
        "last_id": shown[-1].id if shown else None,
        "has_more": begin + limit < len(every),
    }
