"""A request that ends engines: its error on every route, at the door from then on, and nobody tries it again."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from http_world import World, chat

from cluster.client.errors import Refused
from cluster.client.retries import worth_another_try
from search.errors import HarmfulRequest
from search.ports import ChildGroup, ExpandRequest, ScoreRequest, TokenBeamReply, TokenBeamRequest

CHAT = "/v1/chat/completions"
BEAM = {"model": "m", "prompt": "abc", "use_beam_search": True}
SCORE = {"question": "q", "steps": ["a\n\n"]}
RESPONSE = {"model": "m", "input": "6*7?"}


@pytest.fixture
def poisoned(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world in which every call ends its second engine."""

    async def expand(request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        world.generator.calls += 1
        raise world.service.suspects.found_harmful(request.search_id)
        yield

    async def other(request: ScoreRequest | TokenBeamRequest) -> TokenBeamReply:
        world.generator.calls += 1
        raise world.service.suspects.found_harmful(request.search_id)

    monkeypatch.setattr(world.generator, "expand", expand)
    monkeypatch.setattr(world.generator, "token_beam", other)
    monkeypatch.setattr(world.scorer, "score", other)
    return world


def is_harmful(reply: httpx.Response) -> bool:
    code, again = reply.json()["error"]["code"], reply.headers["x-should-retry"]
    return (reply.status_code, code, again) == (500, "engine_ended_twice", "false")


@pytest.mark.parametrize(
    ("path", "body", "other_seed"),
    [
        (CHAT, chat(), chat(seed=2, search={"strategy": "beam_search", "n": 2, "m": 2})),
        ("/v1/search", chat(), chat(seed=2, temperature=0.3)),
        ("/v1/responses", RESPONSE, RESPONSE | {"temperature": 0.3}),
        ("/v1/completions", BEAM, BEAM | {"n": 2}),
        ("/v1/score", SCORE, SCORE),
    ],
)
async def test_it_fails_for_good_and_is_refused_from_then_on(
    poisoned: World, path: str, body: dict[str, Any], other_seed: dict[str, Any]
) -> None:
    async with poisoned.client as client:
        assert is_harmful(await client.post(path, json=body))
        calls = poisoned.generator.calls
        assert is_harmful(await client.post(path, json=other_seed))
    assert poisoned.generator.calls == calls == 1
    poisoned.assert_idle()


async def test_a_stream_of_it_is_refused_before_it_begins(poisoned: World) -> None:
    async with poisoned.client as client:
        first = await client.post(CHAT, json=chat(stream=True))
        assert '"code":"engine_ended_twice"' in first.text
        assert is_harmful(await client.post(CHAT, json=chat(stream=True)))
        assert is_harmful(await client.post("/v1/responses", json=RESPONSE | {"stream": True}))


async def test_another_question_is_answered(poisoned: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with poisoned.client as client:
        assert is_harmful(await client.post(CHAT, json=chat()))
        monkeypatch.undo()
        other = chat(messages=[{"role": "user", "content": "7*7?"}])
        assert (await client.post(CHAT, json=other)).status_code == 200
        assert is_harmful(await client.post(CHAT, json=chat()))


async def test_the_official_client_does_not_try_it_again(poisoned: World) -> None:
    sent = []
    async with poisoned.client as http:
        http.event_hooks["request"] = [_noted(sent)]
        client = openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="unused", http_client=http, max_retries=3)
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "6*7?"}])
    assert len(sent) == 1


def _noted(sent: list[httpx.Request]) -> Any:
    async def note(request: httpx.Request) -> None:
        sent.append(request)

    return note


@pytest.mark.parametrize("status", [500, None])
def test_our_client_does_not_try_it_again_streamed_or_not(status: int | None) -> None:
    assert not worth_another_try(Refused("", status, "server_error", code="engine_ended_twice"))
    assert worth_another_try(Refused("", status, "server_error", code="internal_error"))


def test_it_is_no_error_of_the_generator_or_the_scorer() -> None:
    """Neither may a search go on with what it has, nor without rewards."""
    assert {base.__name__ for base in HarmfulRequest.__mro__[1:]} == {
        *("SearchError", "RuntimeError", "Exception", "BaseException", "object"),
    }
