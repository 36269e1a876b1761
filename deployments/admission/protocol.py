"""The HTTP/1 protocol of Serve's proxy: uvicorn's, with limits, and with parts of HTTP that uvicorn leaves out.

It runs in the proxy's process, so it imports next to nothing.
"""

import asyncio
import socket
from typing import Any, ClassVar, NamedTuple

import httptools
import uvicorn.config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from deployments.admission.error_body import error_body
from deployments.admission.proxy_flow import WAKE

MAX_HEADER_BYTES = 1 << 16
"""Maximum size of the request line and all headers. Also of whatever else is neither headers nor body: trailers, chunk
extensions, empty lines before a request."""
MAX_HEADERS = 128
MAX_PIPELINED = 64
"""Maximum number of requests of one connection that wait for the replies before theirs."""
REQUEST_S = 10.0
"""Time in which a request's headers must be complete, in seconds, from the connection or from the request's first byte.
For as long a connection may also go on sending after its reply, and stay open after an error."""
CHECK_S = 1.0
"""Interval at which the connection of a client that has closed its sending side is checked, in seconds."""
CHUNK_OVERHEAD = 8
"""Bytes of framing allowed for each byte of a body: chunks of one byte have five."""
STALL_S = 60.0
"""Longest time for which a client may read nothing of its reply, in seconds."""
MIN_READ_BYTES_PER_S = 1024
"""Minimum rate at which a reply is read while some of it waits to be sent. A client that reads this many bytes earns
one more second of patience, up to `STALL_S`."""
MAX_STALLED = 256
"""Maximum number of connections whose clients read more slowly than replies come, at one proxy."""
STALLED_PATIENCE_S = 2.0
"""Past `MAX_STALLED`, the one that has waited longest is closed unless it reads on within this time."""
UNSENT_BYTES = 1 << 17
"""Maximum size of what the system buffers of a reply beyond what the client's window takes."""


class Refusal(NamedTuple):
    """A reply of the protocol itself; the connection is closed after it."""

    status: int
    message: str
    code: str

    @property
    def reply(self) -> bytes:
        """The whole reply, in OpenAI's shape."""
        body = error_body(self.message, "invalid_request_error", self.code)
        headers = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        return STATUS_LINE[self.status] + headers + body


MALFORMED = Refusal(400, "the request is not valid HTTP", "invalid_http")
TOO_SLOW = Refusal(408, f"the request's headers were not complete after {REQUEST_S:g} s", "request_timeout")
TOO_LONG = Refusal(
    431, f"at most {MAX_HEADERS} headers of together {MAX_HEADER_BYTES} bytes are allowed", "headers_too_large"
)


def install() -> None:
    """Makes uvicorn use `BoundedProtocol` for every server that this process starts from now on."""
    uvicorn.config.HTTP_PROTOCOLS["auto"] = f"{__name__}:{BoundedProtocol.__name__}"


