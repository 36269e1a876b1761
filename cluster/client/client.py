"""A small asynchronous client of Banyan's HTTP endpoint: plain and streamed completions."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from cluster.client.errors import ClientError, ProtocolError, TooLate, Unreachable
from cluster.client.replies import AnswerText, Completion, Event, Question, SearchBlock, Usage
from cluster.client.wire import (
    capped,
    delta_of,
    events,
    parse_object,
    refusal,
    search_block,
    step_of,
    tree_of,
    usage_of,
)

CONNECT_S = 5.0
DONE = "[DONE]"


class Client:
    """Talks to one endpoint. Use as an async context manager.

    Args:
        url: the endpoint's root, with or without ``/v1``.
        api_key: sent as ``Authorization: Bearer``.
        timeout_s: the deadline of each whole request.
        connections: most requests at once.

    Raises:
        ClientError: the URL or the key cannot be used.
    """

    def __init__(self, url: str, api_key: str | None = None, timeout_s: float = 600.0, connections: int = 64) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._timeout_s = timeout_s
        self._model: str | None = None
        loopback = _check_url(self.url)
        try:
            self._http = httpx.AsyncClient(
                base_url=self.url,
                headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
                timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
                limits=httpx.Limits(max_connections=connections),
                trust_env=not loopback,  # a proxy cannot reach this machine's own loopback
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise ClientError(f"not a usable URL or API key: {error}") from error

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def model(self) -> str:
        """The first model that the endpoint serves; asked once."""
        if self._model is None:
            models = await self._whole("GET", "/v1/models")
            try:
                self._model = str(models["data"][0]["id"])
            except (KeyError, IndexError, TypeError) as error:
                raise ProtocolError(f"{self.url}/v1/models names no model") from error
        return self._model

    async def healthy(self) -> bool:
        """Whether ``/health`` says so; False also when nothing answers."""
        try:
            await self._whole("GET", "/health")
        except ClientError:
            return False
        return True

    async def ask(self, question: Question) -> Completion:
        """The whole reply at once, with the tree if the question wants it."""
        body = question.as_json(await self.model(), stream=False)
        reply = await self._whole("POST", "/v1/search" if question.tree else "/v1/chat/completions", body)
        try:
            choice = reply["choices"][0]
            content, finish_reason = choice["message"]["content"] or "", choice["finish_reason"]
        except (KeyError, IndexError, TypeError) as error:
            raise ProtocolError(f"{self.url} sent no chat completion") from error
        tree = tree_of(reply) if question.tree else None
        return Completion(content, finish_reason, search_block(reply), usage_of(reply), tree)

    async def stream(self, question: Question) -> AsyncGenerator[Event, None]:
        """The reply as it comes about: scored steps, pieces of the answer, and last the Completion.

        Closing the iterator disconnects, which ends the search at the endpoint.
        """
        body = question.as_json(await self.model(), stream=True)
        text: list[str] = []
        finish_reason: str | None = None
        search: SearchBlock | None = None
        usage: Usage | None = None
        deadline = time.monotonic() + self._timeout_s
        async with self._request("POST", "/v1/chat/completions", body) as response:
            async for data in events(response):
                if time.monotonic() > deadline:
                    raise TooLate(f"no complete answer from {self.url} within {self._timeout_s:g} s")
                if data == DONE:
                    break
                chunk = parse_object(data)
                if "error" in chunk:
                    raise refusal(chunk, None)
                if step := step_of(chunk):
                    yield step
                piece, reason = delta_of(chunk)
                finish_reason = reason or finish_reason
                if piece:
                    text.append(piece)
                    yield AnswerText(piece)
                if chunk.get("search"):
                    search = search_block(chunk)
                usage = usage_of(chunk) or usage
        if finish_reason is None or search is None:
            raise ProtocolError(f"the stream from {self.url} ended before the answer was complete")
        yield Completion("".join(text), finish_reason, search, usage)

    async def _whole(self, method: str, path: str, body: dict[str, object] | None = None) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._timeout_s), self._request(method, path, body) as response:
                content = await capped(response)
        except TimeoutError as error:
            raise TooLate(f"no complete answer from {self.url} within {self._timeout_s:g} s") from error
        return parse_object(content) if path.startswith("/v1/") else {}

    @asynccontextmanager
    async def _request(self, method: str, path: str, body: dict[str, object] | None) -> AsyncIterator[httpx.Response]:
        """An open response of status 200; transport errors, also while it is read, as typed ones."""
        try:
            async with self._http.stream(method, path, json=body) as response:
                if response.status_code != httpx.codes.OK:
                    raise refusal(await capped(response), response)
                yield response
        except httpx.ConnectError as error:
            raise Unreachable(f"nothing listens on {self.url}") from error
        except httpx.ConnectTimeout as error:
            raise Unreachable(f"{self.url} does not answer") from error
        except httpx.TimeoutException as error:
            raise TooLate(f"no complete answer from {self.url} within {self._timeout_s:g} s") from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise ProtocolError(f"the connection to {self.url} broke: {str(error) or type(error).__name__}") from error


def _check_url(url: str) -> bool:
    """Whether the URL is on this machine.

    Raises:
        ClientError: it is no http URL.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise ClientError(f"not a usable URL: {url} ({error})") from error
    if parts.scheme not in ("http", "https") or not host:
        raise ClientError(f"not a usable URL: {url} (it should be like http://127.0.0.1:8000)")
    return host in ("localhost", "::1") or host.startswith("127.")
