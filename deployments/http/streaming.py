"""Streamed replies: the tree as it grows, then the answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from deployments.http.disconnect import ended
from deployments.http.errors import api_error
from deployments.http.replies import Chunks, Head, Json, dumps
from deployments.places import Place
from deployments.service import SearchJob, SearchService
from search.run.report import SearchEvent, SearchOutcome, StepScored

PING_S = 10.0
"""Proxies close connections on which nothing is said for half a minute or so."""
SEND_TIMEOUT_S = 60.0
"""A client that takes nothing for this long has gone."""
DONE = "[DONE]"


class SearchStream(EventSourceResponse):
    """The reply to a streamed request. The search ends with it, however it ends."""

    def __init__(self, service: SearchService, job: SearchJob, place: Place, head: Head, include_usage: bool) -> None:
        events = stream(service, job, place, head, include_usage)
        super().__init__(events, ping=PING_S, sep="\n", send_timeout=SEND_TIMEOUT_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.body_iterator):  # type: ignore[type-var]
            await super().__call__(scope, receive, send)


async def stream(
    service: SearchService, job: SearchJob, place: Place, head: Head, include_usage: bool
) -> AsyncIterator[ServerSentEvent]:
    """The events of one search. Closing it ends the search. An error is the last event."""
    chunks = Chunks(head, include_usage)
    # Bounded by the nodes a search may have; the search must not wait for a slow client.
    events: asyncio.Queue[SearchEvent | None] = asyncio.Queue()

    async def searched() -> SearchOutcome:
        try:
            return await service.search(job, place, events.put_nowait)
        finally:
            events.put_nowait(None)

    # A child of the request's task in everything but name: it sees the request's context, so Serve knows
    # its calls for the request's, and it never outlives this generator.
    searching = asyncio.create_task(searched())
    try:
        yield _event(chunks.role())
        while (event := await events.get()) is not None:
            if isinstance(event, StepScored):
                yield _event(chunks.step(event))
        outcome = await searching
        yield _event(chunks.content(outcome.text))
        yield _event(chunks.finish(outcome))
        if include_usage:
            yield _event(chunks.usage(outcome))
        yield ServerSentEvent(DONE, sep="\n")
    except Exception as error:
        yield _event(api_error(error).body)
    finally:
        await ended(searching)


def _event(data: Json) -> ServerSentEvent:
    return ServerSentEvent(dumps(data), sep="\n")
