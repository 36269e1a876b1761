"""A proxy between clients and the endpoint that replays its first reply to every repeated question."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.clients.recording_proxy import REPLY_S, listening


class ReplayProxy:
    """Records the first reply to every question for each model name, and replays it to every later request with that
    question, whatever else the request contains. Other requests pass through."""

    def __init__(self, endpoint: str) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        """Bodies of all questions, in order of arrival."""
        self.failures: list[str] = []
        self._replies: dict[tuple[str, str], Response] = {}
        self._endpoint = endpoint

    @property
    def replies(self) -> list[dict[str, Any]]:
        return [json.loads(bytes(reply.body)) for reply in self._replies.values()]

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        # The name without the alias: `banyan eval` puts into the search field what lm-eval puts into the model's name.
        key = (body["model"].partition(":")[0], body["messages"][-1]["content"])
        if key not in self._replies:
            reply = await self._forward(request, json=body)
            if reply.status_code != httpx.codes.OK:
                self.failures.append(bytes(reply.body).decode())
                return reply
            self._replies[key] = reply
        return self._replies[key]

    async def other(self, request: Request) -> Response:
        return await self._forward(request)

    async def _forward(self, request: Request, **content: Any) -> Response:
        async with httpx.AsyncClient(timeout=REPLY_S, trust_env=False) as client:
            reply = await client.request(request.method, f"{self._endpoint}{request.url.path}", **content)
        return Response(reply.content, reply.status_code, media_type=reply.headers.get("content-type"))


@contextmanager
def replaying(endpoint: str) -> Iterator[ReplayProxy]:
    """A new proxy in front of an endpoint, on a port of the loopback interface."""
    proxy = ReplayProxy(endpoint)
    routes = [
        Route("/v1/chat/completions", proxy.chat, methods=["POST"]),
        Route("/{path:path}", proxy.other, methods=["GET"]),
    ]
    with listening(Starlette(routes=routes), "replay-proxy") as url:
        proxy.url = url
        yield proxy
