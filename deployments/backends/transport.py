"""Connections of the HTTP client by aiohttp, whose parser is C: httpx's own take several times the CPU time of a call,
and more with every connection that is open."""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager

import aiohttp
import httpx
from yarl import URL


class Transport(httpx.AsyncBaseTransport):
    """Makes each request on a connection that is kept open, or on a new one. It follows no redirect, keeps no cookie,
    reads no proxy or password from the environment, and decodes nothing. Errors are httpx's."""

    def __init__(self, tls: ssl.SSLContext, keepalive_s: float) -> None:
        """``keepalive_s``: how long an unused connection is kept."""
        self._tls = tls
        self._keepalive_s = keepalive_s
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises httpx.HTTPError. Of the request's timeouts that of the connection holds."""
        if self._session is None:  # made in the event loop that uses it
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._tls, limit=0, keepalive_timeout=self._keepalive_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )
        connect_s = request.extensions.get("timeout", {}).get("connect")
        with _httpx_errors():
            response = await self._session.request(
                request.method,
                URL(str(request.url), encoded=True),
                data=request.content or None,
                headers=[(name.decode(), value.decode()) for name, value in request.headers.raw if name != b"Host"],
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, connect=connect_s),
            )
        return httpx.Response(response.status, headers=response.raw_headers, stream=_Stream(response))

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    def __del__(self) -> None:
        """A process that ends closes its connections by ending, and need not be told."""
        if self._session is not None:
            self._session.detach()


class _Stream(httpx.AsyncByteStream):
    """The body of a reply."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        pieces: AsyncIterator[bytes] = aiter(self._response.content.iter_any())
        while True:
            with _httpx_errors():
                piece = await anext(pieces, b"")
            if not piece:
                return
            yield piece

    async def aclose(self) -> None:
        """Closes the connection of a reply that was not read to its end; that ends the request at most servers."""
        self._response.close()


@contextmanager
def _httpx_errors() -> Iterator[None]:
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise httpx.ConnectTimeout(str(error)) from error
    except aiohttp.ClientConnectorCertificateError as error:
        raise httpx.ConnectError(str(error)) from error.certificate_error
    except aiohttp.ClientConnectorError as error:
        raise httpx.ConnectError(str(error)) from error.os_error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise httpx.RemoteProtocolError(type(error).__name__) from error
