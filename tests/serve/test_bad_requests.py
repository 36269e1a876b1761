"""Invalid input gets a clear 4xx in OpenAI's format, and the engines are not affected."""

import json
import socket
from collections import Counter
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.serve.application import Application, problems, request, until

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
def test_bad_requests_are_refused_and_the_engines_stay(idle: Application, case: str) -> None:
    status, param, body = BAD[case]
    refused_and_the_engines_stay(idle, f"Bearer {idle.key}", body, status, param)


@pytest.mark.parametrize("key", [None, "Bearer guessed", "Basic {key}"])
def test_a_request_without_a_key_is_refused(idle: Application, key: str | None) -> None:
    refused_and_the_engines_stay(idle, key and key.format(key=idle.key), GOOD, 401, None)
    assert httpx.get(f"{idle.url}/v1/models").status_code == 401
    assert httpx.get(f"{idle.url}/health").status_code == 200


CONTROL_HEADERS = {
    "x-request-disconnect-disabled": "?1",
    "X-Request-Timeout-Seconds": "0.001",
    "serve_multiplexed_model_id": "a",
}


def test_clients_cannot_send_serves_control_headers(idle: Application) -> None:
    with idle.client(httpx.Timeout(60.0)) as client:
        reply = client.post("/v1/chat/completions", json=GOOD, headers=CONTROL_HEADERS)
        assert reply.status_code == 200, reply.text
        for name in ("x-request-id", "x-session-id", "traceparent"):
            headers = {name: b"\xff\xfe"}
            assert client.get("/v1/models", headers=headers).status_code == 200  # type: ignore[arg-type]
    impatient = httpx.Timeout(60.0, read=0.3)
    long = request(problems(1, seed=33, level=5)[0], 1, search={"strategy": "beam_search", "n": 64, "m": 4})
    with idle.client(impatient) as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/chat/completions", json=long, headers=CONTROL_HEADERS)
    until(lambda: idle.status()["searches"] == 0, "a search ends with its client, whatever the client said", 10.0)


def test_slow_bodies_of_one_client_do_not_block_others(idle: Application) -> None:
    url = httpx.URL(idle.url)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {url.host}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {idle.key}\r\ncontent-length: 1000\r\n\r\n{{"
    )
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection((url.host, url.port), 20)) for _ in range(512)]
        for connection in connections:
            connection.settimeout(60)
            connection.sendall(head.encode())
        other = {"Authorization": f"Bearer {idle.other_key}"}
        assert httpx.get(f"{idle.url}/health", timeout=20).status_code == 200
        reply = httpx.post(f"{idle.url}/v1/chat/completions", json=GOOD, headers=other, timeout=60)
        assert reply.status_code == 200, reply.text
        ends = Counter(connection.recv(12) for connection in connections)
        assert ends.keys() == {b"HTTP/1.1 429", b"HTTP/1.1 408"}, ends
        assert ends[b"HTTP/1.1 429"] >= 256, ends
    assert idle.chat(problems(1, seed=34, level=1)[0], 1)["search"]["answer"] is not None


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
