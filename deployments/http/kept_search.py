"""A search that stores its events and its reply, for ``/v1/searches``."""

import asyncio
import time
from contextlib import suppress

from deployments.admission.errors import ApiError, api_error
from deployments.http.kept import StoreAccess
from deployments.http.replies import Head, completion, dumps, pruned_events, step_event
from deployments.http.streaming import Searching
from deployments.service.places import Place
from deployments.service.searches import SearchJob
from deployments.store import SearchEnd, SearchRecord, SearchStatus, SearchWriter
from search.run.report import EventSink, SearchEvent, SearchOutcome, StepScored, StepsPruned

WRITE_EVERY_S = 0.2
"""Interval of writes: hundreds of events a second are written in batches."""
QUESTION_CHARACTERS = 500
"""Length at which a stored question is cut: it is there to recognize the search by."""


class KeptSearch:
    """Runs a search and stores its events and reply. If the disk fails meanwhile, only stored data is lost."""

    def __init__(self, searches: Searching, kept: StoreAccess, owner: str, head: Head) -> None:
        """``searches``: runs the search. ``head``: of the reply."""
        self._searches = searches
        self._kept = kept
        self._owner = owner
        self._head = head
        self._lines: list[str] = []
        """Events not written yet, as JSON."""
        self._end = SearchEnd(status=SearchStatus.CANCELLED, ended=0.0)
        self._reply: str | None = None
        self._ended = asyncio.Event()

    async def search(self, job: SearchJob, place: Place, *sinks: EventSink) -> SearchOutcome:
        """Like `deployments.service.searches.SearchService.search`; stores the reply before it returns.

        Raises:
            Unavailable: the store failed before the search began.
        """
        head = self._head
        record = SearchRecord(
            id=job.search_id,
            created=time.time(),
            model=head.model,
            strategy=head.strategy,
            n=head.n,
            prompt_tokens=head.prompt_tokens,
            question=job.question[:QUESTION_CHARACTERS],
        )
        writer = await self._kept.do(self._owner, lambda: self._kept.store.owned(self._owner).searches.begin(record))
        # The writer outlives the request: it must also write the end of a cancelled search.
        writing = self._kept.later(self._write(writer))
        try:
            outcome = await self._searches.search(job, place, self._note, *sinks)
            self._reply = dumps(completion(head, outcome))
            self._end = SearchEnd(status=SearchStatus.FINISHED, ended=time.time())
        except asyncio.CancelledError:
            self._end = SearchEnd(status=SearchStatus.CANCELLED, ended=time.time())
            raise
        except Exception as error:
            error_body = api_error(error).body["error"]
            self._end = SearchEnd(status=SearchStatus.FAILED, ended=time.time(), error=error_body)
            raise
        finally:
            self._ended.set()
            if self._end.status is not SearchStatus.CANCELLED:
                await asyncio.wait({writing})
        return outcome

    def _note(self, event: SearchEvent) -> None:
        if isinstance(event, StepScored):
            self._lines.append(dumps(step_event(event)))
        elif isinstance(event, StepsPruned):
            self._lines += map(dumps, pruned_events(event))

    async def _write(self, writer: SearchWriter) -> None:
        """Writes events until the search has ended, then how it ended."""
        while not self._ended.is_set():
            await self._append(writer)
            try:
                async with asyncio.timeout(WRITE_EVERY_S):
                    await self._ended.wait()
            except TimeoutError:
                continue
        await self._append(writer)
        with suppress(ApiError):
            await self._kept.do(self._owner, lambda: writer.end(self._end, self._reply))

    async def _append(self, writer: SearchWriter) -> None:
        lines, self._lines = self._lines, []
        if lines:
            with suppress(ApiError):  # already logged
                await self._kept.do(self._owner, lambda: writer.append(lines))
