"""The endpoint as the official client sees it, and the costs that it reports."""

import json

import openai
import pytest

from search.settings import parse_search
from search.strategies.catalog import STRATEGIES
from tests.serve.application import BEAM, Application, problems, request, until


@pytest.fixture
def client(application: Application) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{application.url}/v1", api_key=application.key, max_retries=0)


def test_plain_reply_counts_every_token_that_was_requested(idle: Application, client: openai.OpenAI) -> None:
    problem = problems(1, seed=11)[0]
    before = idle.requested_tokens()
    reply = client.chat.completions.create(
        model="banyan-arithmetic",
        messages=[{"role": "user", "content": problem.text}],
        seed=1,
        extra_body={"search": BEAM},
    )
    assert "\\boxed{" in (reply.choices[0].message.content or "")
    assert reply.choices[0].finish_reason == "stop"
    usage = reply.usage
    assert usage is not None
    assert usage.completion_tokens == idle.requested_tokens() - before > 0
    details = usage.completion_tokens_details
    assert details is not None
    assert details.reasoning_tokens is not None
    assert 0 < details.reasoning_tokens < usage.completion_tokens
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_stream_is_complete(idle: Application, client: openai.OpenAI) -> None:
    problem = problems(1, seed=12, level=5)[0]
    before = idle.requested_tokens()
    usage = search = None
    steps, content = [], ""
    for chunk in client.chat.completions.create(
        model="banyan-arithmetic",
        messages=[{"role": "user", "content": problem.text}],
        seed=1,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"search": {"strategy": "beam_search", "n": 16, "m": 4}},
    ):
        extra = chunk.model_extra or {}
        if (event := extra.get("search_event")) and event["type"] == "step_scored":
            steps.append(tuple(event["node"]))
            assert chunk.choices[0].delta.model_extra["reasoning_content"]  # type: ignore[index]
        search = extra.get("search") or search
        usage = chunk.usage or usage
        content += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    assert "\\boxed{" in content
    assert search is not None
    assert usage is not None
    assert len(steps) == len(set(steps)) == search["scored_steps"] + search["repeated_steps"]
    assert usage.completion_tokens == search["generated_tokens"] == idle.requested_tokens() - before


def test_same_seed_same_tree(idle: Application) -> None:
    problem = problems(1, seed=13, level=4)[0]
    first, again, other = (idle.chat(problem, seed, "/v1/search")["tree"] for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_prefill_is_continued_and_not_repeated(idle: Application) -> None:
    """A path's first step as the prefill: the search goes on with the very steps that a plain one wrote after it."""
    problem = problems(1, seed=16)[0]
    greedy = {"strategy": "greedy"}
    plain = idle.chat(problem, 1, "/v1/search", search=greedy)
    steps = [node["text"] for node in plain["tree"]["nodes"]]
    messages = [*request(problem, 1)["messages"], {"role": "assistant", "content": steps[0]}]
    prefilled = {"search": greedy, "messages": messages, "continue_final_message": True}
    reply = idle.chat(problem, 1, "/v1/search", **prefilled)
    assert [node["text"] for node in reply["tree"]["nodes"]] == steps[1:]
    assert reply["choices"][0]["message"]["content"] == "".join(steps[1:])
    assert reply["search"]["answer"] == plain["search"]["answer"]
    given = plain["tree"]["nodes"][0]["tokens"]
    assert reply["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] + given


def test_a_response_format_holds_and_a_bad_schema_leaves_the_engines_alive(idle: Application) -> None:
    problem = problems(1, seed=17)[0]
    schema = {"type": "object", "properties": {"answer": {"enum": [1, 2]}}, "required": ["answer"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    reply = idle.chat(problem, 1, response_format=wanted, search={"strategy": "self_consistency", "n": 8})
    content = json.loads(reply["choices"][0]["message"]["content"])
    assert content["answer"] in (1, 2)
    assert json.loads(reply["search"]["answer"]) == content
    dear = {"anyOf": [{"type": "array", "items": {"type": "integer"}, "minItems": least} for least in range(200)]}
    empty = {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}
    for bad in ({"type": "string", "pattern": "a"}, empty, dear):
        wanted["json_schema"] = {"name": "answer", "schema": bad}
        refused = idle.http.post(
            "/v1/chat/completions", json=request(problem, 1, response_format=wanted, search={"strategy": "greedy"})
        )
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["param"].startswith("response_format.json_schema.schema")


def test_alias_is_the_search_it_names(idle: Application) -> None:
    problem = problems(1, seed=14)[0]
    body = request(problem, seed=3, model="banyan-arithmetic:beam-8")
    del body["search"]
    alias = idle.http.post("/v1/search", json=body).json()
    named = idle.chat(problem, 3, "/v1/search", search={"strategy": "beam_search", "n": 8})
    assert alias["search"]["strategy"] == "beam_search"
    assert alias["tree"] == named["tree"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_answers(idle: Application, strategy: str) -> None:
    search = {"strategy": strategy} | ({"n": 4} if "n" in STRATEGIES[strategy].model_fields else {})
    reply = idle.chat(problems(1, seed=15, level=1)[0], 1, search=search)
    assert reply["search"]["strategy"] == strategy
    assert reply["search"]["stop_reason"] == "finished"
    assert reply["search"]["answer"] is not None
    assert (reply["search"]["prm_calls"] > 0) == parse_search(search).strategy.is_scored


def test_log_probabilities_are_returned_on_request_and_change_nothing(idle: Application) -> None:
    problem = problems(1, seed=16)[0]
    search = {"strategy": "beam_search", "n": 8}
    plain = idle.chat(problem, 3, "/v1/search", search=search)["tree"]["nodes"]
    nodes = idle.chat(problem, 3, "/v1/search", search=search | {"logprobs": True})["tree"]["nodes"]
    assert {node["logprob"] for node in plain} == {None}
    assert all(node["logprob"] <= 0 for node in nodes)
    own = {"logprob": None, "token_ids": None, "token_logprobs": None}
    assert [node | own for node in nodes] == [node | own for node in plain]
    assert not any("token_ids" in node for node in plain)


def test_health_is_a_canary_of_both_engines(idle: Application) -> None:
    before = idle.generated_tokens()
    health = idle.http.get("/health")
    assert health.status_code == 200
    assert {name: part["status"] for name, part in health.json()["components"].items()} == {
        "generator": "ok",
        "prm": "ok",
    }
    # It waits no longer than a moment for its own canaries where it knows of earlier ones.
    until(lambda: idle.generated_tokens() > before, "the canary's token is counted")


def test_token_beams_by_the_official_client(idle: Application, client: openai.OpenAI) -> None:
    before = idle.generated_tokens()
    extra = {"use_beam_search": True, "skip_reading_prefix_cache": False}
    reply = client.completions.create(
        model="banyan-arithmetic", prompt=["12 + 7 = ", "3 * 5 = "], n=2, best_of=4, max_tokens=6, extra_body=extra
    )
    assert len(reply.choices) == 4
    assert reply.choices[0].text != reply.choices[1].text
    assert reply.usage is not None
    assert reply.usage.completion_tokens == idle.generated_tokens() - before > 0
