"""``/v1/searches``: stored searches with their replies, and their events as they happen."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from sse_starlette import ServerSentEvent
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from deployments.admission.errors import Busy
from deployments.http.endpoint import ServedStore
from deployments.http.errors import api_error
from deployments.http.replies import DONE, dumps, json_response
from deployments.http.store_access import After, Limit, StoreAccess, page
from deployments.http.streaming import EventStream, sse
from deployments.store import Events, Search, SearchEnd

router = APIRouter()

LOOK_EVERY_S = 0.2
"""Polling interval for new events: the search may run at another controller."""
REPLY_ID_PREFIXES = ("chatcmpl-", "resp_")
"""A reply's id is one of these and the search's id."""


@router.get("/v1/searches")
async def list_searches(
    request: Request,
    kept: ServedStore,
    after: After = None,
    limit: Limit = 20,
) -> Response:
    """The key's searches, the newest first, without their replies."""

    def shown() -> dict[str, Any]:
        every = kept.owned(request).searches.newest_first()
        return page(every, lambda search: search_object(search, search.end), after, limit)

    return json_response(await kept.do(kept.owner(request), shown))


@router.get("/v1/searches/{search_id}")
async def get_search(search_id: str, request: Request, kept: ServedStore) -> Response:
    """How a search is, and its reply when it has one. Its id, or that of the reply."""

    def shown() -> dict[str, Any]:
        search = _named(search_id, request, kept)
        end = search.end
        return search_object(search, end) | {"reply": search.reply}

    return json_response(await kept.do(kept.owner(request), shown))


@router.delete("/v1/searches/{search_id}")
async def delete_search(search_id: str, request: Request, kept: ServedStore) -> Response:
    """Forgets a search with its events and its reply, or the response that it is."""
    name = _own_id(search_id)
    await kept.do(kept.owner(request), lambda: kept.owned(request).searches.remove(name))
    return json_response({"id": search_id, "object": "search", "deleted": True})


@router.get("/v1/searches/{search_id}/events")
async def search_events(
    search_id: str,
    request: Request,
    kept: ServedStore,
    after: Annotated[int, Query(ge=0, description="Number of events that the client has already.")] = 0,
    last_event_id: Annotated[
        str | None, Header(description="The same as `after`, sent by a client that reconnects.")
    ] = None,
) -> Response:
    """All events of a search from its first on, and those that come while it runs; then how it ended."""
    known = int(last_event_id) if last_event_id and last_event_id.isdecimal() and len(last_event_id) < 10 else after
    owner = kept.owner(request)
    search = await kept.do(owner, lambda: _named(search_id, request, kept))
    return LimitedStream(kept, owner, followed(kept, owner, search, known))


class LimitedStream(EventStream):
    """A stream of events. Limits the concurrent streams of an owner."""

    def __init__(self, kept: StoreAccess, owner: str, events: AsyncIterator[ServerSentEvent]) -> None:
        super().__init__(events)
        self._kept = kept
        self._owner = owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._kept.streams.one(self._owner):
                await super().__call__(scope, receive, send)
        except Busy as error:
            await error.response()(scope, receive, send)


async def followed(kept: StoreAccess, owner: str, search: Search, known: int = 0) -> AsyncIterator[ServerSentEvent]:
    """Yields the events after the first ``known``, each with its number, then the search itself."""
    number = 0

    def result(end: SearchEnd) -> dict[str, Any]:
        return search_object(search, end) | {"reply": search.reply}

    try:
        async for told in events_and_end(kept, owner, search):
            if isinstance(told, SearchEnd):
                shown = await kept.do(owner, partial(result, told))
                yield ServerSentEvent(dumps({"search": shown}), sep="\n")
                yield sse(DONE)
                continue
            number += 1
            if number > known:
                yield ServerSentEvent(f'{{"search_event":{told}}}', id=str(number), sep="\n")
    except Exception as error:
        yield sse(api_error(error).body)


async def events_and_end(kept: StoreAccess, owner: str, search: Search) -> AsyncIterator[str | SearchEnd]:
    """Streams the stored events of a search as JSON, following it while it runs; last comes how it ended.

    It ends with the search, which ends by its own time limit or with the process that runs it.

    Raises:
        Unavailable, NotThere: see `StoreAccess.do` and `Search.end`.
    """
    offset = 0

    def look() -> tuple[SearchEnd | None, Events]:
        # In this order: when the end is there, all events are too.
        return search.end, search.events(offset)

    while True:
        end, events = await kept.do(owner, look)
        offset = events.offset
        for line in events.lines:
            yield line
        if not events.lines:
            if end is not None:
                yield end
                return
            await asyncio.sleep(LOOK_EVERY_S)


def search_object(search: Search, end: SearchEnd | None) -> dict[str, Any]:
    """Returns a ``search`` object. ``end``: how the search ended; None while it runs."""
    record, last = search.record, search.last_event()
    return {
        "id": record.id,
        "object": "search",
        "created_at": int(record.created),
        "ended_at": None if end is None else int(end.ended),
        "status": "running" if end is None else end.status.value,
        "model": record.model,
        "strategy": record.strategy,
        "n": record.n,
        "prompt_tokens": record.prompt_tokens,
        "question": record.question,
        "nodes": last.get("nodes", 0) if last else 0,
        "generated_tokens": last.get("tokens", 0) if last else 0,
        "error": None if end is None else end.error,
    }


def _named(name: str, request: Request, kept: StoreAccess) -> Search:
    """Returns the stored search with an id, its own or its reply's.

    Raises:
        NotThere: the search was not stored, or belongs to another key.
    """
    return kept.owned(request).searches.get(_own_id(name))


def _own_id(name: str) -> str:
    """Returns a search's id from its own or its reply's."""
    for prefix in REPLY_ID_PREFIXES:
        name = name.removeprefix(prefix)
    return name
