"""Wrong input is the client's problem: a clear 4xx in OpenAI's shape, and the engines never notice."""

import json
from typing import Any

import httpx
import pytest

from tests.serve.application import Application, problems, request

GOOD = request(problems(1, seed=31)[0], seed=1)
BAD: dict[str, tuple[int, str | None, Any]] = {
    "empty messages": (400, "messages", GOOD | {"messages": []}),
    "unknown strategy": (400, "search.strategy", GOOD | {"search": {"strategy": "clairvoyance"}}),
    "unknown field": (400, "search.widht", GOOD | {"search": {"strategy": "beam_search", "widht": 4}}),
    "n of zero": (400, "search.n", GOOD | {"search": {"strategy": "beam_search", "n": 0}}),
    "n of a billion": (400, "search.n", GOOD | {"search": {"strategy": "beam_search", "n": 10**9}}),
    "n in words": (400, "search.n", GOOD | {"search": {"strategy": "beam_search", "n": "many"}}),
    "NaN temperature": (400, None, json.dumps(GOOD | {"temperature": float("nan")})),
    "n not divisible": (400, "search.m", GOOD | {"search": {"strategy": "beam_search", "n": 10, "m": 4}}),
    "a 50 MB body": (413, None, "x" * (50 << 20)),
    "longer than the context": (400, "messages", GOOD | {"messages": [{"role": "user", "content": "1 + " * 5000}]}),
    "unknown model": (404, "model", GOOD | {"model": "oracle"}),
    "NUL": (400, "messages.0.content", GOOD | {"messages": [{"role": "user", "content": "a\x00b"}]}),
    "lone surrogate": (
        400,
        "messages.0.content",
        json.dumps(GOOD | {"messages": [{"role": "user", "content": "\ud800"}]}),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_refused_and_the_engines_stay(idle: Application, case: str) -> None:
    status, param, body = BAD[case]
    refused_and_the_engines_stay(idle, f"Bearer {idle.key}", body, status, param)


@pytest.mark.parametrize("key", [None, "Bearer guessed", "Basic {key}"])
def test_no_key_where_one_is_wanted(idle: Application, key: str | None) -> None:
    refused_and_the_engines_stay(idle, key and key.format(key=idle.key), GOOD, 401, None)
    assert httpx.get(f"{idle.url}/v1/models").status_code == 401
    assert httpx.get(f"{idle.url}/health").status_code == 200


def refused_and_the_engines_stay(idle: Application, key: str | None, body: Any, status: int, param: str | None) -> None:
    before = idle.replica_pids("Generator"), idle.replica_pids("ProcessRewardModel")
    generated = idle.generated_tokens()
    content = body if isinstance(body, str) else json.dumps(body)
    headers = {"Content-Type": "application/json"} | ({"Authorization": key} if key else {})
    reply = httpx.post(f"{idle.url}/v1/chat/completions", content=content, headers=headers, timeout=60.0)
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    if param is not None:
        assert error["param"] == param, error
    assert (idle.replica_pids("Generator"), idle.replica_pids("ProcessRewardModel")) == before
    assert idle.generated_tokens() == generated
    assert idle.chat(problems(1, seed=32, level=1)[0], 1)["search"]["answer"] is not None
