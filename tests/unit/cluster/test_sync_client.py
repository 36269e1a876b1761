"""The synchronous client returns what the asynchronous one returns, and leaves nothing running."""

import asyncio
import threading
from dataclasses import replace

import pytest
from endpoint_stand_in import STEPS, Endpoint

import cluster.client as public
from cluster.client import (
    AnswerText,
    Client,
    Completion,
    Disconnected,
    Event,
    Question,
    Refused,
    Restarted,
    Retries,
    StepScored,
    SyncClient,
    Unreachable,
)

QUESTION = Question("1 + 1?", {"strategy": "beam_search", "n": 4}, seed=5)
ONCE = Retries(attempts=1)


def test_it_returns_what_the_asynchronous_client_returns(endpoint: Endpoint) -> None:
    async def asynchronously() -> tuple[str, Completion, list[Event]]:
        async with Client(endpoint.url) as client:
            streamed = [event async for event in client.stream(QUESTION)]
            return await client.model(), await client.ask(replace(QUESTION, tree=True)), streamed

    model, asked, streamed = asyncio.run(asynchronously())
    with SyncClient(endpoint.url) as client:
        assert client.healthy()
        assert client.model() == model
        assert client.ask(replace(QUESTION, tree=True)) == asked
        assert list(client.stream(QUESTION)) == streamed
    kinds = [type(event) for event in streamed]
    assert kinds == [*[StepScored] * len(STEPS), AnswerText, AnswerText, Completion]


def test_it_works_inside_a_running_event_loop(endpoint: Endpoint) -> None:
    async def in_a_notebook() -> Completion:
        with SyncClient(endpoint.url) as client:
            return client.ask(QUESTION)

    assert asyncio.run(in_a_notebook()).search.answer == "2"


def test_a_broken_stream_restarts_or_raises(endpoint: Endpoint) -> None:
    endpoint.cut_streams = 1
    with SyncClient(endpoint.url, retries=Retries(attempts=2, backoff_s=0.01)) as client:
        events = list(client.stream(QUESTION))
        assert sum(isinstance(event, Restarted) for event in events) == 1
        assert isinstance(events[-1], Completion)
    endpoint.cut_streams = 1
    with SyncClient(endpoint.url, retries=ONCE) as client, pytest.raises(Disconnected):
        list(client.stream(QUESTION))


def test_closing_a_stream_ends_it_and_its_thread(endpoint: Endpoint) -> None:
    with SyncClient(endpoint.url, retries=ONCE) as client:
        events = client.stream(QUESTION)
        assert isinstance(next(events), StepScored)
        events.close()
        assert list(events) == []
        thread = client._portal.call(threading.current_thread)
    assert not thread.is_alive()


def test_errors_are_those_of_the_asynchronous_client(endpoint: Endpoint, nobody: str) -> None:
    endpoint.refusals = [(400, {})]
    with SyncClient(endpoint.url, retries=ONCE) as client, pytest.raises(Refused) as refused:
        client.ask(QUESTION)
    assert refused.value.status == 400
    with SyncClient(nobody, retries=ONCE) as client, pytest.raises(Unreachable):
        client.ask(QUESTION)
    with pytest.raises(RuntimeError, match="with block"):
        SyncClient(endpoint.url).model()


def test_a_question_may_have_a_history_and_an_effort(endpoint: Endpoint) -> None:
    history = ({"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"})
    with SyncClient(endpoint.url) as client:
        client.ask(Question("Sure?", effort="high", history=history, seed=1))
    [body] = endpoint.requests
    assert body["reasoning_effort"] == "high"
    assert [message["content"] for message in body["messages"]] == ["1 + 1?", "2", "Sure?"]
    assert "search" not in body


def test_the_exports_are_those_of_all() -> None:
    assert all(hasattr(public, name) for name in public.__all__)
    assert sorted(public.__all__) == public.__all__
