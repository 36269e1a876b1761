"""One HTTP exchange with a backend: a request, and its reply as JSON objects. Everything that is read is bounded."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, TypeAlias

import aiohttp
from pydantic import SecretStr

from deployments.backends.errors import BackendError, Fault

MAX_ERROR_BYTES = 1 << 16
MAX_MESSAGE = 300
"""Characters of a server's message that an error repeats."""
DRAIN_S = 0.2
"""Longest wait for the end of a stream behind its last event: a connection that has ended is used again."""
DONE = "[DONE]"

Json = dict[str, Any]
Until: TypeAlias = Callable[[], Callable[[Json], bool]]
"""Makes for each attempt of a call what says of every event of its stream whether it is the last one that is wanted."""


class ReplyLimits(NamedTuple):
    """How long a reply may take, and how large it may be."""

    reply_s: float
    idle_s: float
    max_bytes: int
    deadline: float
    """Event loop time by which it must have ended."""


def new_session(tls: ssl.SSLContext, connect_s: float, keepalive_s: float) -> aiohttp.ClientSession:
    """Connections to one URL. No cookies, and neither proxies nor passwords from the environment.

    By aiohttp: a call by httpx takes about four times the CPU time.
    """
    connector = aiohttp.TCPConnector(limit=0, ssl=tls, keepalive_timeout=keepalive_s)
    timeout = aiohttp.ClientTimeout(total=None, connect=connect_s)
    return aiohttp.ClientSession(
        connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
    )


