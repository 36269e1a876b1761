"""Bytes on a real socket: what the proxy's HTTP protocol refuses, and what of HTTP it speaks that uvicorn does not."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
import uvloop

from deployments.admission import protocol, proxy_bodies
from deployments.admission.protocol import MAX_HEADER_BYTES, MAX_HEADERS, MAX_PIPELINED, BoundedProtocol
from deployments.admission.proxy_bodies import MAX_BODY_BYTES, BodyLimits
from deployments.config import LimitSettings

Scope = Any
BODY = b'{"say": "hello"}'
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"


class Echo:
    """Replies with the request's method and body: ``/unread`` without reading it, ``/slow`` once it may, ``/stream``
    without a length."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.may_reply = threading.Event()
        self.left = threading.Event()
        """Whether a client has disconnected before its reply."""
        self.read = 0
        self.headers = 0

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        self.headers = len(scope["headers"])
        body = b""
        while scope["path"] != "/unread":
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            self.read += len(message["body"])
            if not message["more_body"]:
                break
        if scope["path"] == "/slow":
            may_reply, left = self.may_reply, self.left
            leaving = asyncio.create_task(receive())
            while not may_reply.is_set():
                await asyncio.sleep(0.005)
                if leaving.done():
                    left.set()
                    return
            leaving.cancel()
        told = json.dumps({"method": scope["method"], "body": body.decode()}).encode()
        framed = [] if scope["path"] == "/stream" else [(b"content-length", b"%d" % len(told))]
        await send({"type": "http.response.start", "status": 200, "headers": framed})
        await send({"type": "http.response.body", "body": told[:5], "more_body": True})
        await send({"type": "http.response.body", "body": told[5:], "more_body": False})


