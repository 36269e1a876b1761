"""The HTTP client of a backend: one URL or several that serve the same model, behind one interface."""

import asyncio
import hashlib
import json
import logging
import math
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from deployments.backends.errors import BackendError, Fault
from deployments.backends.limits import CallLimit, MinuteLimit
from deployments.backends.settings import BackendSettings, UrlSettings
from deployments.backends.usage import BYTES_PER_TOKEN, Usage
from deployments.backends.wire import Exchange, Json, ReplyLimits, Until, new_session
from search.tools.fair_slots import FairSlots, Requester

logger = logging.getLogger("banyan.backends")

FINAL = {Fault.REFUSED, Fault.LATE}
"""Faults of the call itself: no URL would do better."""
OF_THE_URL = {Fault.CERTIFICATE, Fault.KEY, Fault.REDIRECT, Fault.TOO_LARGE}
"""Faults that another attempt at the same URL would meet again."""
AT_ONCE = {Fault.UNREACHABLE, Fault.CERTIFICATE, Fault.KEY, Fault.REDIRECT}
"""Faults after which a URL is left at once; after others, when there were three in a row."""
FAILURES = 3
LEFT_S = 1.0
"""Time for which a URL is left at first; it doubles with every further failure."""
LEFT_MAX_S = 60.0
REST_S = 0.5
"""Time for which a URL that is busy is not called, where it names none; it doubles, with jitter."""
REST_MAX_S = 30.0
NAMED_REST_MAX_S = 600.0
"""Longest Retry-After that other calls mind."""
TURN = 16
"""Calls of one search that go out in a turn: most of them continue the same prefix, as at an engine
(`deployments.engines.fair_order`)."""
NEAR_LOAD = 2.0
"""A call goes to the URL of its ``near`` unless that has more than this many times the calls of the least busy one."""
MINUTE_FULL = "calls_per_minute or tokens_per_minute is used up"
KEEPALIVE_S = 2.0
"""Time for which an unused connection is kept: less than servers keep it (uvicorn: 5 s), or a request would meet its
end."""


class UrlStatus(NamedTuple):
    """How a URL does."""

    url: str
    healthy: bool
    calls: int
    """Calls under way."""
    max_calls: int
    """Concurrent calls that are allowed now."""
    answered: int
    failed: int
    last_fault: str
    """The last failure, in words; empty if there was none."""


