"""``/v1/chat/completions`` and ``/v1/completions``, and the search of a chat request for all routes that run one."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from deployments.admission.auth import key_of
from deployments.admission.disconnect import while_connected
from deployments.admission.middleware import slot_of
from deployments.http import replies
from deployments.http.chat.cached_search import answering
from deployments.http.chat.recorded_search import RecordedSearch, RecordedStream
from deployments.http.chat.schema import ChatRequest, CompletionBody
from deployments.http.documentation import body_of
from deployments.http.endpoint import Endpoint, Served
from deployments.http.replies import json_response
from deployments.http.streaming import Searching, SearchStream
from deployments.service.completions import CompletionJob
from deployments.service.searches import SearchJob

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request, served: Served) -> Response:
    """One question in, a better answer out; streamed, the tree as it grows."""
    chat, job, head = await search_job(request, served)
    slot = slot_of(request.scope)
    searching = recording(request, served, chat, head, answering(request, served, chat, job))
    if chat.stream:
        chunks = replies.Chunks(head, bool(chat.stream_options and chat.stream_options.include_usage))
        if isinstance(searching, RecordedSearch):
            await searching.begin(job)  # a store that cannot be written is a status, not an event
            return RecordedStream(searching, job, request.scope, chunks)
        return SearchStream(searching, job, request.scope, chunks)
    outcome = await while_connected(request.receive, searching.search(job, slot))
    return json_response(replies.completion(head, outcome))


@router.post("/v1/completions", openapi_extra=body_of(CompletionBody))
async def text_completions(request: Request, served: Served) -> Response:
    """Token-level beam search: each prompt's likeliest continuations."""

    def prepare(given: dict[str, Any]) -> tuple[CompletionBody, CompletionJob]:
        body = CompletionBody.parse(given, served.jobs.unknown_fields)
        return body, served.jobs.completion(body, key_of(request.scope))

    body, job = await served.prepared(request, prepare)
    found = await while_connected(request.receive, served.completions.complete(job, slot_of(request.scope)))
    reply_id = f"cmpl-{job.request.search_id}"
    return json_response(replies.text_completion(reply_id, replies.now(), body.model, job.n, job.prompt_tokens, found))


async def search_job(request: Request, served: Endpoint) -> tuple[ChatRequest, SearchJob, replies.Head]:
    """Parses a chat request and returns it with its job and the head of its reply.

    Raises:
        ApiError: the request is invalid; see `Jobs.search` and `Endpoint.check_schema`.
        HarmfulRequest, BudgetTooSmall: see `SearchService.check`.
    """

    def prepare(given: dict[str, Any]) -> tuple[ChatRequest, SearchJob]:
        chat = ChatRequest.parse(given, served.jobs.unknown_fields)
        return chat, served.jobs.search(chat, key_of(request.scope))

    chat, job = await served.prepared(request, prepare)
    served.searches.check(job, slot_of(request.scope))  # before a stream begins
    if job.json_schema:
        await served.check_schema(job, request)
    return chat, job, served.jobs.head(chat, job, f"chatcmpl-{job.search_id}")


def recording(
    request: Request, served: Endpoint, chat: ChatRequest, head: replies.Head, searches: Searching
) -> Searching:
    """Returns what runs the search. It stores events and reply if the request asks for it and there is a store."""
    if served.kept is None or not chat.store:
        return searches
    return RecordedSearch(searches, served.kept, served.kept.owner(request), head)
