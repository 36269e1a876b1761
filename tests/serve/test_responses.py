"""Responses with a memory through OpenAI's own client, at two controllers, one of which is killed and starts again."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from ray import serve

from benchmarks.replicas import in_replicas
from tests.serve.application import Application, another_controller, kill, problems, until

MODEL = "banyan-arithmetic"
LONG = {"strategy": "mcts", "iterations": 4000, "budget": {"seconds": 200}}
SECOND = "second"


@pytest.fixture(scope="module")
def second_url(application: Application) -> Iterator[str]:
    """Another controller of the application, with the same store."""
    prm = serve.get_deployment_handle("ProcessRewardModel", application.NAME)
    with another_controller(application, SECOND, application.config, prm) as url:
        yield url


def client_at(application: Application, url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=application.key, max_retries=0, timeout=120)


@pytest.fixture
def first(idle: Application) -> openai.OpenAI:
    return client_at(idle, idle.url)


@pytest.fixture
def second(idle: Application, second_url: str) -> openai.OpenAI:
    return client_at(idle, second_url)


def asked(seed: int, search: Any = None) -> Any:
    text = problems(1, seed=seed, level=5)[0].text
    return {"model": MODEL, "input": text, "extra_body": {"seed": 1, **({"search": search} if search else {})}}


def status(client: openai.OpenAI, response_id: str) -> str | None:
    return client.responses.retrieve(response_id).status


def is_idle(url: str, application: Application) -> Callable[[], bool]:
    return lambda: application.http.get(f"{url}/v1/status").json()["searches"] == 0


def test_a_background_response_is_polled_and_cancelled_at_another_controller(
    idle: Application, first: openai.OpenAI, second: openai.OpenAI, second_url: str
) -> None:
    begun = second.responses.create(**asked(91), background=True)
    long = second.responses.create(**asked(92, LONG), background=True)
    assert [begun.status, long.status] == ["in_progress"] * 2
    until(lambda: status(first, begun.id) == "completed", "it ends", every_s=0.05)
    plain = first.responses.create(**asked(91))
    assert "\\boxed{" in plain.output_text
    assert first.responses.retrieve(begun.id).output_text == plain.output_text
    assert status(first, long.id) == "in_progress"
    until(lambda: first.responses.cancel(long.id).status == "cancelled", "it is cancelled")
    until(is_idle(second_url, idle), "the search has ended in the engines' eyes too")
    assert second.responses.cancel(long.id).status == "cancelled"


def test_a_continued_response_knows_what_was_said(
    idle: Application, first: openai.OpenAI, second: openai.OpenAI
) -> None:
    beginning = first.responses.create(**asked(93), instructions="Be brief.")
    continued = second.responses.create(**asked(94), previous_response_id=beginning.id, reasoning={"summary": "auto"})
    turns: Any = [
        {"role": "user", "content": asked(93)["input"]},
        {"role": "assistant", "content": beginning.output_text},
        {"role": "user", "content": asked(94)["input"]},
    ]
    chatted = first.chat.completions.create(model=MODEL, messages=turns, seed=1)
    assert continued.output_text == chatted.choices[0].message.content
    assert continued.usage is not None
    assert chatted.usage is not None
    assert continued.usage.input_tokens == chatted.usage.prompt_tokens
    reasoning = continued.output[0]
    assert reasoning.type == "reasoning"
    assert "candidate steps on" in reasoning.summary[0].text
    items = first.responses.input_items.list(continued.id).data
    assert [item.content[0].text for item in items] == [asked(94)["input"]]  # type: ignore[union-attr]
    first.responses.delete(beginning.id)
    with pytest.raises(openai.BadRequestError) as refused:
        first.responses.create(**asked(94), previous_response_id=continued.id)
    assert refused.value.param == "previous_response_id"
    other = first.with_options(api_key=idle.other_key)
    with pytest.raises(openai.NotFoundError):
        other.responses.retrieve(continued.id)


def test_a_stream_that_was_cut_is_taken_up_at_another_controller(first: openai.OpenAI, second: openai.OpenAI) -> None:
    stream = second.responses.create(**asked(95), background=True, stream=True)
    seen: list[Any] = []
    for event in stream:
        seen.append(event)
        if event.type == "response.reasoning_text.delta":
            break
    stream.close()
    rest = list(first.responses.retrieve(seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number))
    numbers = [event.sequence_number for event in (*seen, *rest)]
    assert numbers == list(range(len(numbers)))
    assert sum(event.type == "response.reasoning_text.delta" for event in rest) > 10
    final = rest[-1]
    assert final.type == "response.completed"
    assert final.response.output_text == first.responses.create(**asked(95)).output_text
    assert list(second.responses.retrieve(final.response.id, stream=True)) == [*seen, *rest]


def test_a_response_outlives_its_controller_and_one_in_progress_has_failed(
    idle: Application, first: openai.OpenAI, second: openai.OpenAI, second_url: str
) -> None:
    stored = second.responses.create(**asked(96))
    lost = second.responses.create(**asked(97, LONG), background=True, stream=True)
    response_id = next(iter(lost)).response.id  # type: ignore[union-attr]
    assert status(first, response_id) == "in_progress"
    [pid] = in_replicas("SearchController", lambda _: os.getpid(), SECOND)
    kill(pid)
    until(lambda: status(first, response_id) == "failed", "the loss is told", every_s=0.05)
    error = first.responses.retrieve(response_id).error
    assert error is not None
    assert (error.code, "lost" in error.message) == ("server_error", True)
    *_, last = first.responses.retrieve(response_id, stream=True)
    assert last.type == "response.failed"

    def answers() -> bool:
        return idle.http.get(f"{second_url}/v1/models").status_code == 200

    until(answers, "the controller has started again", 120)
    assert second.responses.retrieve(stored.id) == stored
    continued = second.responses.create(**asked(98), previous_response_id=stored.id)
    assert continued.status == "completed"
