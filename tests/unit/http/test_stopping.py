"""Shutdown: requests that have begun are finished or get an error, and no other request begins."""

import asyncio

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from deployments.admission.stopping import OpenRequests, StoppingMiddleware

pytestmark = pytest.mark.asyncio


class Server:
    """An application with one request, which ends when the test says so."""

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


async def test_begun_requests_are_finished_and_new_ones_get_503() -> None:
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


async def test_a_request_not_finished_in_time_gets_503() -> None:
    server = Server()
    asking = asyncio.create_task(server.client.get("/search"))
    await server.begun.wait()
    await server.open_requests.close(0.01)
    reply = await asking
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "stopping")


async def test_a_stream_not_finished_in_time_is_cut_off() -> None:
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


async def test_without_open_requests_shutdown_is_immediate() -> None:
    server = Server()
    await asyncio.wait_for(server.open_requests.close(60.0), 10)
    assert (await server.client.get("/search")).status_code == 503


async def test_work_that_registers_while_the_server_stops_has_the_rest_of_the_grace_period() -> None:
    open_requests = OpenRequests()

    async def request() -> None:
        async with open_requests.one():
            await begun.wait()
            later.append(asyncio.create_task(work()))
            await asyncio.sleep(0)

    async def work() -> None:
        async with open_requests.one():
            await asyncio.sleep(60)

    later: list[asyncio.Task[None]] = []
    begun = asyncio.Event()
    asking = asyncio.create_task(request())
    await asyncio.sleep(0)
    closing = asyncio.create_task(open_requests.close(0.1))
    await asyncio.sleep(0)
    begun.set()
    await asyncio.wait_for(closing, 10)
    await asking
    with pytest.raises(TimeoutError):
        await later[0]
