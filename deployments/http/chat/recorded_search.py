"""A search that stores its events and its reply, for ``/v1/searches`` and ``/v1/responses``."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from deployments.admission.errors import ApiError
from deployments.admission.stopping import Stopping
from deployments.http.errors import api_error
from deployments.http.replies import Head, Json, completion, dumps, quiet_events, step_event
from deployments.http.store_access import StoreAccess
from deployments.http.streaming import Searching, SearchStream, StreamFormat
from deployments.service.searches import SearchJob
from deployments.service.slots import Slot
from deployments.store import ResponseRecord, SearchEnd, SearchRecord, SearchStatus, SearchWriter, StoreError
from search.run.report import EventSink, QuietEvent, SearchEvent, SearchOutcome, StepScored

logger = logging.getLogger("banyan.http")

WRITE_EVERY_S = 0.2
"""Interval of writes: hundreds of events a second are written in batches."""
QUESTION_CHARACTERS = 500
"""Length at which a stored question is cut: it is there to recognize the search by."""


class RecordedResponse(Protocol):
    """The reply of another API than chat completions, stored beside the chat completion; see `ResponseReply`."""

    begun: Json

    @property
    def record(self) -> ResponseRecord: ...

    def note(self, data: Json) -> None: ...

    def ended(self, outcome: SearchOutcome) -> Json: ...


class RecordedSearch:
    """Runs a search and stores its events and reply. If the disk fails meanwhile, only stored data is lost."""

    def __init__(
        self,
        searches: Searching,
        kept: StoreAccess,
        owner: str,
        head: Head,
        response: RecordedResponse | None = None,
        lost: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """``searches``: runs the search. ``head``: of the reply. ``response``: the reply, if it is one. ``lost`` is
        called with the reason before the search returns if its reply could not be stored."""
        self._searches = searches
        self._kept = kept
        self._owner = owner
        self._head = head
        self._response = response
        self._lost = lost
        self._background = response is not None and bool(response.begun["background"])
        self._writer: SearchWriter | None = None
        self._runs = False
        self._cancelled = False
        """Whether a client has cancelled or removed the search. Only a search in the background looks for it."""
        self._steps = 0
        self._lines: list[str] = []
        """Events not written yet, as JSON."""
        self._end = SearchEnd(status=SearchStatus.CANCELLED, ended=0.0)
        self._replies: tuple[str, ...] = ()
        """The reply and, if it is one, the response, as JSON."""
        self._ended = asyncio.Event()

    async def begin(self, job: SearchJob) -> None:
        """Adds the search to the store. `search` does it too, unless it was done before.

        Raises:
            Unavailable: the store failed.
            StoreError: the request is too long to be stored, or the store is busy.
        """
        head = self._head
        response = self._response.record if self._response else None
        record = SearchRecord(
            id=job.search_id,
            created=time.time(),
            model=head.model,
            strategy=head.strategy,
            n=head.n,
            prompt_tokens=head.prompt_tokens,
            question=job.question[:QUESTION_CHARACTERS],
        )
        searches = self._kept.store.owned(self._owner).searches
        self._writer = await self._kept.do(self._owner, lambda: searches.begin(record, response))

    async def search(self, job: SearchJob, slot: Slot, *sinks: EventSink) -> SearchOutcome:
        """Like `deployments.service.searches.SearchService.search`; stores the reply before it returns.

        Raises:
            Unavailable: the store failed before the search began.
        """
        if self._writer is None:
            await self.begin(job)
        assert self._writer is not None
        self._runs = True
        running = asyncio.current_task()
        assert running is not None
        # The writer outlives the request: it must also write the end of a cancelled search.
        writing = self._kept.later(self._write(self._writer, running))
        try:
            outcome = await self._searches.search(job, slot, self._note, *sinks)
            response = [self._response.ended(outcome)] if self._response else []
            self._replies = tuple(map(dumps, [completion(self._head, outcome), *response]))
            self._end = self._ending(SearchStatus.FINISHED)
        except asyncio.CancelledError:
            # No client can leave a search in the background: the controller is stopping.
            stopped = self._background and not self._cancelled
            self._end = (
                self._ending(SearchStatus.FAILED, Stopping()) if stopped else self._ending(SearchStatus.CANCELLED)
            )
            raise
        except Exception as error:
            self._end = self._ending(SearchStatus.FAILED, api_error(error))
            raise
        finally:
            self._ended.set()
            if self._background or self._end.status is not SearchStatus.CANCELLED:
                await asyncio.wait({writing})
        return outcome

    def leave(self) -> None:
        """Ends the stored search as cancelled if it was added and never ran: its client was gone before."""
        if self._writer is not None and not self._runs:
            self._end = self._ending(SearchStatus.CANCELLED)
            self._kept.later(self._finish(self._writer))

    def _ending(self, status: SearchStatus, error: ApiError | None = None) -> SearchEnd:
        body = error.body["error"] if error else None
        return SearchEnd(status=status, ended=time.time(), error=body, steps=self._steps)

    def _note(self, event: SearchEvent) -> None:
        if isinstance(event, StepScored):
            self._steps += 1
            data = step_event(event)
            if self._response:
                self._response.note(data)
            self._lines.append(dumps(data))
        elif isinstance(event, QuietEvent):
            self._lines += map(dumps, quiet_events(event))

    async def _write(self, writer: SearchWriter, running: asyncio.Task[Any]) -> None:
        """Writes events until the search has ended, then how it ended. Cancels ``running``, the task of a search in the
        background, when a client has cancelled it."""
        while not self._ended.is_set():
            await self._append(writer)
            if self._cancelled and not self._ended.is_set():
                running.cancel()
                await self._ended.wait()
            try:
                async with asyncio.timeout(WRITE_EVERY_S):
                    await self._ended.wait()
            except TimeoutError:
                continue
        await self._append(writer)
        await self._finish(writer)

    async def _finish(self, writer: SearchWriter) -> None:
        try:
            await self._kept.do(self._owner, lambda: writer.end(self._end, *self._replies), size=0)
        except (ApiError, StoreError) as error:
            reason = api_error(error).message
            logger.warning("the reply of a search was not stored: %s", reason)
            self._lost(reason)

    async def _append(self, writer: SearchWriter) -> None:
        lines, self._lines = self._lines, []

        def write() -> None:
            if lines:
                writer.append(lines)
            self._cancelled = self._background and writer.is_cancelled

        if lines or self._background:
            with suppress(ApiError):  # already logged
                await self._kept.do(self._owner, write, size=0)


class RecordedStream(SearchStream):
    """The reply to a streamed request whose search was added to the store before."""

    def __init__(self, searching: RecordedSearch, job: SearchJob, scope: Scope, script: StreamFormat) -> None:
        super().__init__(searching, job, scope, script)
        self._searching = searching

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._searching.leave()