class _Endpoint:
    """A URL with its connections, its key, and what is known of how it does."""

    def __init__(self, settings: UrlSettings, connect: Callable[[], aiohttp.ClientSession], most: int) -> None:
        self.url = settings.url
        self.weight = settings.weight
        self._has_path = bool(urlsplit(self.url).path)
        self.key = settings.read_key()
        self._connect = connect
        self._session: aiohttp.ClientSession | None = None
        self.limit = CallLimit(most)
        self.calls = 0
        self.rests_until = 0.0
        """Event loop time before which the server wants no calls."""
        self.answered = 0
        self.failed = 0
        self.last_fault = ""
        self._failures = 0
        """Failures in a row."""
        self._left_until = 0.0
        self._busy = 0
        """Refusals for load in a row."""

    @property
    def session(self) -> aiohttp.ClientSession:
        """Its connections; for use in the event loop of the first call."""
        if self._session is None:
            self._session = self._connect()
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def is_left(self) -> bool:
        """Whether the URL failed, and has not answered since."""
        return self._failures >= FAILURES

    def is_healthy(self, now: float) -> bool:
        """Whether calls go there rather than elsewhere. One that was left gets one call at a time until it answers."""
        return not self.is_left or (now >= self._left_until and not self.calls)

    @property
    def has_room(self) -> bool:
        return self.calls < self.limit.calls

    @property
    def load(self) -> float:
        """Its calls with one more, relative to its weight."""
        return (self.calls + 1) / self.weight

    def closeness(self, near: str) -> float:
        """The URL with the greatest number is that of ``near`` (weighted rendezvous hashing: as long as it is there,
        others may come and go)."""
        digest = hashlib.blake2b(f"{near} {self.url}".encode(), digest_size=8).digest()
        share = ((int.from_bytes(digest, "big") >> 12) + 0.5) / 2**52  # exact, so neither 0 nor 1
        return -self.weight / math.log(share)

    def target(self, path: str) -> str:
        """Where a call to a server's ``path`` goes. A URL with a path is ``/v1``, as OpenAI's clients have it."""
        if path.startswith("/v1/") and self._has_path:
            return self.url + path.removeprefix("/v1")
        return self.url.removesuffix("/v1") + path

    def succeed(self) -> None:
        if self.is_left:
            logger.warning("backend %s answers again", self.url)
        self.answered += 1
        self._failures = self._busy = 0

    def fail(self, error: BackendError, sent_at: float, now: float) -> None:
        self.last_fault = f"{error.message} ({error.fault})"
        if error.fault is Fault.BUSY:
            rest_s = min(REST_MAX_S, REST_S * 2**self._busy) * random.uniform(0.5, 1.0)
            self._busy = min(self._busy + 1, 16)
            self.rests_until = max(self.rests_until, now + min(error.retry_after_s or rest_s, NAMED_REST_MAX_S))
            self.limit.refused(sent_at, now)
            return
        self.failed += 1
        before = self.is_left
        self._failures = max(self._failures + 1, FAILURES if error.fault in AT_ONCE else 0)
        if self.is_left:
            self._left_until = now + min(LEFT_MAX_S, LEFT_S * 2 ** min(self._failures - FAILURES, 16))
        if self.is_left and not before:
            logger.warning("backend %s is left for a while: %s", self.url, self.last_fault)

    def status(self, now: float) -> UrlStatus:
        most, healthy = self.limit.calls, self.is_healthy(now) and now >= self.rests_until
        return UrlStatus(self.url, healthy, self.calls, most, self.answered, self.failed, self.last_fault)


class _Call:
    """One call while it is tried at one URL after another."""

    def __init__(
        self,
        method: str,
        path: str,
        body: Json | None,
        deadline: float,
        streamed: bool,
        near: str = "",
        requester: Requester | None = None,
    ) -> None:
        self.method = method
        self.near = near
        self.requester = requester
        self.path = path
        self.body = b"" if body is None else json.dumps(body, allow_nan=False).encode()
        self.deadline = deadline
        self.streamed = streamed
        self.most_tokens = 0 if body is None else _most_tokens(self.body, body)
        self.failures = 0
        self.tried: set[_Endpoint] = set()
        self.barred: set[_Endpoint] = set()
        """URLs at which it would fail again."""
        self.begun = False
        """Whether the caller has part of a reply."""
        self.over = False
        """Whether no attempt can be made before the deadline."""