class Exchange:
    """One request at one URL."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, target: str, key: SecretStr | None, limits: ReplyLimits
    ) -> None:
        """
        Args:
            session: makes connections, as `new_session` makes it.
            url: what errors call the place: the operator's URL.
            target: where the request goes.
        """
        self._session = session
        self._url = url
        self._target = target
        self._key = key
        self._limits = limits

    async def replies(self, method: str, body: bytes, streamed: bool) -> AsyncGenerator[Json, None]:
        """The reply: one object, or where it is ``streamed`` the server-sent events. Closing the generator closes the
        connection.

        Raises:
            BackendError: anything else came, or nothing.
        """
        fault: BackendError | None = None
        try:
            request = self._session.request(
                method,
                self._target,
                data=body or None,
                headers=self._headers(bool(body), streamed),
                allow_redirects=False,
            )
            response = await self._in_time(request, self._limits.reply_s)
            try:
                if response.status != 200:
                    raise await self._refusal(response)
                async for reply in self._events(response) if streamed else self._reply(response):
                    yield reply
            finally:
                response.close()  # the connection too, unless all of the reply was read
        except aiohttp.ClientError as error:
            fault = self._transport_fault(error)
        # Raised here, not above: aiohttp's error has the request with its headers, and must be no context of this one.
        if fault is not None:
            raise fault

    def _headers(self, has_body: bool, streamed: bool) -> dict[str, str]:
        """Those of a request. In no variable of their own where an error is raised: some tools print them all."""
        headers = {
            "Accept": "text/event-stream" if streamed else "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "banyan",
        }
        if has_body:
            headers["Content-Type"] = "application/json"
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key.get_secret_value()}"
        return headers

    async def _in_time(self, awaitable: Any, seconds: float) -> Any:
        clock = asyncio.get_running_loop().time
        late = unconnected = False
        try:
            async with asyncio.timeout_at(min(clock() + seconds, self._limits.deadline)):
                return await awaitable
        except TimeoutError as error:
            late = clock() >= self._limits.deadline
            unconnected = isinstance(error, aiohttp.ConnectionTimeoutError)
        if late:
            raise self._error(Fault.LATE, "no whole reply by the deadline")
        if unconnected:
            raise self._error(Fault.UNREACHABLE, "no connection in time")
        raise self._error(Fault.SILENT, f"nothing arrived for {seconds:g} s")

    async def _pieces(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise self._error(Fault.INVALID, "the reply is compressed, which was not asked for")
        size = 0
        # Servers send the headers of a stream at once, and its first event when the request has been in their queue.
        wait_s = max(self._limits.reply_s, self._limits.idle_s)
        while piece := await self._in_time(response.content.readany(), wait_s):
            size, wait_s = size + len(piece), self._limits.idle_s
            if size > self._limits.max_bytes:
                raise self._error(Fault.TOO_LARGE, f"the reply is larger than {self._limits.max_bytes:,} bytes")
            yield piece

    async def _object(self, response: aiohttp.ClientResponse) -> AsyncIterator[Json]:
        kind = _content_type(response)
        if kind == "text/plain" and response.method == "GET":  # figures, as Prometheus reads them
            yield {"text": b"".join([piece async for piece in self._pieces(response)]).decode("utf-8", "replace")}
            return
        if not (kind == "application/json" or kind.endswith("+json")):
            raise self._error(Fault.INVALID, f"the reply is of type {kind[:50]!r}, not JSON")
        yield self._parsed(b"".join([piece async for piece in self._pieces(response)]))

    async def _reply(self, response: aiohttp.ClientResponse) -> AsyncIterator[Json]:
        """As `_object`. Routers answer 200 with the error of the server behind them."""
        async for reply in self._object(response):
            if reply.get("error"):
                raise self._told_error(reply)
            yield reply

    async def _events(self, response: aiohttp.ClientResponse) -> AsyncIterator[Json]:
        if (kind := _content_type(response)) != "text/event-stream":
            if kind == "application/json":
                async for _ in self._reply(response):  # an error is told
                    break
            raise self._error(Fault.INVALID, f"the reply is of type {kind[:50]!r}, not a stream")
        async with aclosing(self._data(response)) as events:
            async for data in events:
                if data == DONE.encode():
                    # Its end is read too, if it is there, so that the connection can be used again.
                    with suppress(BackendError, StopAsyncIteration, TimeoutError, aiohttp.ClientError):
                        async with asyncio.timeout(DRAIN_S):
                            await anext(events)
                    return
                event = self._parsed(data)
                if event.get("error"):
                    raise self._told_error(event)
                yield event
        raise self._error(Fault.CUT, f"the stream ended without {DONE}")

    async def _data(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        """The data of each event (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
        rest = b""
        lines: list[bytes] = []
        async with aclosing(self._pieces(response)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                # Split at newlines only: JSON may contain U+2028. What is left of long lines is not searched again.
                whole, newline, last = piece.rpartition(b"\n")
                if not newline:
                    rest += piece
                    continue
                for raw in (rest + whole).split(b"\n"):
                    line = raw.removesuffix(b"\r")
                    if line.startswith(b"data:"):
                        lines.append(line.removeprefix(b"data:").removeprefix(b" "))
                    elif not line and lines:
                        yield b"\n".join(lines)
                        lines = []
                rest = last
        last = rest.removesuffix(b"\r")
        if last.startswith(b"data:"):
            lines.append(last.removeprefix(b"data:").removeprefix(b" "))
            last = b""
        if lines == [DONE.encode()] and not last:  # nothing is missing but the empty line behind it
            yield DONE.encode()
        elif lines or last:
            raise self._error(Fault.CUT, "the stream ended within an event")

    def _parsed(self, data: bytes) -> Json:
        fault = "not JSON"
        try:
            parsed = json.loads(data, parse_constant=_no_constant)
            fault = "JSON, but not an object"
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            raise self._error(Fault.INVALID, f"the reply is {fault}")
        return parsed

    async def _refusal(self, response: aiohttp.ClientResponse) -> BackendError:
        status = response.status
        retry_after_s = _retry_after(response.headers.get("retry-after"))
        if 300 <= status < 400:
            return self._error(Fault.REDIRECT, f"it redirects elsewhere ({status}), which is not followed", status)
        if status in (401, 403):  # what the server says of a key may repeat it
            sent = "does not accept the key" if self._key is not None else "wants a key"
            return self._error(Fault.KEY, f"it {sent} ({status})", status)
        if status == 429 or (status == 503 and retry_after_s is not None):
            return self._error(Fault.BUSY, f"it has too much to do ({status})", status, retry_after_s or 0.0)
        message = await self._message(response)
        if 400 <= status < 500 and status != 408:
            return self._error(Fault.REFUSED, f"it refuses the request ({status}){message}", status)
        return self._error(Fault.FAILED, f"it failed ({status}){message}", status)

    async def _message(self, response: aiohttp.ClientResponse) -> str:
        """What the server says in an error, as far as it has OpenAI's shape."""
        limited = Exchange(
            self._session, self._url, self._target, self._key, self._limits._replace(max_bytes=MAX_ERROR_BYTES)
        )
        with suppress(BackendError, aiohttp.ClientError):
            async for error in limited._object(response):
                return self._told(error)
        return ""

    def _told_error(self, event: Json) -> BackendError:
        error = event["error"]
        code = error.get("code") if isinstance(error, dict) else None
        refused = isinstance(code, int) and 400 <= code < 500 and code not in (408, 429)
        verb = "refuses the request" if refused else "failed"
        return self._error(Fault.REFUSED if refused else Fault.FAILED, f"it {verb} in its reply{self._told(event)}")

    def _told(self, reply: Json) -> str:
        error = reply.get("error", reply)
        text = error.get("message", "") if isinstance(error, dict) else error
        if not isinstance(text, str) or not text:
            return ""
        if self._key is not None:
            text = text.replace(self._key.get_secret_value(), "…")
        text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
        return f": {text[:MAX_MESSAGE]}" + ("…" if len(text) > MAX_MESSAGE else "")

    def _transport_fault(self, error: aiohttp.ClientError) -> BackendError:
        if (tls := _tls_fault(error)) is not None:
            return self._error(Fault.CERTIFICATE, tls)
        if isinstance(error, aiohttp.ClientConnectorError):
            return self._error(Fault.UNREACHABLE, "no connection")
        if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError | aiohttp.ClientResponseError):
            return self._error(Fault.CUT, "the connection closed before the end of the reply, or what came is no HTTP")
        return self._error(Fault.INVALID, f"the call failed: {type(error).__name__}")

    def _error(self, fault: Fault, message: str, status: int | None = None, retry_after_s: float = 0.0) -> BackendError:
        return BackendError(fault, self._url, message, status, retry_after_s)


def _content_type(response: aiohttp.ClientResponse) -> str:
    value: str = response.headers.get("content-type", "")
    return value.partition(";")[0].strip().lower()


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _tls_fault(error: BaseException) -> str | None:
    """What is wrong with the TLS of a connection that failed; None if it did not fail for that."""
    cause: BaseException | None = error
    while cause is not None:
        cause = getattr(cause, "certificate_error", cause)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not valid: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"no connection by TLS: {cause.reason}"
        cause = cause.__cause__ or cause.__context__
    return None


def _retry_after(value: str | None) -> float | None:
    """The seconds of a ``Retry-After`` header, which has seconds or a date; None if it has neither."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if seconds == seconds and seconds < float("inf") else None
