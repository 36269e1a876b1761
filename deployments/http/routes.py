"""The HTTP routes. A handler parses its request, calls a service, and writes the reply."""

import re
from copy import copy
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from deployments.admission.auth import ApiKeys, RequireKey, check_operator, key_of
from deployments.admission.body import validated
from deployments.admission.disconnect import while_connected
from deployments.admission.errors import BadRequest
from deployments.admission.middleware import Admission, place_of
from deployments.admission.normalize import Normalize
from deployments.admission.origins import CheckOrigin
from deployments.admission.proxy import WORK
from deployments.admission.refusals import CountRefusals
from deployments.http import batches, documentation, errors, files, page_routes, replies, response_routes, searches
from deployments.http.cached_search import answering
from deployments.http.documentation import body_of, search_body
from deployments.http.endpoint import Endpoint, Served
from deployments.http.kept_search import KeptSearch, KeptStream
from deployments.http.replies import json_response
from deployments.http.responses_schema import ResponsesRequest
from deployments.http.schema import ChatRequest, CompletionBody, ScoreBody
from deployments.http.streaming import Searching, SearchStream
from deployments.http.tree_reply import BytesResponse, with_tree
from deployments.service.completions import CompletionJob
from deployments.service.searches import ScoreJob, SearchJob

router = APIRouter()


def create_app(endpoint: Endpoint, keys: ApiKeys | None) -> FastAPI:
    """Returns the endpoint as an ASGI application. Without ``keys`` it checks none, for trusted callers."""
    app = FastAPI(title="Banyan", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.endpoint = endpoint
    documentation.add_page(app)
    page_routes.add_page(app, keys, keeps=endpoint.kept is not None)
    # Copies of finished routes: `include_router` would build each route again, which takes longer than many requests.
    for each in (router, response_routes.router, files.router, batches.router, searches.router):
        app.router.routes += map(copy, each.routes)
    admission = Admission(endpoint.searches.places, endpoint.quotas, endpoint.loop_delay, endpoint.live)
    bodies: dict[Any, type[BaseModel]] = {
        chat_completions: ChatRequest,
        search: ChatRequest,
        response_routes.create_response: ResponsesRequest,
    }
    for route in app.routes:
        if isinstance(route, Route):
            # Starlette's pattern ends with $, which also matches before a newline: all else compares whole paths.
            route.path_regex = re.compile(route.path_regex.pattern.removesuffix("$") + r"\Z")
        if isinstance(route, APIRoute) and route.path in WORK:
            route.app = admission.guard(route.app)
        if isinstance(route, APIRoute) and route.endpoint in bodies:
            route.openapi_extra = search_body(bodies[route.endpoint], endpoint.strategies)
    errors.install(app)
    # The middleware added last runs first: normalize, count refusals, find the client's address, check the origin and
    # the key.
    if keys is not None:
        app.add_middleware(RequireKey, keys=keys)
        app.add_middleware(CheckOrigin, keys=keys, allowed=endpoint.allowed_origins, host=endpoint.host)
        if endpoint.trusted_proxies:
            app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(endpoint.trusted_proxies))
    app.add_middleware(CountRefusals, refused=endpoint.refused)
    app.add_middleware(Normalize)
    return app


@router.post("/v1/chat/completions")
async def chat_completions(request: Request, served: Served) -> Response:
    """One question in, a better answer out; streamed, the tree as it grows."""
    chat, job = await _search(request, served)
    head, place = _head(served, chat, job), place_of(request.scope)
    searching = _searching(request, served, chat, head, answering(request, served, chat, job))
    if chat.stream:
        chunks = replies.Chunks(head, bool(chat.stream_options and chat.stream_options.include_usage))
        if isinstance(searching, KeptSearch):
            await searching.begin(job)  # a store that cannot be written is a status, not an event
            return KeptStream(searching, job, request.scope, chunks)
        return SearchStream(searching, job, request.scope, chunks)
    outcome = await while_connected(request.receive, searching.search(job, place))
    return json_response(replies.completion(head, outcome))


