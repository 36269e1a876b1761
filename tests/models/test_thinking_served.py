"""A model that thinks, served by two replicas: of Qwen3's architecture, with its tokenizer and chat template."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from search.answers.extraction import boxed_answer
from tests.models.small_thinker import save_small_thinker
from tests.serve.application import REPAIR_S, Application, kill, running, until

Json = dict[str, Any]
pytestmark = [
    pytest.mark.timeout(900),
    *(
        pytest.mark.filterwarnings(f"default::{category}")
        for category in ("ResourceWarning", "FutureWarning", "DeprecationWarning")
    ),
]
MESSAGES = [{"role": "user", "content": "What is 6 * 7?"}]
LIMITS = {"seed": 5, "max_thinking_tokens": 24, "max_path_tokens": 60}
SEARCHES: Sequence[Json] = (
    {"strategy": "greedy"},
    {"strategy": "self_consistency", "n": 8},
    {"strategy": "best_of_n", "n": 8},
    {"strategy": "beam_search", "n": 8, "m": 4},
    {"strategy": "dvts", "n": 8, "m": 4},
    {"strategy": "rebase", "n": 8},
    {"strategy": "ets", "n": 8},
    {"strategy": "particle_filter", "n": 8},
    {"strategy": "mcts", "iterations": 6},
    {"strategy": "ab_mcts", "iterations": 8},
    {"strategy": "frontier", "iterations": 6},
)
"""Every strategy."""
COMMON: Json = {"http": {"canary_every_s": 0}, "controller": {"limits": {"seconds": 300}}, "cache": {"enabled": False}}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    directory = tmp_path_factory.mktemp("thinker")
    save_small_thinker(directory)
    settings = COMMON | {
        "generator": {
            "model": str(directory),
            "served_name": "thinker",
            "max_model_len": 256,
            "kv_cache_memory_bytes": 64 << 20,
            "replicas": {"min_replicas": 2, "max_replicas": 2},
        },
        "prm": {"family": "function", "function": "tests.models.step_reward:solution_reward"},
    }
    with running(settings, tmp_path_factory.mktemp("keys")) as application:
        yield application


def asked(application: Application, route: str = "/v1/chat/completions", **fields: Any) -> Json:
    body = {"model": application.config.generator.served_name, **fields}
    reply = application.http.post(route, json=body)
    assert reply.status_code == 200, reply.text
    found: Json = reply.json()
    return found


def streamed(application: Application, **fields: Any) -> tuple[str, str]:
    """Thinking and content of a streamed chat; what comes with an event of the search is progress."""
    body = {"model": application.config.generator.served_name, "stream": True, **fields}
    thinking = content = ""
    with application.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                if "search_event" not in json.loads(line.removeprefix("data: ")):
                    thinking += choice["delta"].get("reasoning") or ""
                    content += choice["delta"].get("content") or ""
    return thinking, content


def all_trees(application: Application) -> list[Json]:
    """Replies of `/v1/search` under every strategy, all at once."""
    with ThreadPoolExecutor(len(SEARCHES)) as pool:
        replies = pool.map(
            lambda search: asked(application, "/v1/search", messages=MESSAGES, search=search | LIMITS), SEARCHES
        )
        return list(replies)


def test_thinking_and_content_are_apart_in_every_reply(thinker: Application) -> None:
    fields: Json = {"messages": MESSAGES, "search": SEARCHES[3] | LIMITS}
    reply = asked(thinker, **fields)
    message = reply["choices"][0]["message"]
    assert message["reasoning"].startswith("Six")
    assert message["reasoning"] == message["reasoning_content"]
    assert message["content"].startswith("It")
    assert not any("think>" in part for part in (message["reasoning"], message["content"]))
    assert reply["search"]["thinking_tokens"] > 0
    assert not reply["search"]["degraded"], "the reward model reads solutions alone"
    thinking, content = streamed(thinker, **fields)
    heading, _, streamed_thinking = thinking.lstrip().partition("\n\n")
    assert (streamed_thinking, content) == (message["reasoning"], message["content"])
    assert heading == "[thinking of the answering path]"
    response = asked(thinker, "/v1/responses", input=MESSAGES[0]["content"], search=fields["search"])
    thought, said = response["output"]
    assert (thought["type"], thought["content"][0]["text"]) == ("reasoning", message["reasoning"])
    assert said["content"][0]["text"] == message["content"]


def test_every_strategy_thinks_apart_and_grows_one_tree_on_two_replicas_of_which_one_is_killed(
    thinker: Application,
) -> None:
    replies = all_trees(thinker)
    seen = {"given": False, "endless": False, "boxed": False}
    for search, reply in zip(SEARCHES, replies, strict=True):
        nodes, block = reply["tree"]["nodes"], reply["search"]
        assert (block["strategy"], block["degraded"]) == (search["strategy"], False)
        thoughts = {tuple(node["id"]): node["thought"] for node in nodes if "thought" in node}
        assert thoughts
        assert all(len(node) == 1 for node in thoughts), "thoughts are no steps of their own"
        for node in nodes:
            size = thoughts.get(tuple(node["id"]), {"characters": 0})["characters"]
            thinking, solution = node["text"][:size], node["text"][size:]
            assert not thinking or thinking.startswith("<think>")
            assert "Six" not in solution
            seen["boxed"] |= "\\boxed" in thinking
            seen["endless"] |= thinking == node["text"] != ""
        solution = reply["choices"][0]["message"]["content"]
        assert block["answer"] == boxed_answer(solution) != "x"
    assert seen["boxed"]
    assert seen["endless"]
    assert [reply["tree"] for reply in all_trees(thinker)] == [reply["tree"] for reply in replies]
    victim = thinker.replica_pids("Generator")[0]
    with ThreadPoolExecutor(1) as pool:
        rounds = pool.submit(lambda: [all_trees(thinker) for _ in range(3)])
        until(lambda: thinker.status()["searches"] > 0, "searches are under way", every_s=0.02)
        kill(victim)
        for again in rounds.result():
            assert [reply["tree"] for reply in again] == [reply["tree"] for reply in replies]
    until(lambda: thinker.is_whole() and victim not in thinker.replica_pids("Generator"), "it is replaced", REPAIR_S)


@pytest.mark.parametrize("budget", [0, 3])
def test_a_budget_of_thinking_is_kept(thinker: Application, budget: int) -> None:
    """Without the template's switch, which alone would do for none."""
    switch = {"chat_template_kwargs": {"enable_thinking": True}}
    for search in SEARCHES[2:4]:
        limits = LIMITS | {"budget": {"thinking": budget}}
        reply = asked(thinker, "/v1/search", messages=MESSAGES, search=search | limits, **switch)
        firsts = [node for node in reply["tree"]["nodes"] if len(node["id"]) == 1]
        assert any(node.get("given") for node in firsts)
        for node in firsts:
            thinking = node["text"][: node.get("thought", {"characters": 0})["characters"]]
            assert node["text"].removeprefix(thinking).strip(), "a solution follows"
            if node.get("given") and budget:
                assert "Considering the limited time by the user" in thinking
            assert thinking.partition("\n\nConsidering")[0].count("Six") <= budget


def test_the_templates_switch_ends_thinking(thinker: Application) -> None:
    reply = asked(thinker, messages=MESSAGES, search=SEARCHES[2] | LIMITS, reasoning_effort="none")
    assert reply["choices"][0]["message"]["reasoning"] is None
    assert "thinking_tokens" not in reply["search"]


def test_json_begins_behind_the_thought(thinker: Application) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema | {"additionalProperties": False}}}
    search = SEARCHES[2] | LIMITS | {"budget": {"thinking": 12}}
    fields: Json = {"messages": MESSAGES, "search": search, "response_format": wanted}
    choice = asked(thinker, **fields)["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["reasoning"].startswith("Six")
    assert isinstance(json.loads(choice["message"]["content"])["a"], bool)
    thinking, content = streamed(thinker, **fields)
    assert thinking.endswith(choice["message"]["reasoning"])
    assert content == choice["message"]["content"]
