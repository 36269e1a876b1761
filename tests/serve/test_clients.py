"""Requests beyond a plain chat, on real engines: the official client's fields, and the same text over every route."""

import json
import re
from pathlib import Path
from typing import Any

import openai
import pytest

from deployments.embedded.problems import Problem
from search.run.report import StopReason
from tests.serve.application import BEAM, Application, Json, problems

MODEL = "banyan-arithmetic"


@pytest.fixture
def client(application: Application) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{application.url}/v1", api_key=application.key, max_retries=0)


def asked(problem: Problem, **fields: Any) -> Any:
    return {"model": MODEL, "messages": [{"role": "user", "content": problem.text}], "seed": 1, **fields}


def test_one_seed_gives_the_same_text_plain_or_streamed_by_chat_or_responses(
    idle: Application, client: openai.OpenAI
) -> None:
    problem = problems(1, seed=31, level=3)[0]
    plain = client.chat.completions.create(**asked(problem))
    with client.chat.completions.stream(**asked(problem)) as chat_stream:
        chat_streamed = chat_stream.get_final_completion()
    by_responses: Any = {"model": MODEL, "input": problem.text, "extra_body": {"seed": 1}}
    response = client.responses.create(**by_responses)
    with client.responses.stream(**by_responses) as stream:
        streamed = stream.get_final_response()
    text = plain.choices[0].message.content
    assert "\\boxed{" in (text or "")
    assert chat_streamed.choices[0].message.content == text
    assert [response.output_text, streamed.output_text] == [text, text]
    assert response.usage is not None
    assert plain.usage is not None
    assert response.usage.output_tokens == plain.usage.completion_tokens


def test_choices_are_distinct_answers_and_change_nothing(idle: Application, client: openai.OpenAI) -> None:
    problem = problems(1, seed=32, level=5)[0]
    search = {"search": {"strategy": "best_of_n", "n": 16}}
    one = client.chat.completions.create(**asked(problem, extra_body=search))
    several = client.chat.completions.create(**asked(problem, n=3, extra_body=search))
    assert several.choices[0].message.content == one.choices[0].message.content
    answers = [choice.model_extra["answer"] for choice in several.choices if choice.model_extra]
    found: list[Json] = several.model_extra["search"]["answers"]  # type: ignore[index]
    assert len(answers) == len(set(answers)) == min(3, len(found)) > 1
    scores = [choice.model_extra["score"] for choice in several.choices if choice.model_extra]
    assert all(0 <= score <= 1 for score in scores)


@pytest.mark.parametrize("strategy", ["beam_search", "best_of_n"])
def test_log_probabilities_belong_to_the_answering_path(
    idle: Application, client: openai.OpenAI, strategy: str
) -> None:
    """For search by steps, and for whole solutions that are split into steps."""
    problem = problems(1, seed=33, level=2)[0]
    search = {"strategy": strategy, "n": 4}
    reply = client.chat.completions.create(**asked(problem, logprobs=True, extra_body={"search": search}))
    tree = idle.chat(problem, 1, "/v1/search", search={**search, "logprobs": True})
    [choice] = reply.choices
    assert choice.logprobs is not None
    tokens = choice.logprobs.content or []
    assert "".join(token.token for token in tokens) == choice.message.content
    assert all(token.logprob <= 0 for token in tokens)
    ends = [node for node in tree["tree"]["nodes"] if node["status"] == "terminal"]
    steps = {tuple(node["id"]): node for node in tree["tree"]["nodes"]}
    paths = [[steps[tuple(end["id"][:depth])] for depth in range(1, len(end["id"]) + 1)] for end in ends]
    sums = [sum(node["logprob"] for node in path) for path in paths if _text(path) == choice.message.content]
    # The token that ends a solution has no text, but it counts in the tree.
    total = sum(token.logprob for token in tokens)
    assert any(total - 0.7 < whole <= total + 1e-3 for whole in sums)


def test_sampling_from_one_token_is_greedy(idle: Application) -> None:
    problem = problems(1, seed=34, level=2)[0]
    search = {"strategy": "best_of_n", "n": 4, "temperature": 1.0}
    greedy = idle.chat(problem, 5, search={"strategy": "greedy"})["choices"][0]["message"]["content"]
    for only in ({"top_k": 1}, {"min_p": 1.0}):
        reply = idle.chat(problem, 5, "/v1/search", search=search, **only)
        first = [node for node in reply["tree"]["nodes"] if len(node["id"]) == 1]
        assert sum(node["count"] for node in first) == 4
        assert len({node["text"] for node in first}) == 1
        assert reply["choices"][0]["message"]["content"] == greedy


def test_a_higher_effort_generates_more_tokens(idle: Application, client: openai.OpenAI) -> None:
    problem = problems(1, seed=35, level=4)[0]
    efforts: tuple[Any, ...] = ("low", "medium", "high")
    replies = [client.chat.completions.create(**asked(problem, reasoning_effort=effort)) for effort in efforts]
    low, medium, high = (reply.usage.completion_tokens for reply in replies if reply.usage)
    assert low < medium < high
    block: Json = replies[-1].model_extra["search"]  # type: ignore[index]
    assert block["n"] == 64
    assert block["stop_reason"] == StopReason.FINISHED


def test_template_kwargs_that_the_template_does_not_read_are_noted(idle: Application) -> None:
    problem = problems(1, seed=36, level=1)[0]
    reply = idle.chat(problem, 1, chat_template_kwargs={"enable_thinking": False})
    assert reply["search"]["notes"] == [
        "chat_template_kwargs.enable_thinking: the model's chat template does not read it"
    ]


def test_the_readmes_request_is_answered_rightly_where_greedy_decoding_is_wrong(idle: Application) -> None:
    [body] = re.findall(r"```sh\ncurl .* -d '(.*?)'\n```", page("README.md"), re.DOTALL)
    [right] = re.findall(r"The answer is (\d+); greedy decoding gets this one wrong", page("README.md"))
    asked = json.loads(body)
    searches = [asked, {**asked, "search": {"strategy": "greedy"}}]
    answers = [idle.http.post("/v1/chat/completions", json=each).json()["search"]["answer"] for each in searches]
    assert answers[0] == right != answers[1]


def test_the_program_of_the_endpoints_page_runs(idle: Application, capsys: pytest.CaptureFixture[str]) -> None:
    [example] = re.findall(r"```python\n([^`]*?text = .*?)```", page("docs/clients.md"), re.DOTALL)
    there = f'"{idle.url}", "{idle.key}"'
    exec(compile(example.replace('"http://127.0.0.1:8000"', there), "docs/clients.md", "exec"), {})  # noqa: S102
    said = capsys.readouterr().out.splitlines()
    [text] = re.findall(r'text = "(.*)"', example)
    asked = {"model": MODEL, "messages": [{"role": "user", "content": text}], "seed": 1}
    search = idle.http.post("/v1/chat/completions", json=asked | {"search": BEAM}).json()["search"]
    assert len(said) > search["scored_steps"]
    assert said[-1] == f"{search['answer']} {search['generated_tokens']}"


def page(name: str) -> str:
    return (Path(__file__).parents[2] / name).read_text()


def _text(path: list[Json]) -> str:
    return "".join(node["text"] for node in path)
