"""``/v1/search``, a search with its whole tree, and ``/v1/score``, the rewards of a given path."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from deployments.admission.auth import key_of
from deployments.admission.disconnect import while_connected
from deployments.admission.errors import BadRequest
from deployments.admission.middleware import slot_of
from deployments.http import replies
from deployments.http.chat.routes import recording, search_job
from deployments.http.chat.schema import ScoreBody
from deployments.http.documentation import body_of
from deployments.http.endpoint import Served
from deployments.http.json_body import validated
from deployments.http.replies import json_response
from deployments.http.searches.tree_reply import BytesResponse, with_tree
from deployments.service.searches import ScoreJob

router = APIRouter()


@router.post("/v1/search")
async def search(request: Request, served: Served) -> Response:
    """As chat completions, plain, with the whole tree in the reply."""
    chat, job, head = await search_job(request, served)
    if chat.stream:
        raise BadRequest("a tree is not streamed; use /v1/chat/completions", "stream", "unsupported_value")
    # Not from the answer cache, which has no trees.
    searching = recording(request, served, chat, head, served.searches)
    outcome = await while_connected(request.receive, searching.search(job, slot_of(request.scope)))
    reply = replies.completion(head, outcome)
    if job.settings.logprobs:
        reply["prompt_token_ids"] = list(job.prompt.token_ids)
    return BytesResponse(await with_tree(reply, outcome.tree))


@router.post("/v1/score", openapi_extra=body_of(ScoreBody))
async def score(request: Request, served: Served) -> Response:
    """The process reward of each step of a given path."""

    def prepare(given: dict[str, Any]) -> tuple[ScoreBody, ScoreJob]:
        body = validated(ScoreBody, given)
        return body, served.jobs.scoring(body, key_of(request.scope))

    body, job = await served.prepared(request, prepare)
    outcome = await while_connected(request.receive, served.searches.score(job, slot_of(request.scope)))
    return json_response(replies.rewards(body.model or served.served_name, outcome))
