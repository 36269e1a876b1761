"""Streamed replies: the steps as they are scored, then the answer."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Protocol

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from deployments.admission.errors import ApiError
from deployments.admission.middleware import leave, slot_of
from deployments.http.errors import api_error
from deployments.http.replies import Data, dumps
from deployments.service.searches import SearchJob
from deployments.service.slots import Slot
from search.run.report import EventSink, QuietEvent, SearchEvent, SearchOutcome, StepScored
from search.tools.tasks import cancel_and_wait

PING_S = 5.0
"""Seconds of silence before a comment is sent. Proxies close connections that are idle for about half a minute, and
sending is how `deployments.admission.protocol` finds that a client is gone."""
SEND_TIMEOUT_S = 60.0
"""A client that reads nothing for this long counts as disconnected."""


class StreamFormat(Protocol):
    """Makes the events of one streamed reply, in the format of one API."""

    def begin(self) -> Iterator[Data]: ...

    def step(self, event: StepScored) -> Iterator[Data]: ...

    def quiet(self, event: QuietEvent) -> Iterator[Data]: ...

    def end(self, outcome: SearchOutcome) -> Iterator[Data]: ...

    def failed(self, error: ApiError) -> Iterator[Data]: ...


class Searching(Protocol):
    """Runs searches: `deployments.service.searches.SearchService`, or `RecordedSearch`, which stores the events."""

    async def search(self, job: SearchJob, slot: Slot, *sinks: EventSink) -> SearchOutcome: ...


class EventStream(EventSourceResponse):
    """A reply of server-sent events. Closes the source of the events at its end."""

    def __init__(self, events: AsyncIterator[ServerSentEvent]) -> None:
        super().__init__(events, ping=PING_S, sep="\n", send_timeout=SEND_TIMEOUT_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.body_iterator):  # type: ignore[type-var]
            await super().__call__(scope, receive, send)


class SearchStream(EventStream):
    """The reply to a streamed request. The search ends when the reply ends, for any reason."""

    def __init__(self, searching: Searching, job: SearchJob, scope: Scope, script: StreamFormat) -> None:
        """``scope``: of the admitted request. It gives back its slot once the search has ended."""
        super().__init__(stream(searching, job, scope, script))


async def stream(
    searching: Searching, job: SearchJob, scope: Scope, script: StreamFormat
) -> AsyncIterator[ServerSentEvent]:
    """Runs a search and yields its events; an error is the last event. Closing the generator cancels the search."""
    # Unbounded, because the search must not wait for a slow client. The search's node limit bounds it.
    events: asyncio.Queue[SearchEvent | None] = asyncio.Queue()

    async def searched() -> SearchOutcome:
        try:
            return await searching.search(job, slot_of(scope), events.put_nowait)
        finally:
            await leave(scope)
            events.put_nowait(None)

    # The task has the request's context, so Serve counts its calls as the request's. It never outlives this generator.
    running = asyncio.create_task(searched())
    try:
        for data in script.begin():
            yield sse(data)
        while (event := await events.get()) is not None:
            if isinstance(event, StepScored):
                for data in script.step(event):
                    yield sse(data)
            elif isinstance(event, QuietEvent):
                for data in script.quiet(event):
                    yield sse(data)
        for data in script.end(await running):
            yield sse(data)
    except Exception as error:
        for data in script.failed(api_error(error)):
            yield sse(data)
    finally:
        await cancel_and_wait(running)


def sse(data: Data) -> ServerSentEvent:
    """One event of a stream."""
    if isinstance(data, str):
        return ServerSentEvent(data, sep="\n")
    # Only events of the Responses API have a type.
    return ServerSentEvent(dumps(data), event=data.get("type"), sep="\n")
