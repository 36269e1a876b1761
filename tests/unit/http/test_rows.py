"""Rows of a Ray Data pipeline: the request that each becomes, and the result of each reply."""

import json
from typing import Any

import httpx
import pytest
from http_world import World, chat

from deployments.http.in_cluster import ray_data_rows
from deployments.http.in_cluster.ray_data_rows import reply_to

pytestmark = pytest.mark.asyncio

CHAT = "/v1/chat/completions"
STAGE = {"request_id": "7", "idx_in_batch": 3}
"""Fields that the stage of `ray.data.llm` adds to every row."""

Json = dict[str, Any]


class Endpoint:
    """Returns the given replies one after another, and records the requests."""

    def __init__(self, *replies: tuple[int, Json]) -> None:
        self._replies = list(replies)
        self.asked: list[tuple[str, str, Json]] = []

    async def answer(self, method: str, path: str, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        self.asked.append((method, path, json.loads(body)))
        status, reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        return status, [("retry-after", "0"), ("content-type", "application/json")], json.dumps(reply).encode()


def failed(message: str) -> Json:
    return {"error": {"message": message, "type": "t", "param": None, "code": None}}


async def test_the_endpoint_gets_the_body_without_the_stages_fields() -> None:
    """Requests are flex unless the body says otherwise; routes without a tier get none."""
    endpoint = Endpoint((200, {"id": "a"}))
    assert await reply_to({"url": CHAT, "body": '{"model": "m"}', **STAGE}, endpoint.answer) == {"id": "a"}
    await reply_to({"url": CHAT, "body": '{"service_tier": "default"}', **STAGE}, endpoint.answer)
    await reply_to({"url": f"{CHAT}/", "body": '{"model": "m"}', **STAGE}, endpoint.answer)
    await reply_to({"url": "/v1/batches", "body": '{"endpoint": "e"}', **STAGE}, endpoint.answer)
    assert endpoint.asked == [
        ("POST", CHAT, {"service_tier": "flex", "model": "m"}),
        ("POST", CHAT, {"service_tier": "default"}),
        ("POST", f"{CHAT}/", {"service_tier": "flex", "model": "m"}),
        ("POST", "/v1/batches", {"endpoint": "e"}),
    ]


async def test_a_row_gets_the_reply_of_its_request(world: World) -> None:
    async def answer(method: str, path: str, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        headers = {"content-type": "application/json"}
        reply: httpx.Response = await client.request(method, path, content=body, headers=headers)
        return reply.status_code, reply.headers.multi_items(), reply.content

    async with world.client as client:
        by_row = await reply_to({"url": CHAT, "body": json.dumps(chat()), **STAGE}, answer)
        by_http = (await client.post(CHAT, json=chat())).json()
        assert by_row["choices"] == by_http["choices"]
        for body, message in [
            (json.dumps(chat(n=0)), "400: n: "),
            ("{", "400: the body is not JSON"),
            (json.dumps(chat(stream=True)), r"body\.stream: "),
        ]:
            with pytest.raises(ValueError, match=message):
                await reply_to({"url": CHAT, "body": body}, answer)


async def test_a_row_waits_for_a_place() -> None:
    endpoint = Endpoint((429, failed("full")), (429, failed("full")), (200, {"id": "a"}))
    assert await reply_to({"url": CHAT, "body": "{}"}, endpoint.answer) == {"id": "a"}
    assert len(endpoint.asked) == 3


async def test_a_row_waits_for_a_place_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_data_rows, "PATIENCE_S", 0.05)
    with pytest.raises(TimeoutError, match=r"no slot for this row within 0\.05 s"):
        await reply_to({"url": CHAT, "body": "{}"}, Endpoint((429, failed("full"))).answer)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, ValueError), (404, ValueError), (504, TimeoutError), (500, RuntimeError), (503, RuntimeError)],
)
async def test_errors_are_built_in_exceptions_that_the_stage_knows(status: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=f"{status}: it is so") as raised:
        await reply_to({"url": CHAT, "body": "{}"}, Endpoint((status, failed("it is so"))).answer)
    assert type(raised.value) is kind


async def test_a_row_that_ends_engines_concerns_only_itself() -> None:
    reply = failed("it is so")
    reply["error"]["code"] = "engine_ended_twice"
    with pytest.raises(ValueError, match="500: it is so"):
        await reply_to({"url": CHAT, "body": "{}"}, Endpoint((500, reply)).answer)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"body": "{}"}, "missing field: url"),
        ({"url": CHAT}, "missing field: body"),
        ({"url": "http://elsewhere/v1/chat", "body": "{}"}, "url: "),
        ({"url": CHAT, "body": {"model": "m"}}, "body: "),
        ({"model": "m", "messages": []}, "missing field: url"),
    ],
)
async def test_an_invalid_row_is_refused_without_a_request(row: Json, message: str) -> None:
    endpoint = Endpoint((200, {}))
    with pytest.raises(ValueError, match=message):
        await reply_to({**row, **STAGE}, endpoint.answer)
    assert endpoint.asked == []
