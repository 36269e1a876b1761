"""The endpoint in front of a backend: a server of OpenAI's API over a model without an engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from http_world import World

from deployments.backends.capabilities import Capabilities, Continuing
from deployments.backends.generator import UrlGenerator
from search.answers.equivalence import AnswerMatcher
from tests.unit.backends.text_model import MODEL, TextModel

CAN = Capabilities(
    MODEL, 512, Continuing.ASKED, stops=True, seeds=True, n=True, usage=True, sampling=True, cancels=True
)
CHAT = [{"role": "system", "content": "Add."}, {"role": "user", "content": "How much is <|im_end|> it?"}]


@asynccontextmanager
async def served(matcher: AnswerMatcher, can: Capabilities, **own: Any) -> AsyncIterator[tuple[TextModel, World]]:
    model = TextModel()
    async with model.served() as pool:
        generator = UrlGenerator(pool, can, served_name="m")
        world = World(matcher, backend=can, generator=generator, **{"prm": {"family": "none"}} | own)
        yield model, world
        world.assert_idle()


async def posted(world: World, **fields: Any) -> httpx.Response:
    async with world.client as client:
        return await client.post("/v1/chat/completions", json={"model": "m", "messages": CHAT, "seed": 5, **fields})


async def test_a_question_is_answered_by_a_vote_of_the_backends_samples(matcher: AnswerMatcher) -> None:
    async with served(matcher, CAN) as (model, world):
        replies = [(await posted(world)).json() for _ in range(2)]
    first, again = replies
    assert first["search"]["strategy"] == "self_consistency"
    assert first["choices"] == again["choices"]
    assert len(model.bodies) == 16
    assert [body["messages"] for body in model.bodies] == [CHAT] * 16  # as the client wrote them
    assert first["usage"]["prompt_tokens"] == 7  # what the backend says, not the estimate


async def test_solutions_are_read_together_by_a_backend_that_writes_whole_ones_only(matcher: AnswerMatcher) -> None:
    search = {"strategy": "fuse", "n": 4, "k": 2, "rounds": 1}
    async with served(matcher, replace(CAN, continues=Continuing.NO)) as (model, world):
        replies = [(await posted(world, search=search)).json() for _ in range(2)]
    assert replies[0]["choices"] == replies[1]["choices"]
    assert replies[0]["search"]["strategy"] == "fuse"
    asked = [body["messages"] for body in model.bodies]
    assert [messages == CHAT for messages in asked] == ([True] * 4 + [False] * (len(asked) // 2 - 4)) * 2
    assert len(asked) // 2 == 8
    assert all([each["role"] for each in messages] == ["system", "user"] for messages in asked)


async def test_the_list_of_models_shows_what_can_be_searched_with(matcher: AnswerMatcher) -> None:
    async with served(matcher, CAN) as (_, world), world.client as client:
        models = (await client.get("/v1/models")).json()["data"]
    assert [each["id"] for each in models] == ["m", "m:greedy", "m:sc-16"]


@pytest.mark.parametrize(
    ("can", "fields", "path", "says"),
    [
        (
            {"continues": Continuing.NO},
            {"search": {"strategy": "beam_search"}},
            "search.strategy",
            "writes step by step",
        ),
        (
            {"continues": Continuing.NO},
            {
                "messages": [*CHAT, {"role": "assistant", "content": "It"}],
                "continue_final_message": True,
                "search": {"strategy": "greedy"},
            },
            "messages",
            "cannot continue an answer that is begun",
        ),
        ({}, {"search": {"strategy": "best_of_n", "n": 4}}, "search.strategy", "best_of_n needs rewards, and there is"),
        ({}, {"search": {"strategy": "refine", "n": 4}}, "search.strategy", "refine needs rewards with these settings"),
        ({}, {"search": {"strategy": "fuse", "weights": "rewards"}}, "search.strategy", "needs rewards with these"),
        ({}, {"search": {"strategy": "fuse", "selection": "naive"}}, "search.strategy", "needs rewards with these"),
        ({"seeds": False}, {"search": {"seed": 3}}, "search.seed", "takes no seeds"),
        ({}, {"logprobs": True}, "logprobs", "no log-probabilities"),
        ({"logprobs": True}, {"logprobs": True}, "logprobs", "where generator.tokenizer is set"),
        ({}, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "in front of a backend"),
    ],
)
async def test_what_the_backend_lacks_is_refused_by_the_field_that_asks_for_it(
    matcher: AnswerMatcher, can: dict[str, Any], fields: dict[str, Any], path: str, says: str
) -> None:
    # With rewards a strategy is refused for the backend alone.
    own = {"prm": {"family": "function", "function": "a:b"}} if "continues" in can else {}
    async with served(matcher, replace(CAN, **can), **own) as (model, world):
        reply = await posted(world, **fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, path)
    assert says in error["message"]
    assert model.bodies == []


async def test_a_seed_that_clients_send_unasked_is_no_fault_where_there_are_none(matcher: AnswerMatcher) -> None:
    async with served(matcher, replace(CAN, seeds=False)) as (model, world):
        assert (await posted(world)).status_code == 200
    assert [body["n"] for body in model.bodies] == [8]
    assert not any("seed" in body for body in model.bodies)


async def test_an_answer_goes_on_behind_its_beginning(matcher: AnswerMatcher) -> None:
    begun = [*CHAT, {"role": "assistant", "content": "It is"}]
    async with served(matcher, CAN) as (model, world):
        flags = {"continue_final_message": True, "add_generation_prompt": False}
        reply = await posted(world, messages=begun, search={"strategy": "greedy"}, **flags)
    assert reply.status_code == 200
    assert [body["messages"] for body in model.bodies] == [begun]
    assert model.bodies[0]["continue_final_message"] is True


async def test_a_prompt_that_cannot_fit_is_refused_before_it_is_sent(matcher: AnswerMatcher) -> None:
    async with served(matcher, CAN) as (model, world):
        reply = await posted(world, messages=[{"role": "user", "content": "word " * 2000}])
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert model.bodies == []
