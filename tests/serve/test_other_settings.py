"""A controller with settings that the application does not have, over the application's engines: an answer cache, a
step hook, no API keys, the pages of one origin, and a chat template that takes tools."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from ray import serve

from deployments.config import AnswerCacheSettings, StepHookSettings, TelemetrySettings
from deployments.step_hooks.calculator import mistakes
from tests.serve.application import (
    Application,
    another_controller,
    is_idle,
    leave_once_it_runs,
    problems,
    request,
    until,
)
from tests.tool_templates import HERMES

CHAT = "/v1/chat/completions"
PAGE = "http://localhost:3000"
PROBLEMS = problems(4, seed=61, level=3)
PROBLEM = problems(1, seed=95, level=2)[0]
WORDED = f"Please solve this. {PROBLEM.text}"
"""The same question in other words."""
NEAR_MISS = WORDED.replace(str(PROBLEM.start), str(PROBLEM.start + 1), 1)


@pytest.fixture(scope="module")
def other(application: Application, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of the controller, without a key."""
    template = tmp_path_factory.mktemp("templates") / "tools.jinja"
    template.write_text(HERMES)
    config = application.config
    answers = AnswerCacheSettings(embedding="benchmarks.answer_cache:ngrams", threshold=0.7, embedding_timeout_s=30)
    hook = StepHookSettings(function="deployments.step_hooks.calculator:correct")
    changed = {
        "generator": config.generator.model_copy(update={"chat_template": str(template)}),
        "http": config.http.model_copy(update={"api_keys_file": None, "allowed_origins": (PAGE,)}),
        "controller": config.controller.model_copy(update={"answer_cache": answers, "step_hook": hook}),
        "telemetry": TelemetrySettings(metrics=False),
    }
    prm = serve.get_deployment_handle("ProcessRewardModel", application.NAME)
    with (
        another_controller(application, "other", config.model_copy(update=changed), prm) as url,
        httpx.Client(base_url=url, timeout=300.0) as client,
    ):
        yield client


def ask(client: httpx.Client, text: str, **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": text}]
    body = {**request(PROBLEM, 0, messages=messages, **fields), "seed": None}
    return client.post(CHAT, json=body).raise_for_status()


def test_a_question_is_answered_from_the_cache_and_a_near_miss_is_not(idle: Application, other: httpx.Client) -> None:
    first = ask(other, PROBLEM.text).json()
    written = idle.generated_tokens()
    again, worded = (ask(other, text).json() for text in (PROBLEM.text, WORDED))
    streamed = ask(other, PROBLEM.text, stream=True).text
    assert idle.generated_tokens() == written
    assert not first["search"]["cached"]
    for reply in (again, worded):
        assert reply["search"]["cached"]
        assert reply["choices"] == first["choices"]
        assert reply["usage"]["total_tokens"] == 0
    assert streamed.count('"step_scored"') == first["search"]["nodes"]
    assert streamed.rstrip().endswith("[DONE]")
    assert not ask(other, NEAR_MISS).json()["search"]["cached"]
    assert idle.generated_tokens() > written


def test_corrections_are_marked_counted_and_the_same_twice(idle: Application, other: httpx.Client) -> None:
    corrected = 0
    for problem in PROBLEMS:
        reply, again = [other.post("/v1/search", json=request(problem, 3)).raise_for_status().json() for _ in range(2)]
        assert reply["tree"] == again["tree"]
        search: dict[str, Any] = reply["search"]
        assert search["hook_calls"] > 0
        assert not search["degraded"]
        for node in (node for node in reply["tree"]["nodes"] if "hook" in node):
            assert node["hook"]["text"] == f"{next(mistakes(node['text']))}\n\n"
            corrected += node["status"] != "repeated" and len(node["hook"]["token_ids"])
        assert sum(node["tokens"] for node in reply["tree"]["nodes"]) == search["generated_tokens"]
    assert corrected > 0
    until(lambda: is_idle(other), "nothing is left")


def test_a_client_that_leaves_leaves_no_call_to_the_hook(idle: Application, other: httpx.Client) -> None:
    wide = {"strategy": "mcts", "iterations": 4000, "budget": {"seconds": 200}}
    leave_once_it_runs(other, "/v1/search", request(PROBLEMS[0], 4, search=wide))
    until(lambda: is_idle(other), "nothing is left")


def test_a_preflight_of_an_allowed_origin_is_answered(other: httpx.Client) -> None:
    ask = {"Access-Control-Request-Method": "POST"}
    reply = other.options(CHAT, headers={"Origin": PAGE, **ask})
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert "POST" in reply.headers["access-control-allow-methods"]
    refused = other.options(CHAT, headers={"Origin": "http://other.example", **ask})
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in refused.headers


def test_without_keys_pages_are_refused(other: httpx.Client) -> None:
    body = request(PROBLEM, 1, search={"strategy": "greedy"})
    assert other.post(CHAT, json=body, headers={"Host": "rebind.example:8000"}).status_code == 403
    form = {"file": ("a.jsonl", b"{}"), "purpose": (None, "batch")}
    reply = other.post("/v1/files", files=form, headers={"Sec-Fetch-Site": "cross-site"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "origin_not_allowed")
    assert other.post(CHAT, json=body).status_code == 200


TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {
                "type": "object",
                "properties": {"first": {"enum": [12, 74]}, "sign": {"type": "boolean"}},
                "required": ["first", "sign"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": None}},
]


def test_an_agent_calls_a_tool_and_goes_on_with_its_result(idle: Application, other: httpx.Client) -> None:
    """The official client over real engines: a call that must be, plain and streamed, then an answer to its result,
    which vLLM's parser reads."""
    client = openai.OpenAI(base_url=f"{other.base_url}v1", api_key="none", max_retries=0, timeout=300)
    question: Any = {"role": "user", "content": PROBLEM.text}
    asked: Any = {"model": "banyan-arithmetic", "messages": [question], "tools": TOOLS, "seed": 3}
    asked |= {"parallel_tool_calls": False, "tool_choice": "required"}
    plain = client.chat.completions.create(**asked).choices[0]
    with client.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert plain.finish_reason == streamed.finish_reason == "tool_calls"
    [call], [call_again] = plain.message.tool_calls or [], streamed.message.tool_calls or []
    assert (call.id, call.function.name) == (call_again.id, call_again.function.name)
    assert call.function.arguments == call_again.function.arguments
    arguments = json.loads(call.function.arguments)
    if call.function.name == "add":
        assert arguments.keys() == {"first", "sign"}
        assert arguments["first"] in (12, 74)
    else:
        assert arguments == {}

    turns = [question, plain.message.model_dump(exclude_none=True)]
    turns.append({"role": "tool", "tool_call_id": call.id, "content": "86"})
    second = client.chat.completions.create(**asked | {"messages": turns, "tool_choice": "auto"})
    assert second.choices[0].finish_reason in ("stop", "length")
    assert second.choices[0].message.content
    # Of what was asked for, neither the tools nor the calls are in this shorter prompt.
    assert second.usage is not None
    short = client.chat.completions.create(**asked | {"tool_choice": "none"}).usage
    assert short is not None
    assert second.usage.prompt_tokens > short.prompt_tokens + 200
    until(lambda: is_idle(other), "nothing is left")
