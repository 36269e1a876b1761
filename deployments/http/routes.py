"""The routes of the HTTP contract."""

from typing import Any, Protocol

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import JSONResponse, Response

from deployments.completions import CompletionService
from deployments.http import errors, replies
from deployments.http.auth import ApiKeys, RequireKey
from deployments.http.body import read_object, validated
from deployments.http.disconnect import while_connected
from deployments.http.health import Health
from deployments.http.limits import LimitBody
from deployments.http.schema import ChatRequest, CompletionBody, ScoreBody
from deployments.http.streaming import SearchStream
from deployments.service import Job, SearchService
from search.run.report import SearchOutcome
from search.settings import search_schema
from search.snapshot import tree_as_json


class Backend(Protocol):
    """What the routes need beside the searches: a look at the whole application."""

    async def status(self) -> dict[str, Any]: ...


def create_app(
    service: SearchService, completions: CompletionService, health: Health, backend: Backend, keys: ApiKeys
) -> FastAPI:
    """The endpoint as an ASGI application."""
    app = FastAPI(title="Banyan", docs_url="/docs", redoc_url=None)
    app.include_router(_routes(service, completions, health, backend))
    errors.install(app)
    # The last one added is the first one asked: no key, no byte of the body.
    app.add_middleware(LimitBody, limit=service.config.controller.limits.body_bytes)
    app.add_middleware(RequireKey, keys=keys)
    return app


def _routes(service: SearchService, completions: CompletionService, health: Health, backend: Backend) -> APIRouter:
    routes = APIRouter()
    served_name = service.config.generator.served_name
    started = replies.now()
    chat_docs = _documented(_chat_schema())

    @routes.post("/v1/chat/completions", openapi_extra=chat_docs)
    async def chat_completions(request: Request) -> Response:
        """One question in, a better answer out; streamed, the tree as it grows."""
        chat = ChatRequest.parse(await read_object(request))
        job = service.prepare(chat)
        if chat.stream:
            include_usage = bool(chat.stream_options and chat.stream_options.include_usage)
            return SearchStream(service, job, head(chat, job), include_usage)
        return _json(replies.completion(head(chat, job), await outcome(request, job)))

    @routes.post("/v1/search", openapi_extra=chat_docs)
    async def search(request: Request) -> Response:
        """As chat completions, plain, with the whole tree in the reply."""
        chat = ChatRequest.parse(await read_object(request))
        if chat.stream:
            raise errors.BadRequest("a tree is not streamed; use /v1/chat/completions", "stream", "unsupported_value")
        job = service.prepare(chat)
        found = await outcome(request, job)
        return _json(replies.completion(head(chat, job), found) | {"tree": tree_as_json(found.tree)})

    @routes.post("/v1/completions", openapi_extra=_documented(CompletionBody.model_json_schema()))
    async def text_completions(request: Request) -> Response:
        """Token-level beam search: each prompt's likeliest continuations."""
        body = CompletionBody.parse(await read_object(request))
        job = completions.prepare(body)
        found = await while_connected(request, completions.complete(job))
        reply_id = f"cmpl-{job.request.search_id}"
        return _json(replies.text_completion(reply_id, replies.now(), body.model, job.n, job.prompt_tokens, found))

    @routes.post("/v1/score", openapi_extra=_documented(ScoreBody.model_json_schema()))
    async def score(request: Request) -> Response:
        """The process reward of each step of a given path."""
        body = validated(ScoreBody, await read_object(request))
        rewards = await while_connected(request, service.score(body))
        return _json(replies.rewards(served_name, rewards))

    @routes.get("/v1/models")
    async def models() -> Response:
        return _json(replies.models(served_name, started))

    @routes.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        service.check_model(name)
        return _json(replies.model(name, started))

    @routes.get("/v1/status")
    async def status() -> Response:
        """Counters of every replica, and what the integrity checks find; for operators and tests."""
        return _json(await backend.status())

    @routes.get("/health")
    async def healthy() -> Response:
        """200 when a canary token was written and a canary step judged, else 503."""
        components = await health.components()
        ok = all(component.ok for component in components.values())
        body = {
            "status": "ok" if ok else "failed",
            "components": {name: component.json for name, component in components.items()},
        }
        return JSONResponse(body, status_code=200 if ok else 503)

    def head(chat: ChatRequest, job: Job) -> replies.Head:
        strategy = job.settings.strategy
        return replies.Head(
            reply_id=f"chatcmpl-{job.search_id}",
            created=replies.now(),
            model=chat.model,
            strategy=strategy.name,
            n=getattr(strategy, "n", 1),
            prompt_tokens=len(job.prompt),
        )

    async def outcome(request: Request, job: Job) -> SearchOutcome:
        with service.place(job.search_id):
            return await while_connected(request, service.search(job))

    return routes


def _json(value: replies.Json) -> Response:
    return Response(replies.dumps(value), media_type="application/json")


def _chat_schema() -> dict[str, Any]:
    schema = ChatRequest.model_json_schema()
    search = search_schema()
    schema["$defs"] = {**schema.get("$defs", {}), **search.pop("$defs")}
    schema["properties"]["search"] = search
    return schema


def _documented(schema: dict[str, Any]) -> dict[str, Any]:
    """A request body for the OpenAPI page: the routes read theirs themselves, to name what is wrong in it."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _inlined(schema)}}}}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """References resolved in place: OpenAPI looks for them at the document's root, where these are not."""
    definitions = schema.get("$defs", {})

    def resolved(part: Any) -> Any:
        if isinstance(part, dict):
            if name := str(part.get("$ref", "")).removeprefix("#/$defs/"):
                return resolved(definitions[name])
            return {key: resolved(value) for key, value in part.items() if key not in ("$defs", "discriminator")}
        return [resolved(member) for member in part] if isinstance(part, list) else part

    inlined = resolved(schema)
    assert isinstance(inlined, dict)
    return inlined
