"""The client reads what a Banyan endpoint sends, and tells apart what can go wrong."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from endpoint_stand_in import STEPS, Endpoint, tree_of

from cluster.client.client import Client
from cluster.client.errors import ClientError, ProtocolError, Refused, TooLate, Unreachable
from cluster.client.replies import AnswerText, Completion, Event, Question, StepScored
from search.run.report import SearchCost

QUESTION = Question("1 + 1?", {"strategy": "beam_search", "n": 4}, seed=5)


async def ask(url: str, api_key: str | None = None, timeout_s: float = 10.0) -> Completion:
    async with Client(url, api_key, timeout_s) as client:
        return await client.ask(QUESTION)


async def stream(url: str, timeout_s: float = 10.0) -> list[Event]:
    async with Client(url, timeout_s=timeout_s) as client:
        return [event async for event in client.stream(QUESTION)]


def test_a_plain_reply(endpoint: Endpoint) -> None:
    reply = asyncio.run(ask(f"{endpoint.url}/v1/"))
    assert reply.search.answer == "2"
    assert reply.search.model_extra == {"a_figure_of_tomorrow": 40}
    assert reply.search.cost == SearchCost(
        nodes=3, expand_calls=2, prm_calls=2, generated_tokens=30, cached_tokens=12, seconds=0.01
    )
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 30
    assert endpoint.requests == [
        {
            "model": "stand-in",
            "messages": [{"role": "user", "content": "1 + 1?"}],
            "search": {"strategy": "beam_search", "n": 4},
            "seed": 5,
        }
    ]


def ask_for_a_tree(url: str) -> Completion:
    async def go() -> Completion:
        async with Client(url, timeout_s=10.0) as client:
            return await client.ask(replace(QUESTION, tree=True))

    return asyncio.run(go())


def test_a_tree_comes_only_where_it_is_asked_for(endpoint: Endpoint) -> None:
    assert asyncio.run(ask(endpoint.url)).tree is None
    tree = ask_for_a_tree(endpoint.url).tree
    assert tree is not None
    assert [(node.id, node.tokens, node.logprob) for node in tree.nodes] == [((0,), 4, -1.0), ((0, 0), 6, -2.0)]
    assert endpoint.requests[0] == endpoint.requests[1], "the request is the same, its route is another"


@pytest.mark.parametrize(
    ("tree", "complaint"),
    [
        (None, "TreeView"),
        ([], "TreeView"),
        ({"version": 1, "nodes": []}, "version"),
        ({"version": 2}, "nodes"),
        ({"version": 2, "nodes": [{"id": [0]}]}, "nodes.0.text"),
        ({"version": 2, "nodes": tree_of("2")["nodes"][1:]}, "nodes.0 cannot be where its id says"),
        ({"version": 2, "nodes": tree_of("2")["nodes"] * 2}, "two nodes have the same id"),
    ],
)
def test_a_tree_that_is_none_is_a_protocol_error(endpoint: Endpoint, tree: Any, complaint: str) -> None:
    endpoint.trees = {"1 + 1?": tree}
    with pytest.raises(ProtocolError, match=complaint):
        ask_for_a_tree(endpoint.url)


def test_a_streamed_reply_has_every_step_then_the_answer_then_the_whole(endpoint: Endpoint) -> None:
    events = asyncio.run(stream(endpoint.url))
    steps = [event for event in events if isinstance(event, StepScored)]
    assert [(step.node, step.text, step.reward, step.terminal) for step in steps] == list(STEPS)
    assert [type(event) for event in events[3:]] == [AnswerText, AnswerText, Completion]
    last = events[-1]
    assert isinstance(last, Completion)
    assert last.text == "1 + 1 = 2\n\n\\boxed{2} \u2028"
    assert last.usage is not None
    assert endpoint.requests[0]["stream_options"] == {"include_usage": True}


def test_a_stream_that_ends_early_is_no_answer(endpoint: Endpoint) -> None:
    endpoint.cut_stream = True
    with pytest.raises(ProtocolError, match="before the answer was complete"):
        asyncio.run(stream(endpoint.url))


def test_an_error_keeps_what_the_endpoint_said(endpoint: Endpoint) -> None:
    endpoint.refusals = [(429, {"Retry-After": "3"})]
    with pytest.raises(Refused, match="not now") as refused:
        asyncio.run(ask(endpoint.url))
    assert (refused.value.status, refused.value.code, refused.value.retry_after_s) == (429, "some_code", 3.0)


def test_the_key_is_sent(endpoint: Endpoint) -> None:
    endpoint.api_key = "secret"
    with pytest.raises(Refused) as refused:
        asyncio.run(ask(endpoint.url))
    assert refused.value.status == 401
    assert asyncio.run(ask(endpoint.url, "secret")).search.answer == "2"


def test_a_request_ends_by_its_deadline(endpoint: Endpoint) -> None:
    endpoint.hang = True
    with pytest.raises(TooLate):
        asyncio.run(ask(endpoint.url, timeout_s=0.2))
    with pytest.raises(TooLate):
        asyncio.run(stream(endpoint.url, timeout_s=0.2))


def test_nobody_there(nobody: str) -> None:
    with pytest.raises(Unreachable, match="nothing listens"):
        asyncio.run(ask(nobody))


@pytest.mark.parametrize("url", ["http://[", "ftp://127.0.0.1", "nonsense", "http://127.0.0.1:99999"])
def test_a_url_that_is_none_is_a_client_error(url: str) -> None:
    with pytest.raises(ClientError):
        asyncio.run(ask(url))
