"""``/v1/responses``: OpenAI's Responses API for text; with a store, responses in the background and conversations."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response
from starlette.types import Scope

from deployments.admission.auth import is_job, key_of
from deployments.admission.body_threads import by_size
from deployments.admission.clients import client_of
from deployments.admission.disconnect import while_connected
from deployments.admission.errors import BadRequest, Unavailable
from deployments.admission.middleware import slot_of, taken_over
from deployments.http.chat.cached_search import answering
from deployments.http.chat.recorded_search import RecordedSearch, RecordedStream
from deployments.http.chat.schema import ChatRequest
from deployments.http.endpoint import Endpoint, Served, ServedStore
from deployments.http.errors import api_error
from deployments.http.replies import Json, json_response
from deployments.http.responses.reply import ResponseReply
from deployments.http.responses.schema import ResponsesRequest, Turn, spoken_of
from deployments.http.responses.stored_responses import (
    PREFIX,
    PREVIOUS,
    conversation,
    followed,
    input_items,
    stored_response,
)
from deployments.http.searches.stored_searches import LOOK_EVERY_S, LimitedStream
from deployments.http.store_access import After, Limit, page
from deployments.http.streaming import EventStream, SearchStream
from deployments.service.searches import SearchJob
from deployments.service.slots import Slot
from deployments.store import Damaged, StoreError

router = APIRouter()

CANCEL_S = 5.0
"""Longest wait for a cancelled search to end, which its controller does at the next look at the store."""


@router.post("/v1/responses")
async def create_response(request: Request, served: Served) -> Response:
    """As chat completions, in the words of OpenAI's Responses API: text in, text out."""
    asked = await served.prepared(request, lambda given: ResponsesRequest.parse(given, served.jobs.unknown_fields))
    stores = _stores(asked, served, request.scope)
    earlier = await _earlier(asked, served, request)

    def prepare() -> tuple[ChatRequest, SearchJob]:
        chat = asked.chat(earlier)
        with spoken_of(asked, len(earlier)):
            return chat, served.jobs.search(chat, key_of(request.scope))

    sizes = [len(await request.body()), *(len(turn["content"] or "") for turn in earlier)]
    chat, job = await by_size(prepare, sum(sizes), client_of(request.scope))
    served.searches.check(job, slot_of(request.scope))
    if job.json_schema:
        with spoken_of(asked, len(earlier)):
            await served.check_schema(job, request)
    head = served.jobs.head(chat, job, f"resp_{job.search_id}", asked)
    reply = ResponseReply(asked, job.settings, head, stores)
    searching = answering(request, served, chat, job)
    slot = slot_of(request.scope)
    if stores and served.kept is not None:
        # It has a reply of its own: a stream that the client has not read yet may be behind the search.
        kept_reply = ResponseReply(asked, job.settings, head, stores)
        owner = served.kept.owner(request)
        keeping = RecordedSearch(searching, served.kept, owner, head, kept_reply, reply.unstored)
        if asked.background:
            return await _in_background(request, served, keeping, job, reply)
        try:
            await keeping.begin(job)
        except (Unavailable, StoreError) as error:
            if asked.store:
                raise
            # Nobody asked for it to be stored.
            reply.unstored(api_error(error).message)
        else:
            if asked.stream:
                return RecordedStream(keeping, job, request.scope, reply)
            try:
                outcome = await while_connected(request.receive, keeping.search(job, slot))
            finally:
                keeping.leave()
            return json_response(reply.ended(outcome))
    if asked.stream:
        return SearchStream(searching, job, request.scope, reply)
    outcome = await while_connected(request.receive, searching.search(job, slot))
    return json_response(reply.ended(outcome))


