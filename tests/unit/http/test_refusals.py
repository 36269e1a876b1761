"""Errors that the endpoint returns are counted by status and code."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from http_world import World, chat, generator_is_dead
from starlette.datastructures import MutableHeaders

from deployments.admission import middleware as admission
from deployments.admission import proxy
from deployments.admission.auth import ApiKeys
from deployments.admission.keys import key_digest, key_record
from deployments.admission.proxy import BACKOFF_HEADER, TURNED_AWAY, ProxyAdmission
from deployments.config import KeyLimits
from deployments.http.app import create_app
from deployments.service.slots import Owner
from deployments.telemetry.context import CLIENT_KEY
from search.answers.equivalence import AnswerMatcher

KEY, OTHER_KEY = "a-key-of-the-tests", "another-key-of-the-tests"
CHAT = "/v1/chat/completions"


class Counted:
    """An endpoint with one key, and counters of its refusals."""

    def __init__(self, matcher: AnswerMatcher) -> None:
        self.refused: Counter[tuple[int, str]] = Counter()
        self.world = World(matcher)
        endpoint = replace(self.world.app.state.endpoint, refused=self._count)
        self.keys = ApiKeys([key_record(KEY)])
        self.app = create_app(endpoint, self.keys)

    def _count(self, status: int, reason: str, count: int) -> None:
        self.refused[status, reason] += count

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30)

    async def post(self, key: str = KEY, **fields: Any) -> int:
        async with self.client() as client:
            return (await client.post(CHAT, headers=bearer(key), json=chat(**fields))).status_code


def bearer(key: str) -> dict[str, Any]:
    return {"Authorization": f"Bearer {key}"}


def clock_at(seconds: float) -> SimpleNamespace:
    """A clock that stands at ``seconds``."""
    return SimpleNamespace(monotonic=lambda: seconds)


@pytest.fixture
def counted(matcher: AnswerMatcher) -> Counted:
    return Counted(matcher)


async def test_answered_requests_are_not_counted(counted: Counted) -> None:
    assert await counted.post() == 200
    assert counted.refused == Counter()


async def test_every_error_is_counted_once_by_its_code(counted: Counted) -> None:
    assert await counted.post(key="another-key-altogether") == 401
    assert await counted.post(model="none") == 404
    counted.world.generator.error = generator_is_dead()
    assert await counted.post() == 503
    assert counted.refused[401, "invalid_api_key"] == 1
    assert counted.refused[503, "generator_unavailable"] == 1
    assert counted.refused.total() == 3


async def test_the_reason_of_a_refusal_names_what_is_exhausted(counted: Counted) -> None:
    async with AsyncExitStack() as stack:
        for slot in range(counted.world.service.slots.count):
            await stack.enter_async_context(counted.world.service.slots.hold(Owner(str(slot))))
        assert await counted.post() == 429
    assert counted.refused == {(429, "places"): 1}


async def test_refused_flex_requests_are_counted_separately(counted: Counted) -> None:
    slots = counted.world.service.slots
    async with AsyncExitStack() as stack:
        for slot in range(slots.count - 1):
            await stack.enter_async_context(slots.hold(Owner(str(slot))))
        assert await counted.post(service_tier="flex") == 429
    assert counted.refused == {(429, "flex"): 1}


async def test_refusals_of_the_proxy_are_counted_with_the_next_request(counted: Counted) -> None:
    admission = ProxyAdmission(counted.app)
    counted.app = admission  # type: ignore[assignment]
    assert await counted.post() == 200
    admission._inside = 1000
    assert [await counted.post() for _ in range(3)] == [429] * 3
    assert counted.refused == Counter()
    admission._inside = 0
    assert [await counted.post() for _ in range(2)] == [200] * 2
    assert counted.refused == {(429, "places"): 3}


async def test_the_proxy_refuses_a_key_at_its_limits_for_the_announced_time(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no other key. The error is the controller's."""
    counted.keys.replace([key_record(KEY, KeyLimits(places=1)), key_record(OTHER_KEY)])
    counted.app = ProxyAdmission(counted.app)  # type: ignore[assignment]
    monkeypatch.setitem(admission.RESTS, "owner", 60.0)
    monkeypatch.setattr(proxy, "time", clock_at(0.0))
    counted.world.generator.gate.clear()
    async with counted.client() as client:
        working = asyncio.create_task(client.post(CHAT, headers=bearer(KEY), json=chat()))
        while not counted.world.generator.running:
            await asyncio.sleep(0)
        first, second = [await client.post(CHAT, headers=bearer(KEY), json=chat()) for _ in range(2)]
        assert counted.refused == {(429, "owner"): 1}, "of the second the controller has not heard"
        counted.world.generator.gate.set()
        assert (await client.post(CHAT, headers=bearer(OTHER_KEY), json=chat())).status_code == 200
        assert counted.refused == {(429, "owner"): 2}
        assert (await working).status_code == 200
    assert (first.status_code, second.status_code) == (429, 429)
    assert BACKOFF_HEADER not in first.headers
    assert second.headers["retry-after"] == first.headers["retry-after"]
    words, said = second.json()["error"], first.json()["error"]
    assert words | {"message": None} == said | {"message": None}
    assert "limits.places" in words["message"]
    assert "limits.places" in said["message"]
    monkeypatch.setattr(proxy, "time", clock_at(float(first.headers["retry-after"])))
    assert await counted.post() == 200


async def test_the_proxy_remembers_a_key_per_application() -> None:
    headers = [(b"authorization", b"Bearer key")]
    paths = ["/v1/search", CHAT, "/b/v1/search", "/b/v1/score"]
    here, chatting, there, scoring = [proxy._client({"path": path, "headers": headers}) for path in paths]
    assert here == chatting != there == scoring
    assert proxy._client({"path": CHAT, "headers": []}) is None


async def test_remembered_keys_are_limited_and_expire(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "MOST_RESTING", 2)
    monkeypatch.setattr(proxy, "time", clock_at(0.0))
    admission = ProxyAdmission(counted.app)
    for name in (b"a", b"b", b"c"):
        admission._listen(MutableHeaders({BACKOFF_HEADER: "owner 0.5 1"}), name)
    assert set(admission._resting) == {b"a", b"b"}
    monkeypatch.setattr(proxy, "time", clock_at(0.6))
    admission._listen(MutableHeaders({BACKOFF_HEADER: "owner 0.5 1"}), b"c")
    assert set(admission._resting) == {b"c"}


@pytest.mark.parametrize("header", ["places", "places x", "places -1", "places 9999999999", "nothing 3", "", "owner ²"])
async def test_invalid_counts_of_the_proxy_are_ignored(counted: Counted, header: str) -> None:
    async with counted.client() as client:
        headers = bearer(KEY) | {TURNED_AWAY.decode(): header.encode()}
        assert (await client.post(CHAT, headers=headers, json=chat())).status_code == 200
    assert counted.refused == Counter()


async def test_unexpected_errors_are_counted_too(counted: Counted) -> None:
    counted.world.generator.error = ZeroDivisionError("of the generator")
    assert await counted.post() == 500
    assert counted.refused == {(500, "internal_error"): 1}


async def test_a_request_carries_the_first_digits_of_its_keys_digest(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    expand = counted.world.generator.expand

    def watched(request: Any) -> Any:
        seen.append(CLIENT_KEY.get())
        return expand(request)

    monkeypatch.setattr(counted.world.generator, "expand", watched)
    assert await counted.post() == 200
    assert set(seen) == {key_digest(KEY)[:8]}
