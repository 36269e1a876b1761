"""Nothing waits without bound between the proxy and a controller: replies wait for their readers, bodies for the
application."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from http_world import World, chat
from uvicorn.server import ServerState

from deployments.admission import flow, protocol, proxy_flow
from deployments.admission.flow import PIECE_BYTES, Flow
from deployments.admission.protocol import MIN_READ_BYTES_PER_S, STALL_S, BoundedProtocol
from deployments.admission.proxy_flow import BODY_WINDOW_BYTES, FLOW, REPLY_WINDOW_BYTES, TAKEN, WAKE, ProxyFlow

pytestmark = pytest.mark.asyncio
App = Callable[[Any, Any, Any], Any]
LONG = 8 << 20


class Serve:
    """What Serve does between a proxy and a replica: two queues without bound."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.body_bytes = self.reply_bytes = 0
        """Most bytes that waited in a queue."""
        self.error: BaseException | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert WAKE not in scope, "it cannot be pickled"
        bodies: asyncio.Queue[Any] = asyncio.Queue()
        replies: asyncio.Queue[Any] = asyncio.Queue()
        waiting = {"body": 0, "reply": 0}

        async def read() -> None:
            while True:
                message = await receive()
                waiting["body"] += len(message.get("body", b""))
                self.body_bytes = max(self.body_bytes, waiting["body"])
                bodies.put_nowait(message)
                if message["type"] == "http.disconnect":
                    return

        async def received() -> Any:
            message = await bodies.get()
            waiting["body"] -= len(message.get("body", b""))
            return message

        async def sending(message: Any) -> None:
            waiting["reply"] += len(message.get("body", b""))
            self.reply_bytes = max(self.reply_bytes, waiting["reply"])
            replies.put_nowait(message)

        reading = asyncio.create_task(read())
        working = asyncio.create_task(self._app(dict(scope), received, sending))
        working.add_done_callback(lambda _: replies.put_nowait(None))
        try:
            while (message := await replies.get()) is not None:
                await send(message)
                waiting["reply"] -= len(message.get("body", b""))
            self.error = working.exception()
        finally:
            reading.cancel()
            working.cancel()


@contextlib.asynccontextmanager
async def served(app: App) -> AsyncIterator[tuple[Serve, tuple[str, int]]]:
    serve = Serve(Flow(app))
    config = uvicorn.Config(ProxyFlow(serve), http=BoundedProtocol, lifespan="off", log_config=None, port=0)
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.001)
    try:
        yield serve, server.servers[0].sockets[0].getsockname()
    finally:
        server.should_exit = server.force_exit = True
        await running


async def asked(address: tuple[str, int], body: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*address, limit=1 << 14)
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return reader, writer


async def whole_body(receive: Any) -> int:
    size = 0
    while True:
        message = await receive()
        assert TAKEN not in message
        size += len(message["body"])
        if not message["more_body"]:
            return size


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


class Reply:
    """Replies with `LONG` bytes: in one part, or in many. With ``listening`` another task waits for the disconnect
    meanwhile, as Starlette's streams have one."""

    def __init__(self, part: int, *, listening: bool = False) -> None:
        self._part = part
        self._listening = listening
        self.sent = 0
        self.left = False
        self.ended: BaseException | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await whole_body(receive)

        async def leaving() -> None:
            assert (await receive())["type"] == "http.disconnect"
            self.left = True

        listener = asyncio.create_task(leaving()) if self._listening else None
        try:
            length = (b"content-length", b"%d" % LONG)
            await send({"type": "http.response.start", "status": 200, "headers": [length]})
            while self.sent < LONG:
                part = b"x" * self._part
                more = self.sent + self._part < LONG
                await send({"type": "http.response.body", "body": part, "more_body": more})
                self.sent += self._part
        except BaseException as error:
            self.ended = error
            raise
        finally:
            if listener:
                listener.cancel()


