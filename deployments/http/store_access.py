"""The routes' access to the store of files, batches and searches: by owner, with disk work in threads."""

import asyncio
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import Annotated, Any, BinaryIO, Protocol, TypeVar

from fastapi import Query, Request

from deployments.admission.auth import key_of
from deployments.admission.errors import BadRequest, Busy, Unavailable
from deployments.admission.keys import store_owner
from deployments.admission.limits import Bodies
from deployments.service.live import LiveSettings
from deployments.store import Damaged, NotThere, Owned, Store
from deployments.telemetry.context import CLIENT_KEY
from search.tools.fair_threads import FairThreads, ThreadsFull

logger = logging.getLogger("banyan.http")
T = TypeVar("T")
Item = TypeVar("Item", bound="Named")

DISK_S = 30.0
"""Timeout of disk work."""
MAX_UPLOADS = 4
"""Limit per owner at one controller, as are the next two."""
MAX_ALL_UPLOADS = 16
"""Limit of all owners together at one controller."""
MAX_DOWNLOADS = 16
MAX_STREAMS = 16
RESERVE_BYTES = 1 << 29
"""Free bytes that uploads leave on a disk."""
MIN_COPY_BYTES_PER_S = 4 << 20
"""Minimum rate of copying an upload; slower copies time out."""
MAX_JOBS = 1024
"""Maximum number of accesses to the disk that run or wait, of all owners. One owner alone gets half of it."""
_THREADS = FairThreads(4, MAX_JOBS, "store")
_COPIES = FairThreads(2 * MAX_UPLOADS, MAX_JOBS, "copies")
"""Threads for copies, so that other disk work need not wait for them. One owner can occupy `MAX_UPLOADS` of them."""

Limit = Annotated[int, Query(ge=1, le=100)]
After = Annotated[str | None, Query(description="ID of the last object of the previous page.")]


class StoreAccess:
    """The store of one application, as one controller sees it."""

    def __init__(self, store: Store, live: LiveSettings) -> None:
        self.store = store
        self.bodies = Bodies(live)
        """Bodies of requests that hold no place."""
        self._later: set[asyncio.Task[None]] = set()
        self.uploads = OwnerLimit(MAX_UPLOADS, "uploads", MAX_ALL_UPLOADS)
        self.downloads = OwnerLimit(MAX_DOWNLOADS, "downloads")
        self.streams = OwnerLimit(MAX_STREAMS, "streams of events")

    def owner(self, request: Request) -> str:
        """Returns the store owner of a request."""
        return store_owner(key_of(request.scope))

    def owned(self, request: Request) -> Owned:
        """Returns the files, batches and searches of a request's owner."""
        return self.store.owned(self.owner(request))

    def later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task that outlives the request. It has its own context, or Serve would cancel it too."""
        context = Context()
        context.run(CLIENT_KEY.set, CLIENT_KEY.get())
        task = asyncio.create_task(work, context=context)
        self._later.add(task)
        task.add_done_callback(self._later.discard)
        return task

    async def do(self, owner: str, work: Callable[[], T], size: int = 1) -> T:
        """Runs ``work`` of ``owner`` in a thread and returns its result. Owners take turns.

        Args:
            size: 0 for work that is never refused, such as writing what a search has found.

        Raises:
            Busy: too much work waits, of the owner or of all.
            Unavailable: the disk failed, or the work was not done in time.
            StoreError: raised by ``work``.
        """
        return await _in_time(_THREADS.run(owner, work, size), DISK_S)

    async def copy(self, owner: str, work: Callable[[], T], size: int) -> T:
        """Like `do`, for work that copies ``size`` bytes: it has threads of its own, and its timeout allows for
        `MIN_COPY_BYTES_PER_S`."""
        return await _in_time(_COPIES.run(owner, work), DISK_S + size / MIN_COPY_BYTES_PER_S)

    def check_disk(self, more: int = 0) -> None:
        """Checks that an upload may write ``more`` bytes, to the temporary directory and then to the store. Blocks on
        the disk.

        Raises:
            Unavailable: a disk would have less than `RESERVE_BYTES` left.
            OSError: a disk failed.
        """
        for directory in (tempfile.gettempdir(), self.store.settings.path or "."):
            if shutil.disk_usage(directory).free < more + RESERVE_BYTES:
                raise Unavailable("there is not enough disk space for uploads now; try again", code="store_unavailable")

    def let_go(self, owner: str, file: BinaryIO) -> None:
        """Closes a file in a thread and does not wait: on a hanging disk a read may still be in progress."""
        _THREADS.submit(owner, file.close, size=0)


async def _in_time(work: Awaitable[T], seconds: float) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except ThreadsFull:
        raise Busy("too many requests are waiting for the store; send fewer at a time", "store") from None
    except OSError as error:  # TimeoutError is a subclass
        logger.error("the store failed: %s", type(error).__name__ if isinstance(error, TimeoutError) else error)
        raise Unavailable("the store cannot be reached; try again", code="store_unavailable") from None


class OwnerLimit:
    """Concurrency limit per owner, and of all owners, for one kind of request at one controller."""

    def __init__(self, most: int, kind: str, most_of_all: int | None = None) -> None:
        self._most = most
        self._most_of_all = most_of_all
        self._kind = kind
        self._now: Counter[str] = Counter()

    @contextmanager
    def one(self, owner: str) -> Iterator[None]:
        """Counts one request of ``owner`` for the duration of the block.

        Raises:
            Busy: the owner is at the limit, or all are.
        """
        if self._now[owner] >= self._most:
            raise Busy(f"{self._most} {self._kind} are in transfer already; open fewer at a time", "bodies")
        if self._most_of_all is not None and self._now.total() >= self._most_of_all:
            raise Busy(f"too many {self._kind} of other clients are in transfer; try again shortly", "bodies")
        self._now[owner] += 1
        try:
            yield
        finally:
            self._now[owner] -= 1
            if not self._now[owner]:
                del self._now[owner]


class Named(Protocol):
    """An object with an id."""

    @property
    def id(self) -> str: ...


def page(
    every: Sequence[Item], show: Callable[[Item], dict[str, Any]], after: str | None, limit: int
) -> dict[str, Any]:
    """Returns a ``list`` object: at most ``limit`` items, from the one after the id ``after``. Items that were removed
    meanwhile, or are damaged, are left out.

    Raises:
        BadRequest: no item has the id ``after``.
    """
    begin = 0
    if after is not None:
        matches = [index for index, each in enumerate(every) if each.id == after]
        if not matches:
            raise BadRequest(f"after: no such object: {after[:100]!r}", "after")
        begin = matches[0] + 1
    rest = iter(every[begin:])
    shown: dict[str, dict[str, Any]] = {}
    while len(shown) < limit and (each := next(rest, None)) is not None:
        with suppress(NotThere, Damaged):
            shown[each.id] = show(each)
    return {
        "object": "list",
        "data": list(shown.values()),
        "first_id": next(iter(shown), None),
        "last_id": next(reversed(shown), None),
        "has_more": next(rest, None) is not None,
    }
