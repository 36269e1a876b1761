"""What clients leave here, as the routes see it: the store of whoever asks, its disk work in threads."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

from fastapi import Query, Request

from deployments.http.auth import key_of
from deployments.http.errors import BadRequest, Busy, Unavailable
from deployments.http.keys import store_owner
from deployments.http.limits import Bodies
from deployments.live import LiveSettings
from store import Owned, Store

logger = logging.getLogger("banyan.http")
T = TypeVar("T")

DISK_S = 30.0
"""A disk that has not done it by then is not to be waited for."""
MAX_UPLOADS = 4
"""On their way from one owner at a time, at each controller."""
_THREADS = ThreadPoolExecutor(4, thread_name_prefix="store")

After = Annotated[str | None, Query(description="The id of the last one of the page before.")]


class Kept:
    """The store of one application, as one controller sees it."""

    def __init__(self, store: Store, live: LiveSettings) -> None:
        self.store = store
        self.bodies = Bodies(live)
        """Those of requests that hold no place."""
        self._uploading: Counter[str] = Counter()

    def owner(self, request: Request) -> str:
        """Who asks, as the store calls them."""
        return store_owner(key_of(request.scope))

    def owned(self, request: Request) -> Owned:
        """What belongs to whoever asks."""
        return self.store.owned(self.owner(request))

    async def do(self, work: Callable[[], T]) -> T:
        """What ``work`` returns, done in a thread.

        Raises:
            Unavailable: the disk failed, or took too long.
            StoreError: as ``work`` raises it.
        """
        try:
            async with asyncio.timeout(DISK_S):
                return await asyncio.get_running_loop().run_in_executor(_THREADS, work)
        except OSError as error:  # a TimeoutError is one
            logger.error("the store failed: %s", type(error).__name__ if isinstance(error, TimeoutError) else error)
            raise Unavailable("what is kept here cannot be reached now; try again", code="store_unavailable") from None

    @contextmanager
    def uploading(self, owner: str) -> Iterator[None]:
        """Around the reading of an upload.

        Raises:
            Busy: so many are on their way already.
        """
        if self._uploading[owner] >= MAX_UPLOADS:
            raise Busy(f"{MAX_UPLOADS} uploads are on their way already; send fewer at a time", "bodies")
        self._uploading[owner] += 1
        try:
            yield
        finally:
            self._uploading[owner] -= 1
            if not self._uploading[owner]:
                del self._uploading[owner]


def page(shown: Sequence[dict[str, Any]], after: str | None, limit: int) -> dict[str, Any]:
    """The ``list`` of those that follow ``after``, ``limit`` at most.

    Raises:
        BadRequest: there is no such one.
    """
    begin = 0
    if after is not None:
        places = [index for index, each in enumerate(shown) if each["id"] == after]
        if not places:
            raise BadRequest(f"after: no such one: {after[:100]!r}", "after")
        begin = places[0] + 1
    data = list(shown[begin : begin + limit])
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": begin + limit < len(shown),
    }