@pytest.mark.parametrize("part", [LONG, 1 << 20, 1 << 15])
@pytest.mark.parametrize("listening", [False, True])
async def test_a_reply_waits_for_its_reader_and_arrives_whole(part: int, listening: bool) -> None:
    app = Reply(part, listening=listening)
    async with served(app) as (serve, address):
        reader, writer = await asked(address)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        await until(lambda: serve.reply_bytes >= REPLY_WINDOW_BYTES)
        read = 0
        while some := await reader.read(1 << 16):
            read += len(some)
        writer.close()
        assert read == LONG
        assert serve.reply_bytes <= REPLY_WINDOW_BYTES + PIECE_BYTES


@pytest.mark.parametrize("listening", [False, True])
async def test_a_reader_that_stops_is_disconnected_and_the_application_learns_of_it(
    monkeypatch: pytest.MonkeyPatch, listening: bool
) -> None:
    monkeypatch.setattr(protocol, "STALL_S", 0.3)
    monkeypatch.setattr(protocol, "CHECK_S", 0.01)
    app = Reply(1 << 15, listening=listening)
    async with served(app) as (serve, address):
        _, writer = await asked(address)
        await until(lambda: app.ended is not None)
        assert app.sent < LONG
        assert serve.reply_bytes <= REPLY_WINDOW_BYTES + PIECE_BYTES
        await until(lambda: not BoundedProtocol._stalled)
        writer.close()


