"""What is damaged in the store answers 410 with its id, can be deleted, and spoils no list, no stream and no other
batch."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from http_world import World, chat, found

from cluster.jobs import batch_run, batches
from cluster.jobs.batches import BatchJobs
from deployments.http import store_access
from deployments.http.files_and_batches import batches as batch_routes
from deployments.http.searches import stored_searches
from search.answers.equivalence import AnswerMatcher

Json = dict[str, Any]
KEY = "a-key-of-twenty-characters"
LISTS = ("/v1/searches", "/v1/batches", "/v1/files")
WAIT_S = 20.0


def _directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _bytes(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write


def _half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE: dict[str, Callable[[Path], None]] = {
    "empty": _bytes(b""),
    "half": _half,
    "other fields": _bytes(b'{"status": 7, "id": [], "response": "x", "created": "y"}'),
    "no object": _bytes(b"[]"),
    "no UTF-8": _bytes(b'{"id": "\xff"}'),
    "deep": _bytes(b'{"output":' * 50_000),
    "a directory": _directory,
}

KINDS = ("half", "other fields", "a directory")
"""No JSON, no record and no file. One function reads all JSON but the events and the lines of a batch's input: that it
notices all of `DAMAGE` is tested on some parts, and of the others that they are read by it."""


def damaged(parts: Iterable[str], thoroughly: str, *more: str) -> list[tuple[str, str]]:
    """Parts with their damage: one of each kind, or each there is, and ``more``."""
    return [(part, damage) for part in parts for damage in (*(DAMAGE if part == thoroughly else KINDS), *more)]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(batch_run, "LOOK_EVERY_S", 0.01)


@pytest_asyncio.fixture
async def kept(matcher: AnswerMatcher, tmp_path: Path) -> AsyncIterator[World]:
    """A world with a store."""
    world = World(matcher, keys=[KEY], store={"path": str(tmp_path)})
    yield world
    world.assert_idle()


@pytest_asyncio.fixture
async def client(kept: World) -> AsyncIterator[httpx.AsyncClient]:
    async with kept.client as client:
        client.headers["Authorization"] = f"Bearer {KEY}"
        yield client


async def response_of(client: httpx.AsyncClient, **fields: Any) -> str:
    reply = await client.post("/v1/responses", json={"model": "m", "input": "6*7?", "seed": 1, **fields})
    assert reply.status_code == 200, reply.text
    if fields.get("stream"):
        [first, *_] = [line for line in reply.text.splitlines() if line.startswith("data: ")]
        return str(json.loads(first.removeprefix("data: "))["response"]["id"])
    return str(reply.json()["id"])


async def file_of(client: httpx.AsyncClient, url: str = "/v1/chat/completions") -> str:
    line = json.dumps({"custom_id": "a", "method": "POST", "url": url, "body": chat(seed=1)})
    reply = await client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", f"{line}\n".encode())})
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


async def batch_of(client: httpx.AsyncClient) -> str:
    asked = {
        "input_file_id": await file_of(client),
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    reply = await client.post("/v1/batches", json=asked)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


async def get(client: httpx.AsyncClient, path: str) -> httpx.Response:
    async with asyncio.timeout(WAIT_S):
        return await client.get(path)


def assert_damaged(reply: httpx.Response, name: str) -> None:
    assert reply.status_code == 410, reply.text
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "damaged")
    assert name in error["message"]
    assert "can be deleted" in error["message"]


async def assert_lists(client: httpx.AsyncClient) -> None:
    for path in LISTS:
        reply = await get(client, path)
        assert reply.status_code == 200, reply.text


READ_BY: dict[str, set[str]] = {
    "record.json": {"search"},
    "begun.json": {"response", "items", "cancel", "follow-up"},
    "end.json": {"search", "response", "cancel", "follow-up"},
    "response.json": {"response", "follow-up"},
    "reply.json": {"search"},
}
"""The calls that read each part of a response."""


@pytest.mark.parametrize(("part", "damage"), damaged(READ_BY, "begun.json", "missing"))
async def test_a_damaged_part_of_a_response_is_told_where_it_is_read(
    kept: World, client: httpx.AsyncClient, tmp_path: Path, part: str, damage: str
) -> None:
    name = await response_of(client)
    whole = await response_of(client)
    search = name.removeprefix("resp_")
    [path] = found(tmp_path, f"owners/*/searches/{search}/{part}")
    if damage == "missing":
        path.unlink()
    else:
        DAMAGE[damage](path)
    follow_up = {"model": "m", "input": "and?", "previous_response_id": name}
    replies = {
        "search": await get(client, f"/v1/searches/{search}"),
        "response": await get(client, f"/v1/responses/{name}"),
        "items": await get(client, f"/v1/responses/{name}/input_items"),
        "cancel": await client.post(f"/v1/responses/{name}/cancel"),
        "follow-up": await client.post("/v1/responses", json=follow_up),
    }
    if damage != "missing" or part in ("record.json", "response.json", "reply.json"):
        for call in READ_BY[part]:
            if call == "cancel" and replies[call].status_code == 400:  # not in the background
                continue
            assert_damaged(replies[call], search)
    for reply in replies.values():
        assert reply.status_code < 500, reply.text
    await assert_lists(client)
    listed = (await get(client, "/v1/searches")).json()["data"]
    assert whole.removeprefix("resp_") in [each["id"] for each in listed]
    is_response = not (part == "begun.json" and damage == "missing")
    deleted = await client.delete(f"/v1/responses/{name}" if is_response else f"/v1/searches/{search}")
    assert deleted.status_code == 200, deleted.text
    assert (await get(client, f"/v1/searches/{search}")).status_code == 404


@pytest.mark.parametrize(("part", "damage"), damaged([*READ_BY, "events.jsonl"], "events.jsonl"))
async def test_streams_of_a_damaged_response_end(
    kept: World, client: httpx.AsyncClient, tmp_path: Path, part: str, damage: str
) -> None:
    name = await response_of(client, stream=True)
    search = name.removeprefix("resp_")
    [path] = found(tmp_path, f"owners/*/searches/{search}/{part}")
    DAMAGE[damage](path)
    for address in (f"/v1/responses/{name}?stream=true", f"/v1/searches/{search}/events"):
        reply = await get(client, address)
        assert reply.status_code in (200, 410), reply.text
        if reply.status_code == 410:
            assert_damaged(reply, search)
        assert "internal" not in reply.text.lower(), reply.text
    await assert_lists(client)
    assert (await client.delete(f"/v1/searches/{search}")).json() == {
        "id": search,
        "object": "search",
        "deleted": True,
    }
    assert (await client.delete(f"/v1/searches/{search}")).status_code == 404


@pytest.mark.parametrize(("part", "damage"), damaged(["record.json", "state.json"], "record.json"))
async def test_a_damaged_batch_is_told_and_can_be_deleted(
    kept: World, client: httpx.AsyncClient, tmp_path: Path, part: str, damage: str
) -> None:
    name, whole = await batch_of(client), await batch_of(client)
    [directory] = found(tmp_path, f"owners/*/batches/{name}")
    if part == "state.json":
        (directory / part).write_text("{}")
    DAMAGE[damage](directory / part)
    assert_damaged(await get(client, f"/v1/batches/{name}"), name)
    assert_damaged(await client.post(f"/v1/batches/{name}/cancel"), name)
    await assert_lists(client)
    listed = (await get(client, "/v1/batches")).json()["data"]
    assert whole in [each["id"] for each in listed]
    deleted = await client.delete(f"/v1/batches/{name}")
    assert deleted.json() == {"id": name, "object": "batch", "deleted": True}
    assert (await get(client, f"/v1/batches/{name}")).status_code == 404
    assert (await client.delete(f"/v1/batches/{whole}")).status_code == 409, "it has not ended"


@pytest.mark.parametrize(("part", "damage"), damaged(["record.json", "state.json", "input.jsonl"], "input.jsonl"))
async def test_the_runner_goes_on_with_other_batches(
    kept: World, client: httpx.AsyncClient, tmp_path: Path, part: str, damage: str
) -> None:
    name = await batch_of(client)
    [directory] = found(tmp_path, f"owners/*/batches/{name}")
    (directory / part).unlink(missing_ok=True)  # the input is a link to the file
    if part == "state.json" or damage == "half":
        (directory / part).write_text('{"status": "in_progress", ')
    DAMAGE[damage](directory / part)
    whole = await batch_of(client)
    assert kept.store is not None
    running = asyncio.create_task(BatchJobs(kept.store, kept.client_of).run())
    try:
        async with asyncio.timeout(WAIT_S):
            while (await get(client, f"/v1/batches/{whole}")).json()["status"] != "completed":
                await asyncio.sleep(0.01)
            if part != "record.json":
                while (reply := await get(client, f"/v1/batches/{name}")).status_code == 410 or reply.json()[
                    "status"
                ] not in ("failed", "completed"):
                    await asyncio.sleep(0.01)
                assert reply.json()["status"] == "failed"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    if part == "record.json":
        assert_damaged(await get(client, f"/v1/batches/{name}"), name)
    assert (await client.delete(f"/v1/batches/{name}")).status_code == 200


@pytest.mark.parametrize("damage", ["empty", "half", "a directory", "missing"])
async def test_damaged_bytes_of_a_file_are_told(
    kept: World, client: httpx.AsyncClient, tmp_path: Path, damage: str
) -> None:
    name = await file_of(client)
    [path] = found(tmp_path, f"owners/*/files/{name}.data")
    if damage == "missing":
        path.unlink()
    else:
        DAMAGE[damage](path)
    assert_damaged(await get(client, f"/v1/files/{name}/content"), name)
    asked = {"input_file_id": name, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    assert_damaged(await client.post("/v1/batches", json=asked), name)
    await assert_lists(client)
    assert (await client.delete(f"/v1/files/{name}")).status_code == 200
    assert not path.exists()


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_record_of_a_file_is_told(
    kept: World, client: httpx.AsyncClient, tmp_path: Path, damage: str
) -> None:
    name, whole = await file_of(client), await file_of(client)
    [path] = found(tmp_path, f"owners/*/files/{name}.json")
    DAMAGE[damage](path)
    for address in (f"/v1/files/{name}", f"/v1/files/{name}/content"):
        assert_damaged(await get(client, address), name)
    assert [each["id"] for each in (await get(client, "/v1/files")).json()["data"]] == [whole]
    assert (await client.delete(f"/v1/files/{name}")).status_code == 200
    assert found(tmp_path, f"owners/*/files/{name}*") == []


ROUTES = {"searches": stored_searches, "batches": batch_routes}


@pytest.mark.parametrize("how", ["gone", *DAMAGE])
async def test_lists_leave_out_what_goes_between_listing_and_showing(
    kept: World, client: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    first = {"/v1/searches": await response_of(client), "/v1/batches": await batch_of(client)}
    second = {"/v1/searches": await response_of(client), "/v1/batches": await batch_of(client)}
    for path, reply_id in first.items():
        name, kind = reply_id.removeprefix("resp_"), path.removeprefix("/v1/")

        def late(every: Any, *args: Any, name: str = name, kind: str = kind, shown: Any = store_access.page) -> Json:
            [directory] = found(tmp_path, f"owners/*/{kind}/{name}")
            shutil.rmtree(directory) if how == "gone" else DAMAGE[how](directory / "record.json")
            return dict(shown(every, *args))

        monkeypatch.setattr(ROUTES[kind], "page", late)
        reply = await get(client, path)
        assert reply.status_code == 200, reply.text
        assert [each["id"] for each in reply.json()["data"]] == [second[path].removeprefix("resp_")]
        assert reply.json()["has_more"] is False


@pytest.mark.parametrize(("part", "damage"), damaged(["begun.json", "response.json", "end.json"], "", "missing"))
async def test_a_damaged_turn_of_a_conversation_is_told(
    kept: World, client: httpx.AsyncClient, tmp_path: Path, part: str, damage: str
) -> None:
    first = await response_of(client)
    second = await response_of(client, previous_response_id=first)
    [path] = found(tmp_path, f"owners/*/searches/{first.removeprefix('resp_')}/{part}")
    path.unlink() if damage == "missing" else DAMAGE[damage](path)
    calls = kept.generator.calls
    asked = {"model": "m", "input": "and?", "previous_response_id": second}
    reply = await client.post("/v1/responses", json=asked)
    if damage == "missing" and part == "end.json":
        assert reply.status_code == 200, "its answer is whole"
        return
    assert kept.generator.calls == calls
    if damage == "missing" and part == "begun.json":
        assert reply.status_code == 400, reply.text  # so the earlier one is no response
    else:
        assert_damaged(reply, first.removeprefix("resp_"))


@pytest.mark.parametrize("damage", ["missing", "a directory", "empty", "a loop"])
@pytest.mark.parametrize("part", ["lease", "cancel"])
@pytest.mark.parametrize("kind", ["searches", "batches"])
async def test_damaged_marks_spoil_nothing(
    kept: World, client: httpx.AsyncClient, tmp_path: Path, kind: str, part: str, damage: str
) -> None:
    name = (await response_of(client)).removeprefix("resp_") if kind == "searches" else await batch_of(client)
    [directory] = found(tmp_path, f"owners/*/{kind}/{name}")
    (directory / "end.json").unlink(missing_ok=True)
    (directory / part).unlink(missing_ok=True)
    if damage == "a loop":
        (directory / part).symlink_to(directory / part)
    elif damage != "missing":
        DAMAGE[damage](directory / part)
    for address in (f"/v1/{kind}/{name}", f"/v1/{kind}/{name}/events", f"/v1/responses/resp_{name}"):
        reply = await get(client, address)
        assert reply.status_code in (200, 404, 410), reply.text
    for address in (f"/v1/{kind}/{name}/cancel", f"/v1/responses/resp_{name}/cancel"):
        reply = await client.post(address)
        assert reply.status_code < 500, reply.text
    await assert_lists(client)
    assert kept.store is not None
    kept.store.sweep()
    whole = await batch_of(client)
    running = asyncio.create_task(BatchJobs(kept.store, kept.client_of).run())
    try:
        async with asyncio.timeout(WAIT_S):
            while (await get(client, f"/v1/batches/{whole}")).json()["status"] != "completed":
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert (await client.delete(f"/v1/{kind}/{name}")).status_code in (200, 409)
