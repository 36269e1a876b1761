"""A small asynchronous client of Banyan's HTTP endpoint: plain and streamed completions, with retries."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from cluster.client.errors import ClientError, Disconnected, ProtocolError, Refused, TooLate, Unreachable
from cluster.client.proxies import check_proxies
from cluster.client.replies import AnswerText, Completion, Event, Question, Restarted, SearchBlock, Usage
from cluster.client.retries import Retries, worth_another_try
from cluster.client.wire import (
    authorization,
    capped,
    delta_of,
    encoded,
    events,
    parse_object,
    prompt_of,
    refusal,
    search_block,
    step_of,
    tree_of,
    usage_of,
)

CONNECT_S = 5.0
DONE = "[DONE]"
DEFAULT_RETRIES = Retries()


class Client:
    """Client of one endpoint. Use as an async context manager.

    If the endpoint fails (a 5xx, a connection that ends too soon) or is full (429 with ``Retry-After``), a request is
    retried with the same seed, within the limits of ``retries`` and its deadline. So the reply is the tree that the
    first try would have grown. Searches have no side effects: one that continues at the endpoint after its connection
    broke only costs compute. An endpoint that was never reached is not retried.

    Args:
        url: the endpoint's root, with or without ``/v1``.
        api_key: sent as ``Authorization: Bearer``, without blanks and quotes around it.
        timeout_s: deadline of a request, including all its tries and the waits between them.
        connections: most requests at once.
        retries: number of tries and waits between them.
        transport: carries requests in place of HTTP (`cluster.client.handles`).
        waits_for_room: whether a request that is refused for lack of room (429) is retried; else the refusal is raised
            at once, for a caller that has to slow down other requests, too.

    Raises:
        ClientError: the URL, the key or a proxy that the environment names cannot be used.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        connections: int = 64,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        waits_for_room: bool = True,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._timeout_s = timeout_s
        self._retries = retries or DEFAULT_RETRIES
        self._waits_for_room = waits_for_room
        self._reached = False
        self._model: str | None = None
        loopback = _check_url(self.url)
        is_tls = self.url.startswith("https:")
        if not loopback:
            check_proxies()
        try:
            self._http = httpx.AsyncClient(
                base_url=self.url,
                headers=authorization(api_key),
                limits=httpx.Limits(max_connections=connections),
                trust_env=not loopback,  # a proxy cannot reach this machine's own loopback
                verify=httpx.create_ssl_context() if is_tls else True,  # reads SSL_CERT_FILE without `trust_env`, too
                transport=transport,
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
        """The first model that the endpoint serves; cached."""
        if self._model is None:
            models = await self._again("GET", "/v1/models")
            try:
                self._model = str(models["data"][0]["id"])
            except (KeyError, IndexError, TypeError) as error:
                raise ProtocolError(f"{self.url}/v1/models names no model") from error
        return self._model

    async def healthy(self) -> bool:
        """Whether ``/health`` answers with success, without retries; False also if nothing answers."""
        try:
            await self._whole("GET", "/health", None, self._timeout_s)
        except ClientError:
            return False
        return True

    async def ask(self, question: Question) -> Completion:
        """Returns the whole reply, with the tree if the question asks for it."""
        body = question.seeded().as_json(await self.model(), stream=False)
        reply = await self._again("POST", "/v1/search" if question.tree else "/v1/chat/completions", body)
        try:
            choice = reply["choices"][0]
            content, finish_reason = choice["message"]["content"] or "", choice["finish_reason"]
        except (KeyError, IndexError, TypeError) as error:
            raise ProtocolError(f"{self.url} sent no chat completion") from error
        tree = tree_of(reply) if question.tree else None
        return Completion(content, finish_reason, search_block(reply), usage_of(reply), tree, prompt_of(reply))

    async def post(self, path: str, body: dict[str, object]) -> dict[str, Any]:
        """Sends ``body`` unchanged and returns the reply."""
        return await self._again("POST", path, body)

    async def stream(self, question: Question) -> AsyncGenerator[Event, None]:
        """Streams the reply: scored steps, pieces of the answer, and last the Completion.

        A broken stream is retried with the same seed and starts over. A `Restarted` then says that all earlier events
        are void; steps come again from the first one on, perhaps in another order. There may be several Restarted, and
        there is one Completion, built from the events after the last Restarted. A stream that breaks before its first
        event is retried without a Restarted.

        Closing the iterator disconnects, which ends the search at the endpoint.
        """
        body = question.seeded().as_json(await self.model(), stream=True)
        deadline = Deadline(self._timeout_s)
        yielded = False
        last_error: BaseException | None = None
        async for attempt in self._retries.loop(self._timeout_s, self._is_worth_another_try):
            with attempt:
                if yielded:
                    yield Restarted(str(last_error))
                    yielded = False
                try:
                    async with aclosing(self._events(body, deadline)) as events_:
                        async for event in events_:
                            yielded = True
                            yield event
                except ClientError as error:
                    last_error = error
                    raise

    async def _events(self, body: dict[str, object], deadline: "Deadline") -> AsyncGenerator[Event, None]:
        """One try of a streamed request."""
        text: list[str] = []
        finish_reason: str | None = None
        search: SearchBlock | None = None
        usage: Usage | None = None
        async with self._request("POST", "/v1/chat/completions", body, deadline.remaining) as response:
            async for data in self._until(deadline, events(response)):
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
            raise Disconnected(f"the stream from {self.url} ended before the answer was complete")
        yield Completion("".join(text), finish_reason, search, usage)

    async def _until(self, deadline: "Deadline", pieces: AsyncIterator[str]) -> AsyncIterator[str]:
        """Yields pieces until the deadline, then raises TooLate, even if the stream still sends keep-alives."""
        while True:
            try:
                async with asyncio.timeout(deadline.remaining):
                    piece = await anext(pieces)
            except StopAsyncIteration:
                return
            except TimeoutError as error:
                raise self._too_late() from error
            yield piece

    async def _again(self, method: str, path: str, body: dict[str, object] | None = None) -> dict[str, Any]:
        """Returns a whole reply, with retries."""
        deadline = Deadline(self._timeout_s)
        async for attempt in self._retries.loop(self._timeout_s, self._is_worth_another_try):
            with attempt:
                return await self._whole(method, path, body, deadline.remaining)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _whole(self, method: str, path: str, body: dict[str, object] | None, timeout_s: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(timeout_s), self._request(method, path, body, timeout_s) as response:
                content = await capped(response)
        except TimeoutError as error:
            raise self._too_late() from error
        return parse_object(content) if path.startswith("/v1/") else {}

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: dict[str, object] | None, timeout_s: float
    ) -> AsyncIterator[httpx.Response]:
        """Opens a response of status 200. Raises transport errors, also those while reading, as a ClientError."""
        timeout = httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s))
        sent: Any = {} if body is None else {"content": encoded(body), "headers": {"Content-Type": "application/json"}}
        try:
            async with self._http.stream(method, path, timeout=timeout, **sent) as response:
                self._reached = True
                if response.status_code != httpx.codes.OK:
                    raise refusal(await capped(response), response)
                yield response
        except httpx.ConnectError as error:
            raise Unreachable(f"nothing listens on {self.url}") from error
        except httpx.ConnectTimeout as error:
            raise Unreachable(f"{self.url} does not answer") from error
        except httpx.TimeoutException as error:
            raise self._too_late() from error
        except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
            raise Disconnected(f"the connection to {self.url} broke: {str(error) or type(error).__name__}") from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise ProtocolError(f"the request to {self.url} failed: {str(error) or type(error).__name__}") from error

    def _is_worth_another_try(self, error: BaseException) -> bool:
        if isinstance(error, Refused) and error.status == 429 and not self._waits_for_room:
            return False
        return worth_another_try(error) or (self._reached and isinstance(error, Unreachable))

    def _too_late(self) -> TooLate:
        return TooLate(f"no complete answer from {self.url} within {self._timeout_s:g} s")


class Deadline:
    """A deadline ``seconds`` from now, by the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    @property
    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._at - time.monotonic())


def _check_url(url: str) -> bool:
    """Checks a URL. Returns whether it is on this machine.

    Raises:
        ClientError: it is not an http URL.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise ClientError(f"not a usable URL: {url} ({error})") from error
    if parts.scheme not in ("http", "https") or not host:
        raise ClientError(f"not a usable URL: {url} (it should be like http://127.0.0.1:8000)")
    return host in ("localhost", "::1") or host.startswith("127.")