@router.post("/v1/search")
async def search(request: Request, served: Served) -> Response:
    """As chat completions, plain, with the whole tree in the reply."""
    chat, job = await _search(request, served)
    if chat.stream:
        raise BadRequest("a tree is not streamed; use /v1/chat/completions", "stream", "unsupported_value")
    head = _head(served, chat, job)
    # Not from the answer cache, which has no trees.
    searching = _searching(request, served, chat, head, served.searches)
    outcome = await while_connected(request.receive, searching.search(job, place_of(request.scope)))
    reply = replies.completion(head, outcome)
    if job.settings.logprobs:
        reply["prompt_token_ids"] = list(job.prompt)
    return BytesResponse(await with_tree(reply, outcome.tree))


@router.post("/v1/completions", openapi_extra=body_of(CompletionBody))
async def text_completions(request: Request, served: Served) -> Response:
    """Token-level beam search: each prompt's likeliest continuations."""

    def prepare(given: dict[str, Any]) -> tuple[CompletionBody, CompletionJob]:
        body = CompletionBody.parse(given, served.jobs.unknown_fields)
        return body, served.jobs.completion(body, key_of(request.scope))

    body, job = await served.prepared(request, prepare)
    found = await while_connected(request.receive, served.completions.complete(job, place_of(request.scope)))
    reply_id = f"cmpl-{job.request.search_id}"
    return json_response(replies.text_completion(reply_id, replies.now(), body.model, job.n, job.prompt_tokens, found))


@router.post("/v1/score", openapi_extra=body_of(ScoreBody))
async def score(request: Request, served: Served) -> Response:
    """The process reward of each step of a given path."""

    def prepare(given: dict[str, Any]) -> tuple[ScoreBody, ScoreJob]:
        body = validated(ScoreBody, given)
        return body, served.jobs.scoring(body, key_of(request.scope))

    body, job = await served.prepared(request, prepare)
    outcome = await while_connected(request.receive, served.searches.score(job, place_of(request.scope)))
    return json_response(replies.rewards(body.model or served.served_name, outcome))


@router.get("/v1/models")
async def models(served: Served) -> Response:
    """The served model, and examples of its search aliases."""
    return json_response(replies.models(served.served_name, served.started))


@router.get("/v1/models/{name:path}")
async def model(name: str, served: Served) -> Response:
    """The served model under one of its names."""
    served.jobs.check_model(name)
    return json_response(replies.model(name, served.started))


@router.get("/v1/status")
async def status(request: Request, served: Served) -> Response:
    """Counters of every replica, and what the integrity checks find; for the operator alone."""
    check_operator(request.scope)
    return json_response(await served.operations.status())


@router.get("/health")
async def healthy(served: Served) -> Response:
    """200 when a canary token was written and a canary step scored, else 503."""
    components = await served.health.components()
    ok = all(component.ok for component in components.values())
    body = {
        "status": "ok" if ok else "failed",
        "components": {name: component.json for name, component in components.items()},
    }
    return JSONResponse(body, status_code=200 if ok else 503)


async def _search(request: Request, served: Endpoint) -> tuple[ChatRequest, SearchJob]:
    """Parses a chat request and returns it with its job.

    Raises:
        ApiError: the request is invalid; see `Jobs.search` and `Endpoint.check_schema`.
        HarmfulRequest: it asks the same as a request that ended two engines.
    """

    def prepare(given: dict[str, Any]) -> tuple[ChatRequest, SearchJob]:
        chat = ChatRequest.parse(given, served.jobs.unknown_fields)
        return chat, served.jobs.search(chat, key_of(request.scope))

    chat, job = await served.prepared(request, prepare)
    served.searches.check(job, place_of(request.scope))  # before a stream begins
    if job.json_schema:
        await served.check_schema(job, request)
    return chat, job


def _searching(
    request: Request, served: Endpoint, chat: ChatRequest, head: replies.Head, searches: Searching
) -> Searching:
    """Returns what runs the search. It stores events and reply if the request asks for it and there is a store."""
    if served.kept is None or not chat.store:
        return searches
    return KeptSearch(searches, served.kept, served.kept.owner(request), head)


def _head(served: Endpoint, chat: ChatRequest, job: SearchJob) -> replies.Head:
    return served.jobs.head(chat, job, f"chatcmpl-{job.search_id}")
