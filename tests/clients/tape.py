"""A tape between clients and the endpoint: who asks what was asked before gets the reply that was given then."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.clients.passage import REPLY_S, listening


class Tape:
    """Records the first reply to every question under every model's name, and plays it to whoever asks again, whatever
    else they ask for. What is not a question goes through."""

    def __init__(self, endpoint: str) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        """The bodies of all questions, in order of arrival."""
        self.failures: list[str] = []
        self._replies: dict[tuple[str, str], Response] = {}
        self._endpoint = endpoint

    @property
    def replies(self) -> list[dict[str, Any]]:
        return [json.loads(bytes(reply.body)) for reply in self._replies.values()]

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        # The name without the alias: `banyan eval` says in the search field what lm-eval says in the model's name.
        key = (body["model"].partition(":")[0], body["messages"][-1]["content"])
        if key not in self._replies:
            reply = await self._passed(request, json=body)
            if reply.status_code != httpx.codes.OK:
                self.failures.append(bytes(reply.body).decode())
                return reply
            self._replies[key] = reply
        return self._replies[key]

    async def other(self, request: Request) -> Response:
        return await self._passed(request)

    async def _passed(self, request: Request, **content: Any) -> Response:
        async with httpx.AsyncClient(timeout=REPLY_S, trust_env=False) as client:
            reply = await client.request(request.method, f"{self._endpoint}{request.url.path}", **content)
        return Response(reply.content, reply.status_code, media_type=reply.headers.get("content-type"))


@contextmanager
def recording(endpoint: str) -> Iterator[Tape]:
    """A new tape before an endpoint, on a port of the loopback interface."""
    tape = Tape(endpoint)
    routes = [
        Route("/v1/chat/completions", tape.chat, methods=["POST"]),
        Route("/{path:path}", tape.other, methods=["GET"]),
    ]
    with listening(Starlette(routes=routes), "tape") as url:
        tape.url = url
        yield tape