class Pool:
    """Calls a backend at one URL or several. For use in one event loop.

    A call goes to the healthy URL with room that has the fewest calls relative to its weight; while there is none, it
    waits, and searches and their owners take turns (``requester``; None: a probe or a health check, which goes first).
    Calls of the same ``near`` share a prefix: they go to one URL, which has its KV, as long as that is not far busier
    than another. A call is made again, with the same body and elsewhere if there is an elsewhere, when the server
    fails; seeds in the body make that safe. A URL that is busy (429) is called again when it says, or after a backoff:
    that is no failure, and lasts up to the deadline. All ``deadline`` are event loop times (``loop.time() + seconds``).
    """

    def __init__(self, settings: BackendSettings) -> None:
        """Raises ValueError, with the setting's name, when a key or a certificate cannot be read."""
        self._settings = settings
        tls = settings.tls()
        connect = partial(new_session, tls, settings.connect_s, KEEPALIVE_S)
        self._endpoints = [_Endpoint(each, connect, settings.max_calls) for each in settings.endpoints]
        self._calls = MinuteLimit(settings.calls_per_minute)
        self._tokens = MinuteLimit(settings.tokens_per_minute)
        self._dispatch = FairSlots(1, TURN)
        """Held by the call that is sent next; the others wait for it in fair order."""
        self._freed = asyncio.Event()

    async def get(self, path: str, *, deadline: float) -> Json:
        """The object at a path; of a plain text, an object with its ``text``. Raises BackendError."""
        [reply] = await self._whole(_Call("GET", path, None, deadline, streamed=False))
        return reply

    async def post(
        self, path: str, json: Mapping[str, Any], *, deadline: float, near: str = "", requester: Requester | None = None
    ) -> Json:
        """The reply to a body. Cancelling closes the connection. Raises BackendError."""
        [reply] = await self._whole(
            _Call("POST", path, dict(json), deadline, streamed=False, near=near, requester=requester)
        )
        return reply

    async def collect(
        self,
        path: str,
        json: Mapping[str, Any],
        *,
        deadline: float,
        near: str = "",
        requester: Requester | None = None,
        until: Until | None = None,
    ) -> list[Json]:
        """All events of a stream (``"stream": true`` in the body). A stream that is cut begins again elsewhere.
        With ``until`` only those that are wanted. Cancelling closes the connection. Raises BackendError."""
        return await self._whole(
            _Call("POST", path, dict(json), deadline, streamed=True, near=near, requester=requester), until
        )

    async def stream(
        self, path: str, json: Mapping[str, Any], *, deadline: float, near: str = ""
    ) -> AsyncGenerator[Json, None]:
        """The events of a stream as they come, up to ``[DONE]``. It is made again only before the first event. Closing
        the generator closes the connection. Raises BackendError."""
        call = _Call("POST", path, dict(json), deadline, streamed=True, near=near)
        async for attempt in self._attempts(call):
            with attempt:
                async with aclosing(self._once(call)) as events:
                    async for event in events:
                        call.begun = True
                        yield event

    async def aclose(self) -> None:
        """Closes all connections."""
        for each in self._endpoints:
            await each.close()

    def call_one_at_a_time(self) -> None:
        """From now on, a call to a URL waits until the one before it has ended."""
        for each in self._endpoints:
            logger.warning("backend %s ends a request when another one comes: it is sent one at a time", each.url)
            each.limit = CallLimit(1)

    def status(self) -> list[UrlStatus]:
        """How each URL does."""
        now = asyncio.get_running_loop().time()
        return [each.status(now) for each in self._endpoints]

    async def _whole(self, call: _Call, until: Until | None = None) -> list[Json]:
        async for attempt in self._attempts(call):
            with attempt:
                found: list[Json] = []
                is_last = until() if until else None
                async with aclosing(self._once(call)) as replies:
                    async for reply in replies:
                        found.append(reply)
                        if is_last is not None and is_last(reply):
                            break
                return found
        raise AssertionError("the last attempt raises its error")

    def _attempts(self, call: _Call) -> AsyncRetrying:
        clock = asyncio.get_running_loop().time

        def again(error: BaseException) -> bool:
            if not isinstance(error, BackendError) or error.fault in FINAL or call.over or call.begun:
                return False
            return len(call.barred) < len(self._endpoints) and call.failures < self._settings.attempts

        def is_late(state: RetryCallState) -> bool:
            return clock() + state.upcoming_sleep >= call.deadline

        backoff = wait_random_exponential(multiplier=0.1, max=2.0)
        return AsyncRetrying(retry=retry_if_exception(again), stop=is_late, wait=backoff, reraise=True)

    async def _once(self, call: _Call) -> AsyncGenerator[Json, None]:
        """One attempt."""
        settings = self._settings
        async with self._place(call) as (endpoint, told):
            limits = ReplyLimits(settings.reply_s, settings.idle_s, settings.max_reply_bytes, call.deadline)
            exchange = Exchange(endpoint.session, endpoint.url, endpoint.target(call.path), endpoint.key, limits)
            async with aclosing(exchange.replies(call.method, call.body, call.streamed)) as replies:
                async for reply in replies:
                    told(Usage.told(reply))
                    yield reply

    @asynccontextmanager
    async def _place(self, call: _Call) -> AsyncIterator[tuple[_Endpoint, Callable[[Usage | None], None]]]:
        """Context of an attempt at a URL; yields it, and what takes the figures of each reply. Raises BackendError, as
        the attempt does."""
        clock = asyncio.get_running_loop().time
        endpoint = await self._admitted(call)
        sent_at, beside = clock(), endpoint.calls
        self._calls.spend(1, sent_at)
        spent = self._tokens.spend(call.most_tokens, sent_at)
        work, answers = 0, False

        def told(usage: Usage | None) -> None:
            nonlocal work, answers
            answers = True
            if usage is not None:
                work = usage.output_tokens or usage.input_tokens
                self._tokens.settle(spent, usage.input_tokens + usage.output_tokens)

        try:
            yield endpoint, told
        except BackendError as error:
            call.tried.add(endpoint)
            call.failures += error.fault is not Fault.BUSY
            if error.fault in OF_THE_URL:
                call.barred.add(endpoint)
            if error.fault is Fault.REFUSED:  # the server works
                endpoint.succeed()
            elif error.fault is not Fault.LATE:  # the search had little time
                endpoint.fail(error, sent_at, clock())
            raise
        except GeneratorExit:  # the caller has what it wants
            if answers:
                endpoint.succeed()
            raise
        else:
            endpoint.succeed()
            if call.body:
                endpoint.limit.answered(clock() - sent_at, max(beside, endpoint.calls), work)
        finally:
            endpoint.calls -= 1
            self._freed.set()

    async def _admitted(self, call: _Call) -> _Endpoint:
        """The URL for an attempt, with the call counted there."""
        try:
            async with asyncio.timeout_at(call.deadline), self._dispatch.hold(call.requester):
                while True:
                    endpoint, wait_s = self._next(call)
                    if endpoint is not None:
                        endpoint.calls += 1
                        return endpoint
                    await self._wait(wait_s)
        except TimeoutError:
            pass
        raise BackendError(Fault.LATE, "", "no room for the call by the deadline")

    async def _wait(self, seconds: float) -> None:
        self._freed.clear()
        try:
            async with asyncio.timeout(seconds if seconds < float("inf") else None):
                await self._freed.wait()
        except TimeoutError:
            pass

    def _next(self, call: _Call) -> tuple[_Endpoint | None, float]:
        """The URL for an attempt; or None, and the seconds after which there may be one if no call ends before.

        Raises:
            BackendError: there is none before the deadline.
        """
        now = asyncio.get_running_loop().time()
        at, url, reason = max(self._calls.free_at(1, now), self._tokens.free_at(call.most_tokens, now)), "", MINUTE_FULL
        able = [each for each in self._endpoints if each not in call.barred]
        first = min(able, key=lambda each: each.rests_until)
        if first.rests_until > max(at, now):
            at, url, reason = first.rests_until, first.url, "it has too much to do"
        if at > call.deadline:
            call.over = True
            told = f"{reason}: the next call may be made in {at - now:.0f} s, after the deadline"
            raise BackendError(Fault.BUSY, url, told, None, at - now)
        if at > now:
            return None, at - now
        awake = [each for each in able if each.rests_until <= now]
        # One that was left is taken only where there is no other.
        choice = [each for each in awake if each.is_healthy(now)] or awake
        free = [each for each in choice if each.has_room]
        free = [each for each in free if each not in call.tried] or free
        if not free:
            return None, min((each.rests_until - now for each in able if each.rests_until > now), default=float("inf"))
        idlest = min(free, key=lambda each: each.load)
        if call.near:
            home = max(free, key=lambda each: each.closeness(call.near))
            if home.load <= NEAR_LOAD * idlest.load:
                return home, 0.0
        return idlest, 0.0


def _most_tokens(body: bytes, given: Mapping[str, Any]) -> int:
    """The most tokens that a call may take, about."""
    limits = (given.get(name) for name in ("max_completion_tokens", "max_tokens"))
    most = next((limit for limit in limits if isinstance(limit, int)), 0)
    branches = given.get("n")
    return len(body) // BYTES_PER_TOKEN + most * (branches if isinstance(branches, int) else 1)
