"""Every call to a backend ends in a reply or in a typed error, whatever the server does, and no key is ever shown."""

import asyncio
import json
import logging
import pickle
import ssl
import traceback
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from backend_faults import FAULTS, IMPATIENT, KEY, STREAM
from rude_server import (
    ANSWER,
    EVENTS,
    Behaviour,
    RudeServer,
    event,
    good,
    hangs,
    head,
    replies,
    says,
    streams,
)

from deployments.backends.errors import BackendError, Fault
from deployments.backends.pool import Pool
from deployments.backends.settings import BackendSettings
from search.tools.fair_slots import Requester

BODY = {"messages": [{"role": "user", "content": "6 * 7?"}], "seed": 3, "max_tokens": 8}
ONCE: dict[str, Any] = {"attempts": 1, "max_reply_bytes": 4096}
CHAT = "/v1/chat/completions"


def soon(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


@asynccontextmanager
async def pool_of(*servers: RudeServer, **settings: Any) -> AsyncIterator[Pool]:
    urls = [server.url for server in servers]
    pool = Pool(BackendSettings(**({"url": urls[0]} if len(urls) == 1 else {"urls": urls}), **settings))
    try:
        yield pool
    finally:
        await pool.aclose()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    return file


async def call(pool: Pool, streamed: bool, seconds: float) -> Any:
    if streamed:
        return await pool.collect(CHAT, BODY, deadline=soon(seconds))
    return await pool.post(CHAT, BODY, deadline=soon(seconds))


@pytest.mark.parametrize(("fault", "streamed", "behaviour"), FAULTS.values(), ids=FAULTS)
async def test_every_misbehaviour_is_a_typed_error_without_the_key(
    fault: Fault,
    streamed: bool,
    behaviour: Behaviour,
    key_file: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("REST_S", "REST_MAX_S"):  # a server that is busy once is busy until after the deadline
        monkeypatch.setattr(f"deployments.backends.pool.{name}", 3600.0)
    settings = ONCE | (IMPATIENT if fault is Fault.SILENT else {})
    async with RudeServer(behaviour) as server, pool_of(server, api_key_file=key_file, **settings) as pool:
        with pytest.raises(BackendError) as caught:
            await call(pool, streamed, 1.0 if fault is Fault.LATE else 60)
        error = caught.value
        assert (error.fault, error.url) == (fault, server.url)
        assert {request.headers["authorization"] for request in server.requests} <= {f"Bearer {KEY}"}
        # On a busy machine a call that ends by the clock may end before the server has read it.
        assert server.requests or fault in (Fault.LATE, Fault.SILENT)
        copy = pickle.loads(pickle.dumps(error))
        assert (copy.fault, copy.status, str(copy)) == (error.fault, error.status, str(error))
        assert error.__cause__ is None
        assert error.__context__ is None  # such as httpx's error, which has the request
        # With the variables of every frame, as some tools print them.
        told = traceback.TracebackException.from_exception(error, capture_locals=True, max_group_width=100)
        shown = ["".join(told.format()), repr(error), str(pool.status()), repr(pool), caplog.text]
    assert not [text for text in shown if KEY in text]


async def test_a_certificate_that_nobody_knows_is_refused_and_one_of_the_operators_own_is_not(
    certificate: Path, server_tls: ssl.SSLContext
) -> None:
    async with RudeServer(good, tls=server_tls) as server:
        async with pool_of(server) as pool:
            with pytest.raises(BackendError, match=r"its certificate is not valid: self-signed") as caught:
                await call(pool, False, 20)
        assert caught.value.fault is Fault.CERTIFICATE
        assert not server.requests
        async with pool_of(server, ca_file=certificate) as pool:
            assert await call(pool, False, 20) == ANSWER
            named = RudeServer()
            named.url = server.url.replace("127.0.0.1", "localhost")  # another name than the certificate's
            async with pool_of(named, ca_file=certificate, attempts=1) as other:
                with pytest.raises(BackendError) as caught:
                    await call(other, False, 20)
            assert caught.value.fault is Fault.CERTIFICATE


async def test_a_redirect_is_not_followed(key_file: Path) -> None:
    async with RudeServer(good) as elsewhere:
        redirect = replies(307, Location=f"{elsewhere.url}/v1/chat/completions")
        async with RudeServer(redirect) as server, pool_of(server, api_key_file=key_file) as pool:
            with pytest.raises(BackendError) as caught:
                await call(pool, False, 20)
        assert caught.value.fault is Fault.REDIRECT
        assert len(server.requests) == 1
        assert not elsewhere.requests


@pytest.mark.parametrize(
    "name", ["cut before headers", "cut in an event", "500", "silent in the body", "truncated JSON", "wrong key", "429"]
)
async def test_a_call_that_fails_is_made_elsewhere_with_the_same_body(name: str) -> None:
    _, streamed, behaviour = FAULTS[name]
    async with RudeServer(behaviour) as bad, RudeServer(streams(*EVENTS) if streamed else good) as well:
        idle_s = 0.2 if name.startswith("silent") else 20.0
        async with pool_of(bad, well, **ONCE | {"attempts": 2, "idle_s": idle_s}) as pool:
            assert await call(pool, streamed, 20) == (EVENTS if streamed else ANSWER)
        [first], [second] = bad.requests, well.requests
        assert first.body == second.body
        assert json.loads(first.body) == BODY


@pytest.mark.parametrize(
    ("headers", "end"),
    [
        ({}, b"data: [DONE]\n"),
        ({}, b"data: [DONE]"),
        ({}, b"data: [DONE]\r\n"),
        ({"Content_Length": "100000"}, b"data: [DONE]\n\n"),
        ({"Transfer_Encoding": "chunked"}, b"data: [DONE]\n\n"),
    ],
)
async def test_a_stream_that_ends_behind_its_last_event_is_whole(headers: dict[str, str], end: bytes) -> None:
    body = b"".join(map(event, EVENTS)) + end
    if "Transfer_Encoding" in headers:  # the last chunk is missing
        body = f"{len(body):x}\r\n".encode() + body + b"\r\n"
    reply = says(head(kind="text/event-stream", **headers) + body)
    async with RudeServer(reply) as server, pool_of(server) as pool:
        assert await pool.collect(CHAT, BODY, deadline=soon(20)) == EVENTS
        [status] = pool.status()
    assert (len(server.requests), status.answered, status.failed) == (1, 1, 0)


async def test_a_stream_may_begin_as_late_as_any_reply() -> None:
    async def queues(write: Any, request: Any) -> None:
        await write(STREAM)
        await asyncio.sleep(1.0)
        await write(b"".join(map(event, EVENTS)) + b"data: [DONE]\n\n")

    async with RudeServer(queues) as server, pool_of(server, idle_s=0.2, reply_s=20) as pool:
        assert await pool.collect(CHAT, BODY, deadline=soon(20)) == EVENTS
    assert len(server.requests) == 1


async def test_a_late_call_says_nothing_of_its_url_and_a_stream_that_is_closed_is_an_answer() -> None:
    begins = hangs(STREAM + event(EVENTS[0]))
    async with RudeServer(hangs()) as server, pool_of(server) as pool:
        for _ in range(3):
            with pytest.raises(BackendError, match="deadline"):
                await call(pool, False, 0.2)
        [status] = pool.status()
        assert (status.healthy, status.answered, status.failed) == (True, 0, 0)
        server._behaviours = (begins,)
        first = await pool.collect(CHAT, BODY, deadline=soon(20), until=lambda: lambda event: True)
        assert first == EVENTS[:1]
        assert pool.status()[0].answered == 1


@pytest.mark.parametrize("headers", [{}, {"Retry_After": "0.05"}])
async def test_a_busy_server_is_called_again_as_often_as_it_takes(headers: dict[str, str]) -> None:
    busy = replies(429, **headers)
    async with RudeServer(busy, busy, good) as server, pool_of(server, attempts=1) as pool:
        assert await call(pool, False, 60) == ANSWER
        assert len(server.requests) == 3
        [status] = pool.status()
        assert (status.answered, status.failed) == (1, 0)


async def test_a_server_that_stays_broken_is_given_up_after_the_attempts() -> None:
    async with RudeServer(replies(500)) as server, pool_of(server, attempts=3) as pool:
        with pytest.raises(BackendError, match="500"):
            await call(pool, False, 60)
        assert len(server.requests) == 3


async def test_a_refused_request_is_not_made_again() -> None:
    async with RudeServer(replies(400)) as one, RudeServer(good) as other, pool_of(one, other) as pool:
        with pytest.raises(BackendError, match="400"):
            await call(pool, False, 60)
        assert (len(one.requests), len(other.requests)) == (1, 0)


async def test_a_stream_that_the_caller_has_begun_to_read_is_not_begun_again() -> None:
    cut = says(STREAM + event(EVENTS[0]))
    async with RudeServer(replies(500), cut, streams(*EVENTS)) as server, pool_of(server) as pool:
        events = pool.stream(CHAT, BODY, deadline=soon(60))
        assert await anext(events) == EVENTS[0]
        with pytest.raises(BackendError, match="without"):
            await anext(events)
        assert len(server.requests) == 2  # the first one failed before it began
        assert await pool.collect(CHAT, BODY, deadline=soon(60)) == EVENTS


async def test_closing_a_stream_or_cancelling_a_call_closes_the_connection() -> None:
    async with RudeServer(hangs(STREAM + event(EVENTS[0])), hangs()) as server, pool_of(server) as pool:
        async with aclosing(pool.stream(CHAT, BODY, deadline=soon(60))) as events:
            assert await anext(events) == EVENTS[0]
        waiting = asyncio.create_task(pool.post(CHAT, BODY, deadline=soon(60)))
        while len(server.requests) < 2:
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        for request in server.requests:
            async with asyncio.timeout(10):
                await request.hung_up.wait()
        [status] = pool.status()
        assert (status.calls, status.failed) == (0, 0)


async def test_a_url_that_cannot_be_reached_is_left_and_tried_again_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.backends.pool.LEFT_S", 3600.0)
    async with RudeServer(good) as down:
        pass
    async with RudeServer(good) as well, pool_of(down, well) as pool:
        for _ in range(3):
            assert await call(pool, False, 20) == ANSWER
        assert [each.failed for each in pool.status()] == [1, 0]
        assert caplog.text.count("is left for a while") == 1
        host, _, port = down.url.removeprefix("http://").partition(":")
        again = RudeServer(good)
        again._server = await asyncio.start_server(again._serve, host, int(port))
        try:
            pool._endpoints[0]._left_until = 0.0
            assert await call(pool, False, 20) == ANSWER
            assert len(again.requests) == 1
            assert all(each.healthy for each in pool.status())
            assert caplog.text.count("answers again") == 1
        finally:
            await again.__aexit__()


async def test_calls_wait_in_line_for_room_and_end_by_the_deadline() -> None:
    async with RudeServer(hangs()) as server, pool_of(server, max_calls=1, attempts=1) as pool:
        first = asyncio.create_task(pool.post(CHAT, BODY, deadline=soon(60)))
        while not server.requests:
            await asyncio.sleep(0.01)
        with pytest.raises(BackendError, match="no room for the call") as caught:
            await pool.post(CHAT, BODY, deadline=soon(0.1))
        assert caught.value.fault is Fault.LATE
        waiting = asyncio.create_task(pool.post(CHAT, BODY, deadline=soon(60)))
        first.cancel()
        while len(server.requests) < 2:
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(first, waiting, return_exceptions=True)


async def test_searches_and_their_owners_take_turns_for_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.backends.pool.TURN", 2)
    async with RudeServer(good) as server, pool_of(server, max_calls=1) as pool:

        async def ask(owner: str, search_id: str) -> None:
            body = BODY | {"user": f"{owner} {search_id}"}
            await pool.post(CHAT, body, deadline=soon(60), requester=Requester(owner, search_id))

        async with asyncio.TaskGroup() as group:
            for owner, search_id in [("a", "1")] * 12 + [("a", "2")] * 2 + [("b", "3")] * 2:
                group.create_task(ask(owner, search_id))
    asked = [json.loads(request.body)["user"] for request in server.requests]
    # Two are taken before the others come: one at the server, and the one that is next.
    assert asked == ["a 1"] * 4 + ["b 3"] * 2 + ["a 2"] * 2 + ["a 1"] * 8


@pytest.mark.parametrize("limit", [{"calls_per_minute": 2}, {"tokens_per_minute": 45}])
async def test_calls_that_the_limits_of_a_minute_leave_no_time_for_are_not_sent(limit: dict[str, int]) -> None:
    async with RudeServer(good) as server, pool_of(server, **limit) as pool:
        # Each is taken for 32 tokens or more, until the server says that it took 9.
        assert [await call(pool, False, 20) for _ in range(2)] == [ANSWER, ANSWER]
        with pytest.raises(BackendError, match="is used up: the next call may be made in") as caught:
            await call(pool, False, 20)
        assert caught.value.fault is Fault.BUSY
        assert len(server.requests) == 2


async def test_calls_go_to_urls_by_weight() -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(RudeServer(hangs())) for _ in range(2)]
        urls = [{"url": servers[0].url, "weight": 3}, servers[1].url]
        pool = Pool(BackendSettings(urls=urls))
        calls = [asyncio.create_task(call(pool, False, 60)) for _ in range(16)]
        while sum(len(server.requests) for server in servers) < 16:
            await asyncio.sleep(0.01)
        assert [len(server.requests) for server in servers] == [12, 4]
        for each in calls:
            each.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await pool.aclose()


async def test_calls_that_share_a_prefix_go_to_one_url_unless_it_is_far_busier() -> None:
    async with RudeServer(good) as one, RudeServer(good) as other, pool_of(one, other) as pool:
        homes = []
        for near in map(str, range(12)):
            before = len(one.requests)
            for _ in range(3):
                await pool.post(CHAT, BODY, deadline=soon(20), near=near)
            homes.append(len(one.requests) - before)
        assert set(homes) == {0, 3}
        again = Pool(BackendSettings(urls=[other.url, one.url]))  # the order of URLs is of no account
        for near in map(str, range(12)):
            before = len(one.requests)
            await again.post(CHAT, BODY, deadline=soon(20), near=near)
            assert 3 * (len(one.requests) - before) == homes[int(near)]
        await again.aclose()
    async with RudeServer(hangs()) as one, RudeServer(hangs()) as other, pool_of(one, other) as pool:
        calls = [asyncio.create_task(pool.post(CHAT, BODY, deadline=soon(60), near="same")) for _ in range(9)]
        while len(one.requests) + len(other.requests) < 9:
            await asyncio.sleep(0.01)
        assert sorted((len(one.requests), len(other.requests))) == [3, 6]
        for each in calls:
            each.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_each_url_gets_its_own_key_and_paths_are_those_of_openais_base_url(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_KEY", "sk-other")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # not a URL that the settings name
    async with RudeServer(good) as one, RudeServer(good) as other:
        urls = [one.url + "/v1/", {"url": other.url + "/some/where", "api_key_env": "OTHER_KEY"}]
        pool = Pool(BackendSettings(urls=urls, api_key_file=key_file))
        await asyncio.gather(call(pool, False, 20), call(pool, False, 20))
        await asyncio.gather(*(pool.post("/pooling", {}, deadline=soon(20)) for _ in range(2)))
        await pool.aclose()
        assert [(each.target, each.headers["authorization"]) for each in one.requests] == [
            ("/v1/chat/completions", f"Bearer {KEY}"),
            ("/pooling", f"Bearer {KEY}"),
        ]
        assert [(each.target, each.headers["authorization"]) for each in other.requests] == [
            ("/some/where/chat/completions", "Bearer sk-other"),
            ("/some/where/pooling", "Bearer sk-other"),
        ]
