"""Invalid input gets a clear 4xx in OpenAI's format, and the engines are not affected. `tests/unit/http` has more
cases."""

import json
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx

from tests.serve.application import Application, leave_once_it_runs, problems, request, until

CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}
GOOD = request(problems(1, seed=31)[0], seed=1)
BAD: dict[str, tuple[int, str | None, Any]] = {
    "empty messages": (400, "messages", GOOD | {"messages": []}),
    "unknown strategy": (400, "search.strategy", GOOD | {"search": {"strategy": "clairvoyance"}}),
    "NaN temperature": (400, None, json.dumps(GOOD | {"temperature": float("nan")})),
    "a 50 MB body": (413, None, "x" * (50 << 20)),
    "longer than the context": (400, "messages", GOOD | {"messages": [{"role": "user", "content": "1 + " * 5000}]}),
    "unknown model": (404, "model", GOOD | {"model": "oracle"}),
    "deep and wide": (400, None, f'{{"a": {"[" * 900}{",".join(["0"] * 20_000)}{"]" * 900}}}'),
    "lone surrogate": (
        400,
        "messages.0.content",
        json.dumps(GOOD | {"messages": [{"role": "user", "content": "\ud800"}]}),
    ),
}


@contextmanager
def engines_stay(application: Application) -> Iterator[None]:
    """Checks that what is sent inside reaches no engine and ends none."""

    def pids() -> list[list[int]]:
        return [application.replica_pids(each) for each in ("Generator", "ProcessRewardModel")]

    before, generated = pids(), application.generated_tokens()
    yield
    assert pids() == before
    assert application.generated_tokens() == generated
    assert application.chat(problems(1, seed=32, level=1)[0], 1)["search"]["answer"] is not None


def test_bad_requests_are_refused_and_the_engines_stay(idle: Application) -> None:
    with engines_stay(idle), idle.client(httpx.Timeout(60.0)) as client:
        for case, (status, param, body) in BAD.items():
            content = body if isinstance(body, str) else json.dumps(body)
            reply = client.post(CHAT, content=content, headers=JSON)
            assert reply.status_code == status, (case, reply.text)
            error = reply.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["message"]
            assert param in (None, error["param"]), (case, error)


def test_a_request_without_a_key_is_refused(idle: Application) -> None:
    with engines_stay(idle):
        for key in ({}, {"Authorization": "Bearer guessed"}, {"Authorization": f"Basic {idle.key}"}):
            assert httpx.post(f"{idle.url}{CHAT}", json=GOOD, headers=key, timeout=60).status_code == 401
            assert httpx.get(f"{idle.url}/v1/models", headers=key, timeout=60).status_code == 401
    assert httpx.get(f"{idle.url}/health", timeout=60).status_code == 200


CONTROL_HEADERS = {
    "x-request-disconnect-disabled": "?1",
    "X-Request-Timeout-Seconds": "0.001",
    "serve_multiplexed_model_id": "a",
}


def test_clients_cannot_send_serves_control_headers(idle: Application) -> None:
    with idle.client(httpx.Timeout(60.0)) as client:
        reply = client.post(CHAT, json=GOOD, headers=CONTROL_HEADERS)
        assert reply.status_code == 200, reply.text
        for name in ("x-request-id", "x-session-id", "traceparent"):
            headers = {name: b"\xff\xfe"}
            assert client.get("/v1/models", headers=headers).status_code == 200  # type: ignore[arg-type]
    long = {"strategy": "mcts", "iterations": 4000, "budget": {"seconds": 200}}
    leave_once_it_runs(idle.http, CHAT, request(problems(1, seed=33, level=5)[0], 1, search=long), CONTROL_HEADERS)
    until(lambda: idle.status()["searches"] == 0, "a search ends with its client, whatever the client said")


def test_slow_bodies_of_one_client_and_a_slow_head_do_not_block_others_and_end(idle: Application) -> None:
    url = httpx.URL(idle.url)
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: {url.host}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {idle.key}\r\ncontent-length: 1000\r\n"
    )
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection((url.host, url.port), 60)) for _ in range(513)]
        for connection in connections:
            connection.settimeout(60)
            connection.sendall(f"{head}\r\n{{".encode() if connection is not connections[0] else head.encode())
        other = {"Authorization": f"Bearer {idle.other_key}"}
        assert httpx.get(f"{idle.url}/health", timeout=60).status_code == 200
        reply = httpx.post(f"{idle.url}{CHAT}", json=GOOD, headers=other, timeout=60)
        assert reply.status_code == 200, reply.text
        headless, *ends = (connection.recv(12) for connection in connections)
        assert headless == b"HTTP/1.1 408"
        assert set(ends) == {b"HTTP/1.1 429", b"HTTP/1.1 408"}, Counter(ends)
        assert ends.count(b"HTTP/1.1 429") >= 256, Counter(ends)
    assert idle.chat(problems(1, seed=34, level=1)[0], 1)["search"]["answer"] is not None
