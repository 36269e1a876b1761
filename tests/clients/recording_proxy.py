"""A recording proxy between clients and the endpoint: everything passes unchanged, and requests are recorded."""

import asyncio
import json
import socket
import threading
import time
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
"""Headers that are passed on."""


class Recorded(NamedTuple):
    """A request and its reply."""

    path: str
    body: dict[str, Any]
    status: int
    pieces: list[tuple[float, bytes]]
    """The reply as it arrives: seconds after the request, and bytes."""


class RecordingProxy:
    """Records every request for work."""

    def __init__(self, endpoint: str) -> None:
        self.url = ""
        self.recorded: list[Recorded] = []
        self._endpoint = endpoint

    async def forward(self, request: Request) -> StreamingResponse:
        content = await request.body()
        began = time.monotonic()
        client = httpx.AsyncClient(timeout=REPLY_S, trust_env=False)
        headers = {name: request.headers[name] for name in KEPT if name in request.headers}
        query = f"?{request.url.query}" if request.url.query else ""
        url = f"{self._endpoint}{request.url.path}{query}"
        reply = await client.send(
            client.build_request(request.method, url, content=content, headers=headers), stream=True
        )
        arrived: list[tuple[float, bytes]] = []
        if request.method == "POST" and request.url.path in WORK:
            self.recorded.append(Recorded(request.url.path, json.loads(content), reply.status_code, arrived))

        async def pieces() -> AsyncIterator[bytes]:
            async with aclosing(client), aclosing(reply):
                async for piece in reply.aiter_raw():
                    arrived.append((time.monotonic() - began, piece))
                    yield piece

        return StreamingResponse(pieces(), reply.status_code, media_type=reply.headers.get("content-type"))


@contextmanager
def recording_proxy(endpoint: str) -> Iterator[RecordingProxy]:
    """A recording proxy in front of an endpoint, on a port of the loopback interface."""
    proxy = RecordingProxy(endpoint)
    app = Starlette(routes=[Route("/{path:path}", proxy.forward, methods=["DELETE", "GET", "POST"])])
    with listening(app, "recording-proxy") as url:
        proxy.url = url
        yield proxy


@contextmanager
def listening(app: Starlette, name: str) -> Iterator[str]:
    """Serves an application on a thread within the block; yields its URL."""
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