async def test_a_reader_that_reads_slowly_but_fast_enough_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on with what is read. One that reads more slowly is not."""
    loop, seconds, unsent = asyncio.get_running_loop(), 0, LONG
    begun = loop.time()
    monkeypatch.setattr(loop, "time", lambda: begun + seconds)
    transport = Mock(spec=asyncio.Transport)
    transport.get_extra_info.return_value = None
    transport.get_write_buffer_size.side_effect = lambda: unsent
    connection = BoundedProtocol(uvicorn.Config(Reply(1), lifespan="off", log_config=None), ServerState(), {})
    connection.connection_made(transport)
    connection._stop_timer()  # no request comes

    async def read(bytes_per_s: int) -> None:
        nonlocal seconds, unsent
        connection.pause_writing()
        for _ in range(3 * int(STALL_S)):
            seconds += 1
            unsent -= bytes_per_s
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # what is due by the clock is done by now
        connection.resume_writing()

    for _ in range(3):
        await read(MIN_READ_BYTES_PER_S)
        assert not transport.abort.called
    await read(MIN_READ_BYTES_PER_S // 2)
    assert transport.abort.called
    assert not BoundedProtocol._stalled


async def test_past_the_maximum_the_one_that_waits_longest_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "MAX_WAITING", 2)
    monkeypatch.setattr(flow, "PATIENCE_S", 0.0)
    apps = [Reply(LONG) for _ in range(3)]
    waiting = Flow(None)._waiting  # type: ignore[arg-type]

    async def forever() -> Any:
        await asyncio.sleep(60)

    async def one(app: Reply) -> None:
        first = True

        async def receive() -> Any:
            nonlocal first
            if first:
                first = False
                return {"type": "http.request", "body": b"", "more_body": False}
            return await forever()

        async def send(_: Any) -> None:
            pass

        reply = flow._ReplyFlow(receive, send, waiting)
        await app({"type": "http"}, reply.received, reply.sending)

    tasks = []
    for app in apps:
        tasks.append(asyncio.create_task(one(app)))
        await asyncio.sleep(0.01)
    await until(tasks[0].done)
    assert [task.done() for task in tasks] == [True, False, False]
    assert len(waiting._all) == 2
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert not waiting._all


async def test_of_many_stalled_connections_the_one_that_waits_longest_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "MAX_STALLED", 1)
    monkeypatch.setattr(protocol, "STALLED_PATIENCE_S", 0.0)
    apps: list[Reply] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        apps.append(Reply(1 << 15))
        await apps[-1](scope, receive, send)

    async with served(app) as (_, address):
        _, first = await asked(address)
        await until(lambda: len(BoundedProtocol._stalled) == 1)
        _, second = await asked(address)
        await until(lambda: apps[0].ended is not None)
        assert len(BoundedProtocol._stalled) == 1
        assert apps[1].ended is None
        first.close()
        second.close()


@pytest.mark.parametrize(
    ("path", "fields"),
    [("/v1/search", {}), ("/v1/chat/completions", {}), ("/v1/chat/completions", {"stream": True})],
)
async def test_a_client_that_does_not_read_holds_no_place(world: World, path: str, fields: dict[str, Any]) -> None:
    body = json.dumps(chat(**fields)).encode()
    arriving = [{"type": "http.request", "body": body, "more_body": False}]
    reads, held = asyncio.Event(), []

    async def receive() -> Any:
        return arriving.pop() if arriving else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            held.append(world.service.slots.held)
            await reads.wait()

    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": headers, "client": ("127.0.0.1", 1), "server": ("localhost", 80), "scheme": "http"}
    scope |= {"asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "root_path": "", "state": {}}
    request = asyncio.create_task(world.app(scope, receive, send))
    await until(lambda: bool(held) and world.service.slots.held == 0)
    assert not request.done()
    reads.set()
    await request
    world.assert_idle()


async def test_a_body_waits_for_the_application_and_arrives_whole() -> None:
    may_read = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert FLOW not in scope
        await may_read.wait()
        size = await whole_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % size})

    async with served(app) as (serve, address):
        reader, writer = await asked(address, b"x" * LONG)
        await until(lambda: serve.body_bytes > BODY_WINDOW_BYTES)
        may_read.set()
        assert b"%d" % LONG in await reader.read()
        writer.close()
        assert serve.body_bytes <= BODY_WINDOW_BYTES + (1 << 18)


async def test_a_body_that_nobody_reads_does_not_keep_the_reply_and_ends_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unread(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": []})
        await send({"type": "http.response.body", "body": b"no"})

    left: list[str] = []

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.3)
        while (message := await receive())["type"] == "http.request":
            await asyncio.sleep(0)
        left.append(message["type"])

    monkeypatch.setattr(proxy_flow, "TAKE_S", 0.1)
    monkeypatch.setattr(flow, "TELL_BODY_BYTES", LONG)
    for app, expected in ((unread, 1), (waits, 0)):
        async with served(app) as (_, address):
            reader, writer = await asked(address, b"x" * LONG)
            with contextlib.suppress(ConnectionError):
                assert (b"HTTP/1.1 413" in await reader.read()) == bool(expected)
            writer.close()
    assert left == ["http.disconnect"]


async def test_an_application_that_does_not_count_gets_plain_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_flow, "ANNOUNCE_S", 0.05)
    has_read, arrived = asyncio.Event(), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await until(lambda: serve.body_bytes == LONG)
        await whole_body(Plain(receive))
        listening = asyncio.create_task(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64):
            await send({"type": "http.response.body", "body": b"x" * (1 << 16), "more_body": True})
        await has_read.wait()
        arrived.append(listening.done())
        listening.cancel()
        await send({"type": "http.response.body"})

    class Plain:
        def __init__(self, receive: Any) -> None:
            self._receive = receive

        async def __call__(self) -> Any:
            message = await self._receive()
            return {name: value for name, value in message.items() if name != TAKEN}

    async with served(app) as (serve, address):
        serve._app = app
        reader, writer = await asked(address, b"x" * LONG)
        size = 0
        while some := await reader.read(1 << 16):
            size += len(some)
            if size > 4 << 20:
                has_read.set()
        writer.close()
        assert arrived == [False]


async def test_short_requests_and_replies_have_no_messages_of_flow_control() -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await whole_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 1000})

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        async def sending(message: Any) -> None:
            sent.append(message["type"])
            await send(message)

        await Flow(app)(scope, receive, sending)

    woken: list[None] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"x" * 4000, "more_body": False}

    async def send(_: Any) -> None:
        pass

    await ProxyFlow(serve)({"type": "http", "headers": [], WAKE: lambda: woken.append(None)}, receive, send)
    assert sent == ["http.response.start", "http.response.body"]
    assert not woken
