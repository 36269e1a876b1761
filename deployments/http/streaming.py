"""Streamed replies: the tree as it grows, then the answer."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Protocol

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from deployments.admission.errors import ApiError, api_error
from deployments.http.replies import Data, dumps
from deployments.service.places import Place
from deployments.service.searches import SearchJob
from search.run.report import EventSink, SearchEvent, SearchOutcome, StepScored
from search.tools.tasks import ended

PING_S = 10.0
"""Proxies close connections on which nothing is said for half a minute or so: then a comment is sent."""
SEND_TIMEOUT_S = 60.0
"""A client that takes nothing for this long has gone."""


class Script(Protocol):
    """What is said of a search, in the words of one API."""

    def begin(self) -> Iterator[Data]: ...

    def step(self, event: StepScored) -> Iterator[Data]: ...

    def end(self, outcome: SearchOutcome) -> Iterator[Data]: ...

    def failed(self, error: ApiError) -> Iterator[Data]: ...


class Searching(Protocol):
    """What runs a search: `deployments.service.searches.SearchService`, or what has its events kept meanwhile."""

    async def search(self, job: SearchJob, place: Place, *sinks: EventSink) -> SearchOutcome: ...


class EventStream(EventSourceResponse):
    """Server-sent events, whose source is closed with it."""

    def __init__(self, events: AsyncIterator[ServerSentEvent]) -> None:
        super().__init__(events, ping=PING_S, sep="\n", send_timeout=SEND_TIMEOUT_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.body_iterator):  # type: ignore[type-var]
            await super().__call__(scope, receive, send)


class SearchStream(EventStream):
    """The reply to a streamed request. The search ends with it, however it ends."""

    def __init__(self, searching: Searching, job: SearchJob, place: Place, script: Script) -> None:
        super().__init__(stream(searching, job, place, script))


async def stream(searching: Searching, job: SearchJob, place: Place, script: Script) -> AsyncIterator[ServerSentEvent]:
    """The events of one search. Closing it ends the search. An error is the last event."""
    # Bounded by the nodes a search may have; the search must not wait for a slow client.
    events: asyncio.Queue[SearchEvent | None] = asyncio.Queue()

    async def searched() -> SearchOutcome:
        try:
            return await searching.search(job, place, events.put_nowait)
        finally:
            events.put_nowait(None)

    # A child of the request's task in everything but name: it sees the request's context, so Serve knows
    # its calls for the request's, and it never outlives this generator.
    running = asyncio.create_task(searched())
    try:
        for data in script.begin():
            yield sse(data)
        while (event := await events.get()) is not None:
            if isinstance(event, StepScored):
                for data in script.step(event):
                    yield sse(data)
        for data in script.end(await running):
            yield sse(data)
    except Exception as error:
        for data in script.failed(api_error(error)):
            yield sse(data)
    finally:
        await ended(running)


def sse(data: Data) -> ServerSentEvent:
    """One event of a stream."""
    if isinstance(data, str):
        return ServerSentEvent(data, sep="\n")
    # Only the events of the Responses API have a type.
    return ServerSentEvent(dumps(data), event=data.get("type"), sep="\n")
