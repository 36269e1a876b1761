"""An HTTP server that misbehaves: each request is answered by the next of a list of behaviours, bytes on a socket."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

ANSWER = {
    "choices": [{"message": {"content": "42"}}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 5}},
}
EVENTS = [{"choices": [{"delta": {"content": text}}]} for text in ("4", "2")]


@dataclass
class Request:
    """One request that arrived."""

    target: str
    headers: dict[str, str]
    body: bytes
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the caller closed the connection before the end of the reply."""


Write = Callable[[bytes], Awaitable[None]]
Behaviour = Callable[[Write, Request], Awaitable[None]]


class RudeServer:
    """Context of a server; the last behaviour answers all later requests too."""

    def __init__(self, *behaviours: Behaviour, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self._behaviours = behaviours
        self._tls = tls
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "RudeServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            self._open.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:]) if name}
        request = Request(head[0].split()[1], headers, await reader.readexactly(int(headers.get("content-length", 0))))
        self.requests.append(request)
        behaviour = self._behaviours[min(len(self.requests), len(self._behaviours)) - 1]

        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        working = asyncio.ensure_future(behaviour(write, request))
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                request.hung_up.set()
        finally:
            for task in (working, gone):
                task.cancel()
            await asyncio.gather(working, gone, return_exceptions=True)


def head(status: int = 200, kind: str = "application/json", **headers: str) -> bytes:
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Status\r\nContent-Type: {kind}\r\nConnection: close\r\n{named}\r\n".encode()


def event(data: Any) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def replies(status: int, body: Any = ANSWER, **headers: str) -> Behaviour:
    async def behave(write: Write, request: Request) -> None:
        await write(head(status, **headers) + json.dumps(body).encode())

    return behave


def says(data: bytes) -> Behaviour:
    """Writes these bytes and closes the connection."""

    async def behave(write: Write, request: Request) -> None:
        await write(data)

    return behave


def hangs(data: bytes = b"") -> Behaviour:
    """Writes these bytes, and then nothing."""

    async def behave(write: Write, request: Request) -> None:
        await write(data)
        await asyncio.Event().wait()

    return behave


def endless(start: bytes, piece: bytes, pause_s: float = 0.0) -> Behaviour:
    async def behave(write: Write, request: Request) -> None:
        await write(start)
        while True:
            await write(piece)
            await asyncio.sleep(pause_s)

    return behave


def streams(*events: Any, done: bytes = b"data: [DONE]\n\n") -> Behaviour:
    return says(head(kind="text/event-stream") + b"".join(map(event, events)) + done)


def echoes_the_key(status: int) -> Behaviour:
    """Repeats the request's key in its error, as some servers do."""

    async def behave(write: Write, request: Request) -> None:
        message = f"wrong key {request.headers.get('authorization')}"
        await write(head(status) + json.dumps({"error": {"message": message}}).encode())

    return behave


good = replies(200)
