"""A store that cannot be written costs nobody a reply that nobody asked to be stored."""

import errno
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from http_world import World, chat

from deployments.store import records
from deployments.store import searches as searches_module
from search.answers.equivalence import AnswerMatcher

Json = dict[str, Any]
ASKED: Json = {"model": "m", "input": "6*7?", "seed": 1}
PLACES = ("writes", "directories")
Fill = Callable[[str], None]


@pytest_asyncio.fixture
async def kept(matcher: AnswerMatcher, tmp_path: Path) -> AsyncIterator[World]:
    """A world with a store, which all clients share."""
    world = World(matcher, keys=(), store={"path": str(tmp_path)})
    yield world
    world.assert_idle()


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> Fill:
    """Makes the disk full, as seen by writes of files, by new directories, or by replies alone."""

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def fill(place: str) -> None:
        if place == "directories":
            monkeypatch.setattr(Path, "mkdir", full)
            return
        if place == "writes":
            monkeypatch.setattr(records, "write_whole", full)
        monkeypatch.setattr(searches_module, "write_whole", full)

    return fill


async def post(world: World, path: str, body: Json) -> httpx.Response:
    async with world.client as client:
        return await client.post(path, json=body)


def last_response(reply: httpx.Response) -> Json:
    """The response at the end of a stream."""
    lines = [line for line in reply.text.splitlines() if line.startswith("data: ")]
    event = json.loads(lines[-1].removeprefix("data: "))
    assert event["type"] == "response.completed", event
    response: Json = event["response"]
    return response


def assert_unstored(response: Json) -> None:
    assert response["store"] is False
    assert response["status"] == "completed"
    [note] = [note for note in response["search"]["notes"] if note.startswith("store: ")]
    assert "not stored" in note


@pytest.mark.parametrize("place", [*PLACES, "replies"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_is_answered_without_being_stored(
    kept: World, fill: Fill, monkeypatch: pytest.MonkeyPatch, place: str, stream: bool
) -> None:
    fill(place)
    reply = await post(kept, "/v1/responses", {**ASKED, "stream": stream})
    assert reply.status_code == 200, reply.text
    assert_unstored(last_response(reply) if stream else reply.json())
    monkeypatch.undo()
    again = (await post(kept, "/v1/responses", ASKED)).json()
    assert again["store"] is True
    assert not [note for note in again["search"]["notes"] if note.startswith("store: ")]
    async with kept.client as client:
        assert (await client.get(f"/v1/responses/{again['id']}")).json() == again


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {**ASKED, "store": True}),
        ("/v1/responses", {**ASKED, "store": True, "stream": True}),
        ("/v1/responses", {**ASKED, "background": True}),
        ("/v1/chat/completions", chat(store=True)),
        ("/v1/chat/completions", chat(store=True, stream=True)),
        ("/v1/search", chat(store=True)),
    ],
)
async def test_what_was_to_be_stored_is_refused_before_any_search(
    kept: World, fill: Fill, monkeypatch: pytest.MonkeyPatch, place: str, path: str, body: Json
) -> None:
    fill(place)
    reply = await post(kept, path, body)
    assert reply.status_code == 503, reply.text
    assert reply.headers["content-type"].startswith("application/json")
    assert kept.generator.calls == 0
    assert kept.service.running == 0
    monkeypatch.undo()
    assert (await post(kept, path, {**body, "background": False} if "background" in body else body)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_over_the_limit_is_sent_and_not_kept(
    kept: World, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(searches_module, "MAX_REPLY_BYTES", 900)
    reply = await post(kept, "/v1/chat/completions", chat(store=True, stream=stream))
    assert reply.status_code == 200, reply.text
    async with kept.client as client:
        [shown] = (await client.get("/v1/searches")).json()["data"]
        assert shown["status"] == "failed"
        assert shown["error"]["code"] == "reply_not_kept"
        assert "900" in shown["error"]["message"]
        whole = (await client.get(f"/v1/searches/{shown['id']}")).json()
    assert whole["reply"] is None


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/batches"])
@pytest.mark.parametrize(
    ("metadata", "param"),
    [
        ({str(each): "" for each in range(17)}, "metadata"),
        ({"n" * 65: ""}, "metadata."),
        ({"n": "v" * 513}, "metadata.n"),
        ({"n": 7}, "metadata.n"),
        ({"n": {"m": "v"}}, "metadata.n"),
    ],
)
async def test_metadata_is_limited(kept: World, path: str, metadata: Json, param: str) -> None:
    batch = {"input_file_id": f"file-{'0' * 32}", "endpoint": "/v1/responses", "completion_window": "24h"}
    body = {"metadata": metadata, **(ASKED if path == "/v1/responses" else batch)}
    reply = await post(kept, path, body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"].startswith(param)
    assert kept.generator.calls == 0


async def test_metadata_at_its_limits_comes_back(kept: World) -> None:
    metadata = {f"{each:064}": "v" * 512 for each in range(16)}
    reply = await post(kept, "/v1/responses", {**ASKED, "metadata": metadata})
    assert reply.json()["metadata"] == metadata
