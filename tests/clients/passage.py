"""A passage between clients and the endpoint: everything goes through as it comes, and what was asked is kept."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, NamedTuple

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from deployments.admission.proxy import WORK

START_S = 30.0
REPLY_S = 600.0
KEPT = ("authorization", "content-type")
"""Headers that go through."""


class Asked(NamedTuple):
    """A request and how it was answered."""

    path: str
    body: dict[str, Any]
    status: int


class Passage:
    """Notes every request for work on its way."""

    def __init__(self, endpoint: str) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        self._endpoint = endpoint

    async def passed(self, request: Request) -> StreamingResponse:
        content = await request.body()
        client = httpx.AsyncClient(timeout=REPLY_S, trust_env=False)
        headers = {name: request.headers[name] for name in KEPT if name in request.headers}
        query = f"?{request.url.query}" if request.url.query else ""
        url = f"{self._endpoint}{request.url.path}{query}"
        reply = await client.send(
            client.build_request(request.method, url, content=content, headers=headers), stream=True
        )
        if request.method == "POST" and request.url.path in WORK:
            self.asked.append(Asked(request.url.path, json.loads(content), reply.status_code))

        async def pieces() -> AsyncIterator[bytes]:
            async with aclosing(client), aclosing(reply):
                async for piece in reply.aiter_raw():
                    yield piece

        return StreamingResponse(pieces(), reply.status_code, media_type=reply.headers.get("content-type"))


@contextmanager
def noting(endpoint: str) -> Iterator[Passage]:
    """A passage to an endpoint, on a port of the loopback interface."""
    passage = Passage(endpoint)
    app = Starlette(routes=[Route("/{path:path}", passage.passed, methods=["DELETE", "GET", "POST"])])
    with listening(app, "passage") as url:
        passage.url = url
        yield passage


@contextmanager
def listening(app: Starlette, name: str) -> Iterator[str]:
    """The URL of an application that is served on a thread meanwhile."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), name=name)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(START_S)
            assert not thread.is_alive()