class UnframedCycle(RequestResponseCycle):
    """A reply to an HTTP/1.0 client, which knows no chunks: without a length it ends with its connection."""

    async def send(self, message: Any) -> None:
        self.chunked_encoding = False
        self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class BoundedProtocol(HttpToolsProtocol):
    """One connection.

    Beyond uvicorn's protocol:

    - Headers are limited in bytes, number and time, and trailers are dropped. A refused request gets its reply before
      the connection is closed: what arrives in the meantime is discarded, because closing a socket that has unread data
      would reset the connection, and the client would lose the reply.
    - ``Upgrade`` is ignored, to a websocket too: no route has one. Java's HTTP client sends ``Upgrade: h2c`` with every
      request. llhttp takes whatever follows such headers for the other protocol, so the body would be lost.
    - A client that has closed its sending side gets its reply.
    - Replies to HTTP/1.0 clients have no chunks.
    - A client that does not read its reply is disconnected.
    """

    _stalled: ClassVar[dict["BoundedProtocol", None]] = {}
    """The connections with a reply that waits to be sent, the longest waiting first."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None
        self._refused = False
        self._begun = False
        """Whether a request has begun to arrive and is not complete."""
        self._in_headers = True
        self._refusal = MALFORMED
        """The reply if the parser fails."""
        self._extra_bytes = 0
        """Bytes of the request that arrived outside of its body."""
        self._body_bytes = 0
        """Bytes of bodies in the last packet."""
        self._completed = False
        """Whether a request became complete with the last packet."""
        self._reader_timer: asyncio.TimerHandle | None = None
        self._patience_s = STALL_S
        """How much longer the client may read nothing."""
        self._checked = 0.0
        """When `_patience_s` was true, seconds."""
        self._unsent = 0
        """Bytes that waited to be sent then."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # The protocol learns of each byte that waits, and a reply waits for the one before it.
        transport.set_write_buffer_limits(high=0)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family != socket.AF_UNIX and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self._limit_time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_reader_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unset_keepalive_if_required()
        self._body_bytes, self._completed = 0, False
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal)
            return
        extra = len(data) - CHUNK_OVERHEAD * self._body_bytes
        self._extra_bytes = 0 if self._completed else max(0, self._extra_bytes + extra)
        if self._extra_bytes > MAX_HEADER_BYTES:
            self._refuse(TOO_LONG)
        elif not self._is_working:
            self._limit_time()

    def _parse(self, data: bytes) -> None:
        """Feeds the parser.

        Raises:
            httptools.HttpParserError: the request is refused.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                # The request is parsed again, without the header.
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    def _head_without_upgrade(self) -> bytes:
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        headers = (b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade")
        return b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, version, b"".join(headers))

    # Callbacks of the parser

    def _should_upgrade(self) -> bool:
        return False

    def on_message_begin(self) -> None:
        self._begun = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_headers:
            return  # a trailer; uvicorn would add it to the headers
        if len(self.headers) >= MAX_HEADERS:
            self._fail(TOO_LONG)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.get_method() == b"CONNECT":
            self._fail(MALFORMED)
        if self.parser.should_upgrade():
            return  # it will be parsed again
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEADER_BYTES:
            self._fail(TOO_LONG)
        if len(self.pipeline) >= MAX_PIPELINED:
            self._fail(MALFORMED)
        self._stop_timer()
        self._in_headers = False
        super().on_headers_complete()
        self.scope[WAKE] = self.cycle.message_event.set  # type: ignore[literal-required]
        if self.scope["http_version"] == "1.0":
            self.cycle.__class__ = UnframedCycle  # its task has not begun to run yet

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._begun = False
        self._in_headers = True
        self._completed = True

    def _fail(self, refusal: Refusal) -> None:
        """Ends parsing. The parser turns the error into one of its own."""
        self._refusal = refusal
        raise httptools.HttpParserError(refusal.message)

    # Time

    @property
    def _is_working(self) -> bool:
        """Whether a reply is being made."""
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._begun and not self._is_working:
            self._limit_time()

    def _limit_time(self) -> None:
        if self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(REQUEST_S, self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        if self._begun and self._in_headers and not self._refused:
            self._refuse(TOO_SLOW)
        else:
            self.transport.abort()

    def _refuse(self, refusal: Refusal) -> None:
        """Answers a request, unless a reply is under way on its connection, and closes the connection."""
        self._stop_timer()
        self._refused = True
        if self._is_working:
            if self.cycle.response_started or self.pipeline:
                self.transport.close()
                return
            self.cycle.disconnected = True
            self.cycle.waiting_for_100_continue = False
            self.cycle.message_event.set()
        self.flow.resume_reading()
        self.transport.write(refusal.reply)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._limit_time()

    # A client that does not read

    def pause_writing(self) -> None:
        super().pause_writing()
        self._checked, self._unsent = self.loop.time(), self.transport.get_write_buffer_size()
        self._reader_timer = self.loop.call_later(self._patience_s, self._check_reader)
        self._stalled[self] = None
        if len(self._stalled) > MAX_STALLED:
            longest = next(iter(self._stalled))
            longest._stop_reader_timer()
            longest._measure()
            longest._patience_s = min(longest._patience_s, STALLED_PATIENCE_S)
            longest._reader_timer = self.loop.call_later(longest._patience_s, longest._check_reader)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._measure()
        self._stop_reader_timer()

    def _measure(self) -> None:
        """Brings `_patience_s` up to date: time costs some, and bytes sent give some back."""
        now, unsent = self.loop.time(), self.transport.get_write_buffer_size()
        earned_s = (self._unsent - unsent) / MIN_READ_BYTES_PER_S
        self._patience_s = min(STALL_S, self._patience_s - (now - self._checked) + earned_s)
        self._checked, self._unsent = now, unsent

    def _check_reader(self) -> None:
        self._measure()
        if self._patience_s > CHECK_S:
            self._reader_timer = self.loop.call_later(self._patience_s, self._check_reader)
        else:
            self.transport.abort()

    def _stop_reader_timer(self) -> None:
        self._stalled.pop(self, None)
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    # A client that has closed its sending side

    def eof_received(self) -> bool:  # type: ignore[override]
        """Returns whether the connection stays open for a reply."""
        if not self._is_working or self._begun or self._refused or self.scheme == "https":
            return False  # TLS has no half-closed connections in asyncio
        self.cycle.keep_alive = False
        if self._timer is None:
            self._timer = self.loop.call_later(CHECK_S, self._check_client, True)
        return True

    def _check_client(self, ask: bool = False) -> None:
        """Closes the connection if the client is gone.

        A client that has closed its whole socket looks the same until something is sent to it: then its system resets
        the connection. So with ``ask`` the client gets an interim reply, which every HTTP/1.1 client skips. HTTP/1.0
        has none: there a closed sending side counts as gone.
        """
        self._timer = None
        if self.transport.is_closing():
            return
        gone = self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
        if ask and not self.cycle.response_started and not self.pipeline:
            gone = gone or self.scope["http_version"] == "1.0"
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if gone:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(CHECK_S, self._check_client)
