"""Requests that clients send and other servers are known to get wrong, as they are sent."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import httpx
import pytest

from tests.serve.application import Application, problems, until
from tests.serve.test_spoken_http import CHAT, head

MODEL = "banyan-arithmetic:greedy"
QUESTION = problems(1, seed=91, level=1)[0].text
USER = {"role": "user", "content": QUESTION}
H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")


def after(**fields: Any) -> dict[str, Any]:
    """A conversation in which a message of the assistant has these fields."""
    return {"messages": [USER, {"role": "assistant", "content": "42", **fields}, USER]}


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [USER], "seed": 1, **fields}


CACHED = {"type": "text", "text": QUESTION, "cache_control": {"type": "ephemeral"}}
BODIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "editor plug-ins": (
        {"messages": [{**USER, "id": 1, "opts": {"visible": False}}]},
        ["messages.id", "messages.opts"],
    ),
    "coding agents": ({"messages": [{**USER, "agent": "cli"}]}, ["messages.agent"]),
    "LiteLLM": (after(provider_specific_fields={"refusal": None}), ["messages.provider_specific_fields"]),
    "gateways": (after(reasoning_details=[{"type": "reasoning.text", "text": "x"}]), ["messages.reasoning_details"]),
    "cached parts": ({"messages": [{"role": "user", "content": [CACHED]}]}, ["messages.content.cache_control"]),
    "agents": (after(content=None), []),
    "Rust clients": (after(content=[]), []),
    "load generators' streams": (
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        [],
    ),
    "load generators": ({"ignore_eos": True}, ["ignore_eos"]),
    "vLLM clients": (
        {
            "repetition_penalty": 1.0,
            "skip_special_tokens": True,
            "add_generation_prompt": True,
            "guided_json": None,
        },
        [],
    ),
    "OpenAI's own client": ({"verbosity": "medium", "prompt_cache_retention": "24h"}, []),
    "older LangChain": ({"stream": False, "stream_options": {"include_usage": True}}, []),
    "JavaScript clients": ({"stop": [""], "max_tokens": 64.0}, []),
    "evaluation tools": ({"logprobs": True, "top_logprobs": 1}, []),
}
"""Fields of a body beside model and question, and those that a note has to name."""


@pytest.fixture(scope="module", autouse=True)
def same_engines(application: Application) -> Iterator[None]:
    """Checks that all requests leave the endpoint healthy, and the same engines."""

    def pids() -> list[list[int]]:
        return [application.replica_pids(each) for each in ("Generator", "ProcessRewardModel", "SearchController")]

    application.wait_until_whole()
    before = pids()
    yield
    assert application.http.get("/health").status_code == 200
    application.wait_until_whole()
    assert pids() == before


@pytest.fixture(scope="module")
def expected(application: Application) -> str:
    """The answer to the plain question."""
    reply = application.http.post(CHAT, json=asked())
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]["content"]  # type: ignore[no-any-return]


def exchanged(application: Application, *parts: bytes) -> tuple[int, bytes]:
    """Sends each part in a packet of its own on a connection that stays open; returns status and body of the reply."""
    url = httpx.URL(application.url)
    with socket.create_connection((url.host, url.port), 60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            connection.sendall(part)
        with closing(http.client.HTTPResponse(connection)) as reply:
            reply.begin()
            return reply.status, reply.read()


@pytest.mark.parametrize("client", BODIES)
def test_bodies_are_answered(application: Application, expected: str, client: str) -> None:
    fields, unread = BODIES[client]
    reply = application.http.post(CHAT, json=asked(**fields))
    assert reply.status_code == 200, reply.text
    if fields.get("stream"):
        events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
        assert events.pop() == "[DONE]"
        chunks = [json.loads(event) for event in events]
        texts = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
        assert "".join(texts) == expected
        assert chunks[-1]["usage"]["completion_tokens"] > 0
        return
    [choice] = reply.json()["choices"]
    notes = " ".join(reply.json()["search"]["notes"])
    assert all(name in notes for name in unread), notes
    if not unread:
        assert "no effect" not in notes
    if len(fields.get("messages", ())) < 2 and "max_tokens" not in fields:
        assert choice["message"]["content"] == expected
    if fields.get("logprobs"):
        assert len(choice["logprobs"]["content"]) > 0


@pytest.mark.parametrize("form", ["length", "chunked", "one packet"])
def test_an_upgrade_is_ignored_on_a_connection_that_stays_open(
    application: Application, expected: str, form: str
) -> None:
    content = json.dumps(asked()).encode()
    if form == "chunked":
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
        parts = [head(application, *H2C, "Transfer-Encoding: chunked"), body]
    else:
        parts = [head(application, *H2C, f"Content-Length: {len(content)}"), content]
    status, reply = exchanged(application, *([b"".join(parts)] if form == "one packet" else parts))
    assert status == 200
    assert json.loads(reply)["choices"][0]["message"]["content"] == expected


def test_headers_without_end_are_refused(application: Application) -> None:
    url = httpx.URL(application.url)
    line = b"X-Pad: " + b"x" * (1 << 20) + b"\r\n"
    with socket.create_connection((url.host, url.port), 60) as connection:
        connection.sendall(head(application)[:-2])
        with suppress(ConnectionError):  # on a slow machine it closes before all of them are sent
            for _ in range(200):
                connection.sendall(line)
        with closing(http.client.HTTPResponse(connection)) as reply:
            reply.begin()
            assert reply.status == 431


DEEP = b'{"a": ' + b"[" * 900 + b", ".join([b"0"] * 20_000) + b"]" * 900 + b"}"


def test_a_batch_with_a_deep_and_wide_line_fails(application: Application) -> None:
    line = b'{"custom_id": "a", "method": "POST", "url": "%b", "body": %b}\n' % (CHAT.encode(), DEEP)
    form = {"file": ("a.jsonl", line), "purpose": (None, "batch")}
    file = application.http.post("/v1/files", files=form).raise_for_status().json()["id"]
    batch = {"input_file_id": file, "endpoint": CHAT, "completion_window": "1h"}
    created = application.http.post("/v1/batches", json=batch).raise_for_status().json()["id"]

    def now() -> Any:
        return application.http.get(f"/v1/batches/{created}").json()

    until(lambda: now()["status"] not in ("validating", "in_progress", "finalizing"), "the batch has ended", 60.0)
    assert now()["status"] == "failed"
    [error] = now()["errors"]["data"]
    assert error["line"] == 1
