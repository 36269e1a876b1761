"""The end of serving: what has begun is finished or told that it is not, and nothing else begins."""

import asyncio

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from deployments.admission.stopping import OpenRequests, StoppingMiddleware

pytestmark = pytest.mark.asyncio


class Server:
    """An application with a request that ends when it is told to."""

    def __init__(self) -> None:
        self.open_requests = OpenRequests()
        self.begun = asyncio.Event()
        self.done = asyncio.Event()
        app = FastAPI()
        app.get("/search")(self.search)
        app.add_middleware(StoppingMiddleware, open_requests=self.open_requests)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")

    async def search(self) -> str:
        self.begun.set()
        await self.done.wait()
        return "answer"


async def test_what_has_begun_is_finished_and_others_are_told() -> None:
    server = Server()
    asking = asyncio.create_task(server.client.get("/search"))
    await server.begun.wait()
    closing = asyncio.create_task(server.open_requests.close(60.0))
    await asyncio.sleep(0)
    refused = await server.client.get("/search")
    assert refused.status_code == 503
    assert refused.headers["Retry-After"] == "1"
    assert refused.json()["error"]["code"] == "stopping"
    assert not closing.done()
    server.done.set()
    assert (await asking).json() == "answer"
    await closing


async def test_what_is_not_finished_in_time_is_told_so() -> None:
    server = Server()
    asking = asyncio.create_task(server.client.get("/search"))
    await server.begun.wait()
    await server.open_requests.close(0.01)
    reply = await asking
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "stopping")


async def test_a_stream_that_is_not_finished_in_time_ends_without_its_end() -> None:
    sent: list[Message] = []
    begun = asyncio.Event()

    async def send(message: Message) -> None:
        sent.append(message)

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"step", "more_body": True})
        begun.set()
        await asyncio.Event().wait()

    async def receive() -> Message:
        raise AssertionError("nobody asks for a body")

    open_requests = OpenRequests()
    streaming = asyncio.create_task(StoppingMiddleware(stream, open_requests)({"type": "http"}, receive, send))
    await begun.wait()
    await open_requests.close(0.01)
    await streaming
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]


async def test_a_door_that_nobody_has_entered_closes_at_once() -> None:
    server = Server()
    await asyncio.wait_for(server.open_requests.close(60.0), 10)
    assert (await server.client.get("/search")).status_code == 503