@router.get("/v1/responses/{response_id}")
async def get_response(
    response_id: str,
    request: Request,
    kept: ServedStore,
    stream: bool = False,
    starting_after: Annotated[int, Query(ge=-1, description="Number of the last event that the client has.")] = -1,
) -> Response:
    """How a response is; with `stream`, its events."""
    owner = kept.owner(request)
    if not stream:
        searches = kept.owned(request).searches
        return json_response(await kept.do(owner, lambda: stored_response(searches, response_id).now()))

    stored = await kept.do(owner, lambda: stored_response(kept.owned(request).searches, response_id))
    if not stored.begun.streamed:
        message = "only a response that was requested with stream can be streamed again"
        raise BadRequest(message, "stream", "unsupported_value")
    return LimitedStream(kept, owner, followed(kept, owner, stored, starting_after))


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, request: Request, kept: ServedStore) -> Response:
    """Forgets a response; one in the background is cancelled."""

    def delete() -> None:
        searches = kept.owned(request).searches
        with suppress(Damaged):
            stored_response(searches, response_id)
        searches.remove(response_id.removeprefix(PREFIX))

    await kept.do(kept.owner(request), delete)
    return json_response({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(response_id: str, request: Request, kept: ServedStore) -> Response:
    """Ends a response in the background; one that has ended stays as it is."""
    owner = kept.owner(request)

    def cancelled() -> Json:
        stored = stored_response(kept.owned(request).searches, response_id)
        shown = stored.now()
        if not shown["background"]:
            raise BadRequest("only a response in the background can be cancelled; end the others by disconnecting")
        if shown["status"] == "in_progress":
            stored.search.cancel()
        return shown

    shown = await kept.do(owner, cancelled)
    with suppress(TimeoutError):
        async with asyncio.timeout(CANCEL_S):
            while shown["status"] == "in_progress":
                await asyncio.sleep(LOOK_EVERY_S)
                shown = await kept.do(owner, cancelled)
    return json_response(shown)


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(
    response_id: str,
    request: Request,
    kept: ServedStore,
    after: After = None,
    limit: Limit = 20,
    order: Literal["asc", "desc"] = "desc",
) -> Response:
    """The messages of a response's own input, the last first."""

    def shown() -> dict[str, Any]:
        items = input_items(stored_response(kept.owned(request).searches, response_id).begun)
        return page(items if order == "asc" else items[::-1], lambda item: item.json, after, limit)

    return json_response(await kept.do(kept.owner(request), shown))


def _stores(asked: ResponsesRequest, served: Endpoint, scope: Scope) -> bool:
    """Returns whether the response is stored: if requested or, where nothing is said, unless it is a job's.

    Raises:
        BadRequest: it must be stored and is not.
    """
    if asked.background and asked.store is False:
        raise BadRequest("background is only for responses that are stored: store must not be false", "background")
    if served.kept is None:
        none = "responses are not stored here: the operator has not set controller.store.path"
        if asked.background:
            raise BadRequest(f"background is not supported: {none}", "background", "store_disabled")
        if asked.previous_response_id:
            message = f"{PREVIOUS} is not supported: {none}; send the conversation in input"
            raise BadRequest(message, PREVIOUS, "store_disabled")
        return False
    if asked.background and is_job(scope):
        raise BadRequest("background must be false in a batch, which runs in the background itself", "background")
    return not is_job(scope) if asked.store is None and not asked.background else asked.store is not False


async def _earlier(asked: ResponsesRequest, served: Endpoint, request: Request) -> Sequence[Turn]:
    """Returns the conversation of the previous response; empty without one.

    Raises:
        BadRequest: see `conversation`.
        Unavailable: the store failed.
    """
    if served.kept is None or not asked.previous_response_id:
        return ()
    searches, limits = served.kept.owned(request).searches, served.live.now.limits
    found = partial(conversation, searches, asked.previous_response_id, limits.body_bytes)
    return await served.kept.do(served.kept.owner(request), found)


async def _in_background(
    request: Request, served: Endpoint, searching: RecordedSearch, job: SearchJob, reply: ResponseReply
) -> Response:
    """Starts a search that outlives its request, in the request's slot, and returns the reply.

    Raises:
        Unavailable: the store failed.
    """
    assert served.kept is not None
    kept, owner = served.kept, served.kept.owner(request)
    await searching.begin(job)
    # Nothing is awaited between these two lines: the slot has an owner at any time.
    kept.later(_run(served, searching, job, slot_of(request.scope), taken_over(request.scope)))
    await asyncio.sleep(0)  # it registers as open before this request leaves
    if not reply.record.streamed:
        return json_response(reply.begun)
    stored = await kept.do(owner, lambda: stored_response(kept.owned(request).searches, reply.begun["id"]))
    return EventStream(followed(kept, owner, stored))


async def _run(
    served: Endpoint, searching: RecordedSearch, job: SearchJob, slot: Slot, admitted: AsyncExitStack
) -> None:
    """Runs a search in the background. Its errors are stored with the response."""
    async with admitted:
        with suppress(Exception):
            async with served.open_requests.one():
                await searching.search(job, slot)
