"""Errors that leave the endpoint are counted by status and code."""

from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import httpx
import pytest
from http_world import World, chat, generator_is_dead

from deployments.http.auth import ApiKeys
from deployments.http.keys import key_digest, key_record
from deployments.http.routes import create_app
from deployments.places import Owner
from deployments.telemetry.context import CLIENT_KEY
from search.answers.equivalence import AnswerMatcher

KEY = "a-key-of-the-tests"


class Counted:
    """An endpoint with one key, and what it refused."""

    def __init__(self, matcher: AnswerMatcher) -> None:
        self.refused: Counter[tuple[int, str]] = Counter()
        self.world = World(matcher)
        endpoint = replace(self.world.app.state.endpoint, refused=self._count)
        self.app = create_app(endpoint, ApiKeys([key_record(KEY)]))

    def _count(self, status: int, reason: str) -> None:
        self.refused[status, reason] += 1

    async def post(self, key: str = KEY, **fields: Any) -> int:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://banyan", timeout=30) as client:
            headers = {"Authorization": f"Bearer {key}"}
            return (await client.post("/v1/chat/completions", headers=headers, json=chat(**fields))).status_code


@pytest.fixture
def counted(matcher: AnswerMatcher) -> Counted:
    return Counted(matcher)


async def test_what_is_answered_is_not_counted(counted: Counted) -> None:
    assert await counted.post() == 200
    assert counted.refused == Counter()


async def test_each_error_is_counted_once_by_its_code(counted: Counted) -> None:
    assert await counted.post(key="another-key-altogether") == 401
    assert await counted.post(model="none") == 404
    counted.world.generator.error = generator_is_dead()
    assert await counted.post() == 503
    assert counted.refused[401, "invalid_api_key"] == 1
    assert counted.refused[503, "generator_unavailable"] == 1
    assert counted.refused.total() == 3


async def test_past_the_places_the_reason_says_what_is_short(counted: Counted) -> None:
    async with AsyncExitStack() as stack:
        for place in range(counted.world.service.places.count):
            await stack.enter_async_context(counted.world.service.places.hold(Owner(str(place))))
        assert await counted.post() == 429
    assert counted.refused == {(429, "places"): 1}


async def test_what_nobody_expected_is_counted_too(counted: Counted) -> None:
    counted.world.generator.error = ZeroDivisionError("of the generator")
    assert await counted.post() == 500
    assert counted.refused == {(500, "internal_error"): 1}


async def test_a_request_works_under_the_first_digits_of_its_keys_digest(
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
