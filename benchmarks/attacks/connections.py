"""Requests over plain sockets: paths, headers and bodies are sent as they are, and replies need not be read."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import Any, NamedTuple

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
MAX_REPLY_BYTES = 1 << 26
PIECE_BYTES = 1 << 16


class Answer(NamedTuple):
    """The reply to one request."""

    status: int
    """0: the connection ended without a reply."""
    body: bytes = b""

    @property
    def json(self) -> Any:
        """The body as JSON; an empty object if it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return {}

    def __str__(self) -> str:
        """The status, with the code of an error."""
        error = self.json.get("error") if self.status >= 400 and isinstance(self.json, dict) else None
        code = error.get("code") if isinstance(error, dict) else None
        return " ".join(map(str, filter(None, (self.status or "no reply", code))))


class Endpoint(NamedTuple):
    """A controller's address, as one client with its API key uses it."""

    host: str
    port: int
    prefix: str = ""
    """Path before the routes of a further controller."""
    key: str | None = None

    @classmethod
    def of(cls, url: str, key: str | None = None) -> "Endpoint":
        host, _, rest = url.removeprefix("http://").partition(":")
        port, slash, path = rest.partition("/")
        return cls(host, int(port), slash + path.rstrip("/") if path else "", key)

    async def ask(
        self, method: str, path: str, body: Any = b"", headers: Mapping[str, str] = NO_HEADERS, timeout_s: float = 300.0
    ) -> Answer:
        """Sends a request and returns the whole reply. ``body``: bytes as they are, anything else as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            async with asyncio.timeout(timeout_s), self._connected() as (reader, writer):
                sending = asyncio.create_task(_send(writer, self._head(method, path, len(content), headers), content))
                try:
                    return _answer(await _received(reader))
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
        except (OSError, TimeoutError):
            return Answer(0)

    @asynccontextmanager
    async def unread(self, path: str, body: Any = None) -> AsyncIterator[bool]:
        """Sends a request and does not read the reply within the block. Yields whether the reply has begun."""
        content = b"" if body is None else json.dumps(body).encode()
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(connection, (self.host, self.port))
            await loop.sock_sendall(connection, self._head("GET" if body is None else "POST", path, len(content)))
            await loop.sock_sendall(connection, content)
            begun = b""
            with suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    begun = await loop.sock_recv(connection, 32)
            yield b" 200 " in begun
        finally:
            connection.close()

    @asynccontextmanager
    async def half_sent(self, path: str, length: int, headers: Mapping[str, str] = NO_HEADERS) -> AsyncIterator[None]:
        """Sends the headers of a request of ``length`` bytes, and the first of them, within the block."""
        async with self._connected() as (_, writer):
            writer.write(self._head("POST", path, length, headers) + b" ")
            yield

    def _head(self, method: str, path: str, length: int, headers: Mapping[str, str] = NO_HEADERS) -> bytes:
        own = {"host": "localhost", "connection": "close", "content-type": "application/json"}
        if method != "GET":
            own["content-length"] = str(length)
        if self.key is not None:
            own["authorization"] = f"Bearer {self.key}"
        lines = [f"{name}: {value}" for name, value in {**own, **headers}.items()]
        return "\r\n".join([f"{method} {self.prefix}{path} HTTP/1.1", *lines, "", ""]).encode()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=MAX_REPLY_BYTES)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


async def _received(reader: asyncio.StreamReader) -> bytes:
    """All that arrives until the connection ends, also where it is reset behind a reply."""
    received = bytearray()
    with suppress(ConnectionError):
        while piece := await reader.read(PIECE_BYTES):
            received += piece
    return bytes(received)


async def _send(writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
    with suppress(OSError):  # the reply says why
        writer.write(head)
        for at in range(0, len(body), PIECE_BYTES):
            writer.write(body[at : at + PIECE_BYTES])
            await writer.drain()


def _answer(received: bytes) -> Answer:
    head, _, body = received.partition(b"\r\n\r\n")
    while head.startswith(b"HTTP/1.1 100 "):
        head, _, body = body.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 "):
        return Answer(0)
    if b"transfer-encoding: chunked" in head.lower():
        body = _without_chunks(body)
    return Answer(int(head[9:12]), body)


def _without_chunks(body: bytes) -> bytes:
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size or b"0", 16)
        parts.append(body[:length])
        body = body[length + 2 :]
    return b"".join(parts)