class Server:
    """The echo behind the protocol and the limits on bodies, in a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.echo = Echo()
        self.bodies = BodyLimits(self.echo)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        config = uvicorn.Config(self.bodies, http=BoundedProtocol, lifespan="off", log_config=None)
        self._server = uvicorn.Server(config)
        self._loop = loop
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self._loop.run_until_complete(self._server.serve(sockets=[self._listener]))
        self._loop.close()

    def stop(self) -> None:
        self.echo.may_reply.set()
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds its event loop: what is sent within the block arrives together with its connection."""
        holds, goes_on = threading.Event(), threading.Event()

        def hold() -> None:
            holds.set()
            goes_on.wait(60)

        self._loop.call_soon_threadsafe(hold)
        assert holds.wait(60)
        try:
            yield
        finally:
            goes_on.set()

    @property
    def connections(self) -> int:
        return len(self._server.server_state.connections)

    def open(self, *parts: bytes) -> socket.socket:
        """Opens a connection and sends each part in a packet of its own."""
        connection = socket.create_connection(self.address, 10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            connection.sendall(part)
            time.sleep(0.002)
        return connection

    def first_reply(self, *parts: bytes) -> bytes:
        with self.open(*parts) as connection:
            return one_reply(connection)

    def ask(self, *parts: bytes) -> bytes:
        """Returns everything that comes until the server closes the connection."""
        with self.open(*parts) as connection:
            return everything(connection)


def everything(connection: socket.socket) -> bytes:
    received = b""
    while part := connection.recv(1 << 16):
        received += part
    return received


def one_reply(connection: socket.socket) -> bytes:
    """Reads one reply, which has a content-length."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += _some(connection, 1)
    length = int(received.partition(b"content-length: ")[2].split(b"\r\n")[0])
    while length:
        part = _some(connection, length)
        received, length = received + part, length - len(part)
    return received


def _some(connection: socket.socket, most: int) -> bytes:
    part = connection.recv(most)
    assert part, "the server has closed the connection"
    return part


def json_of(reply: bytes) -> Any:
    return json.loads(reply.rpartition(b"\r\n\r\n")[2])


def error_of(reply: bytes) -> tuple[int, str]:
    """Status and code of an error in OpenAI's shape."""
    error = json_of(reply)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(reply.split(b" ", 2)[1]), error["code"]


def until(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(scope="module", params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def running(request: pytest.FixtureRequest) -> Iterator[Server]:
    """On the standard event loop, and on the one that Ray uses."""
    made = Server(request.param())
    yield made
    made.stop()


@pytest.fixture
def server(running: Server) -> Iterator[Server]:
    yield running
    running.echo.may_reply.set()
    until(lambda: running.connections == 0)
    running.echo.reset()


@pytest.fixture
def impatient(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Its time begins once a test has sent the first bytes of a connection, however long that takes."""
    monkeypatch.setattr(protocol, "REQUEST_S", 0.2)
    monkeypatch.setattr(protocol, "CHECK_S", 0.1)
    opened = server.open

    def held_open(*parts: bytes) -> socket.socket:
        with server.held():
            return opened(*parts)

    monkeypatch.setattr(server, "open", held_open)
    return server


def head(path: str = "/", *headers: bytes, method: str = "POST", version: str = "1.1") -> bytes:
    lines = [f"{method} {path} HTTP/{version}".encode(), b"Host: banyan", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


CLOSE = b"Connection: close"
LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


# Java


@pytest.mark.parametrize(("framing", "content"), [(LENGTH, BODY), (CHUNKED, CHUNKS)], ids=["length", "chunked"])
@pytest.mark.parametrize("packets", ["one", "two", "many"])
def test_an_upgrade_to_http2_is_ignored_and_the_body_arrives(
    server: Server, framing: bytes, content: bytes, packets: str
) -> None:
    whole = head("/", *H2C.splitlines(), framing) + content
    cut = whole.index(b"\r\n\r\n") + 4
    parts = {"one": [whole], "two": [whole[:cut], whole[cut:]], "many": [whole[i : i + 7] for i in range(0, 400, 7)]}
    with server.open(*parts[packets]) as connection:
        assert json_of(one_reply(connection)) == {"method": "POST", "body": BODY.decode()}
        connection.sendall(head("/", *H2C.splitlines(), method="GET"))  # the connection goes on
        assert json_of(one_reply(connection)) == {"method": "GET", "body": ""}
        connection.sendall((head("/", *H2C.splitlines(), framing) + content) * 2 + head("/", CLOSE, method="GET"))
        assert everything(connection).count(b"HTTP/1.1 200 OK") == 3


def test_there_are_no_websockets(server: Server) -> None:
    key = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
    asked = head("/", b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13", key, method="GET")
    with server.open(asked) as connection:
        assert json_of(one_reply(connection))["method"] == "GET"


def test_connect_is_refused(server: Server) -> None:
    assert error_of(server.ask(b"CONNECT banyan:443 HTTP/1.1\r\nHost: banyan\r\n\r\n")) == (400, "invalid_http")


# Limits on headers


def padded(size: int, *, lines: int = 1) -> bytes:
    return b"\r\n".join(b"X-Pad-%d: " % index + b"x" * (size // lines) for index in range(lines))


@pytest.mark.parametrize(
    "request_head",
    [
        head("/", padded(MAX_HEADER_BYTES)),
        head("/", padded(MAX_HEADER_BYTES, lines=20)),
        head("/", padded(MAX_HEADERS * 10, lines=MAX_HEADERS)),
        head("/" + "x" * MAX_HEADER_BYTES),
        head("/", padded(400_000))[:-4],
        b"\r\n" * MAX_HEADER_BYTES,
        head("/", b"X-Pad: ")[:-4] + b"y" * 5_000_000,
        head("/", CHUNKED) + b"1\r\nx\r\n0\r\nX-Trailer: " + b"z" * 1_000_000,
        head("/", CHUNKED) + b"1;extension=" + b"z" * 1_000_000,
    ],
    ids=["one", "twenty", "short ones", "path", "unfinished", "empty lines", "endless", "trailer", "chunk extension"],
)
def test_headers_over_a_limit_are_refused_and_the_refusal_arrives(server: Server, request_head: bytes) -> None:
    received = b""
    with server.open() as connection:
        threading.Thread(target=lambda: _send_all(connection, request_head), daemon=True).start()
        received = everything(connection)
    assert error_of(received) == (431, "headers_too_large")
    until(lambda: server.connections == 0)


def _send_all(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the server closes the connection
        connection.sendall(data)


def test_headers_below_the_limits_are_taken(server: Server) -> None:
    for pad in (padded(MAX_HEADER_BYTES - 200), padded(10_000, lines=MAX_HEADERS - 4)):
        whole = head("/", LENGTH, CLOSE, pad) + BODY
        assert json_of(server.ask(whole))["body"] == BODY.decode()
        assert json_of(server.ask(*(whole[at : at + 20_000] for at in range(0, len(whole), 20_000))))["body"]


def test_a_body_of_tiny_chunks_is_no_header_and_trailers_are_dropped(server: Server) -> None:
    chunks = b"1\r\nx\r\n" * 50_000 + b"0\r\nX-Trailer: 1\r\n\r\n"
    assert len(json_of(server.ask(head("/", CHUNKED, CLOSE) + chunks))["body"]) == 50_000
    assert server.echo.headers == 3


def test_what_is_not_http_gets_an_error_in_openais_shape(server: Server) -> None:
    for garbage in (b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
        assert error_of(server.ask(garbage)) == (400, "invalid_http")
    assert error_of(server.ask(head("/", CHUNKED) + b"zz\r\n")) == (400, "invalid_http")


# Time


@pytest.mark.parametrize("sent", [head()[:-2], b"P", head("/", padded(1000))[:500]])
def test_a_request_that_does_not_go_on_times_out(impatient: Server, sent: bytes) -> None:
    assert error_of(impatient.ask(sent)) == (408, "request_timeout")
    with impatient.open(head("/", method="GET")) as connection:  # and so does a second one
        assert one_reply(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(sent)
        assert error_of(everything(connection)) == (408, "request_timeout")


def test_dripping_headers_gain_no_time(impatient: Server) -> None:
    def drip(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(b"X: 1\r\n")
                time.sleep(0.05)

    with impatient.open(b"GET / HTTP/1.1\r\n") as connection:
        threading.Thread(target=drip, args=(connection,), daemon=True).start()
        assert error_of(everything(connection)) == (408, "request_timeout")


def test_silent_connections_are_closed(impatient: Server) -> None:
    assert impatient.ask() == b""
    with impatient.open(head("/", method="GET")) as connection:
        assert one_reply(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(b"\r\n")  # ends uvicorn's own timeout
        assert connection.recv(4096) == b""


def test_a_connection_that_sends_its_body_after_the_reply_is_closed(impatient: Server) -> None:
    with impatient.open(head("/unread", b"Content-Length: 1000000")) as connection:
        assert one_reply(connection).startswith(b"HTTP/1.1 200")
        assert connection.recv(4096) == b""
    until(lambda: impatient.connections == 0)


def test_a_request_at_work_has_its_time(impatient: Server) -> None:
    with impatient.open(head("/slow", LENGTH) + BODY) as connection:
        time.sleep(0.3)
        impatient.echo.may_reply.set()
        assert json_of(one_reply(connection))["body"] == BODY.decode()


def test_pipelined_requests_are_answered_in_turn_but_not_without_end(server: Server) -> None:
    some = head("/", LENGTH) + BODY
    assert server.ask(some * MAX_PIPELINED + head("/", CLOSE)).count(b"HTTP/1.1 200") == MAX_PIPELINED + 1
    with server.open(head("/slow") + some * 2000) as connection, contextlib.suppress(ConnectionResetError):
        assert connection.recv(4096) == b""


# HTTP/1.0, HEAD, half-closed connections


@pytest.mark.parametrize("path", ["/", "/stream"])
def test_http_1_0_has_no_chunks(server: Server, path: str) -> None:
    reply = server.ask(head(path, LENGTH, version="1.0") + BODY)
    assert b"transfer-encoding" not in reply.lower()
    assert json_of(reply) == {"method": "POST", "body": BODY.decode()}
    assert b"transfer-encoding: chunked" in server.ask(head("/stream", LENGTH, CLOSE) + BODY)
    assert server.ask(head(path, method="HEAD", version="1.0")).endswith(b"\r\n\r\n")


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("path", ["/", "/stream", "/slow"])
def test_a_client_that_has_closed_its_sending_side_gets_its_reply(
    server: Server, monkeypatch: pytest.MonkeyPatch, path: str, version: str
) -> None:
    monkeypatch.setattr(protocol, "CHECK_S", 60.0)  # in which it is not yet asked whether it is there
    with server.open(head(path, LENGTH, version=version) + BODY) as connection:
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.05)
        server.echo.may_reply.set()
        reply = everything(connection)
    assert reply.startswith(b"HTTP/1.1 200")
    assert rb'\"hello\"}"}' in reply
    assert reply.endswith(b"\r\n0\r\n\r\n" if (path, version) == ("/stream", "1.1") else b"}")
    assert not server.echo.left.is_set()


def test_and_so_it_does_when_the_reply_takes_long(impatient: Server) -> None:
    with impatient.open(head("/slow", LENGTH) + BODY) as connection:
        connection.shutdown(socket.SHUT_WR)
        interim = b"HTTP/1.1 100 Continue\r\n\r\n"
        assert connection.recv(len(interim), socket.MSG_WAITALL) == interim
        time.sleep(0.25)  # in which it is found to be there
        impatient.echo.may_reply.set()
        assert json_of(everything(connection))["body"] == BODY.decode()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_client_that_is_gone_ends_its_request(impatient: Server, version: str) -> None:
    impatient.open(head("/slow", LENGTH, version=version) + BODY).close()
    assert impatient.echo.left.wait(10)
    until(lambda: impatient.connections == 0)


def test_half_a_request_ends_with_its_connection(server: Server) -> None:
    for part in (head()[:-2], head("/", LENGTH) + BODY[:-1], b""):
        with server.open(part) as connection:
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(4096) == b""


# Bodies


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(("framing", "content"), [(LENGTH, BODY), (CHUNKED, CHUNKS)], ids=["length", "chunked"])
def test_a_method_without_a_body_takes_none(server: Server, method: str, framing: bytes, content: bytes) -> None:
    reply = server.ask(head("/slow", framing, CLOSE, method=method) + content)
    assert reply.startswith(b"HTTP/1.1 413")
    assert method == "HEAD" or error_of(reply) == (413, "body_too_large")
    server.echo.may_reply.set()
    for framing, content in ((b"Content-Length: 0", b""), (CHUNKED, b"0\r\n\r\n")):
        assert server.ask(head("/slow", framing, CLOSE, method=method) + content).startswith(b"HTTP/1.1 200")


def test_a_body_is_counted_where_it_arrives(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_bodies, "MAX_BODY_BYTES", 300_000)
    assert error_of(server.first_reply(head("/", b"Content-Length: 300001"))) == (413, "body_too_large")
    assert error_of(server.first_reply(head("/", b"Content-Length: " + b"9" * 18))) == (413, "body_too_large")
    endless = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    with server.open(head("/", CHUNKED)) as connection:
        threading.Thread(target=lambda: _send_all(connection, endless * 500), daemon=True).start()
        assert error_of(one_reply(connection)) == (413, "body_too_large")
    assert server.echo.read <= 300_000
    assert server.ask(head("/", CHUNKED, CLOSE) + endless * 4 + b"0\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_incomplete_bodies_are_limited_together(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_bodies, "MAX_ARRIVING_BYTES", 100_000)
    incomplete = head("/", b"Content-Length: 60000") + b"x" * 59_000
    with server.open(incomplete):
        until(lambda: server.bodies._arriving == 59_000)
        refused = server.first_reply(incomplete)
        assert error_of(refused) == (429, "rate_limit_exceeded")
        assert b"retry-after: 2" in refused
        assert json_of(server.ask(head("/", LENGTH, CLOSE) + BODY))["body"] == BODY.decode()
    until(lambda: server.bodies._arriving == 0)


def test_uploads_are_limited_in_number_only(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_bodies, "MAX_UPLOADS", 1)
    monkeypatch.setattr(proxy_bodies, "MAX_ARRIVING_BYTES", 100)
    upload = head("/v1/files", b"Content-Length: 60000", CLOSE) + b"x" * 59_000
    with server.open(upload) as connection:
        until(lambda: server.echo.read == 59_000)
        assert error_of(server.ask(upload)) == (429, "rate_limit_exceeded")
        connection.sendall(b"x" * 1000)
        assert everything(connection).startswith(b"HTTP/1.1 200")


def test_the_setting_of_a_bodys_size_is_bounded_by_what_the_proxy_takes() -> None:
    assert LimitSettings(body_bytes=MAX_BODY_BYTES)
    with pytest.raises(ValueError, match="body_bytes"):
        LimitSettings(body_bytes=MAX_BODY_BYTES + 1)
