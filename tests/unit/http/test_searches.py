"""Stored searches can be read while they run and afterwards, from any controller, by their key alone."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from http_world import World, chat, found, generator_is_dead, served

from deployments.admission.keys import key_record, store_owner
from deployments.http import streaming
from deployments.http.store_access import MAX_STREAMS
from deployments.store import ANONYMOUS, SearchEnd, SearchRecord, SearchStatus, Store, StoreSettings
from deployments.store import searches as searches_module
from deployments.store.records import modified, new_id
from search.answers.equivalence import AnswerMatcher

Json = dict[str, Any]
KEY, OTHER = "a-key-of-twenty-characters", "another-key-of-many-more"


@pytest_asyncio.fixture
async def kept(matcher: AnswerMatcher, tmp_path: Path) -> AsyncIterator[World]:
    """A world of two keys with a store."""
    world = World(matcher, keys=[KEY, OTHER], store={"path": str(tmp_path)})
    yield world
    world.assert_idle()


@pytest.fixture
def elsewhere(kept: World, matcher: AnswerMatcher, tmp_path: Path) -> World:
    """Another controller of the same application."""
    return World(matcher, keys=[KEY, OTHER], store={"path": str(tmp_path)})


def client_of(world: World, key: str = KEY) -> httpx.AsyncClient:
    client = world.client
    client.headers["Authorization"] = f"Bearer {key}"
    return client


async def get(world: World, path: str, key: str = KEY, **parameters: Any) -> httpx.Response:
    async with client_of(world, key) as client:
        return await client.get(path, params=parameters)


async def stored_search(world: World, name: str, key: str = KEY) -> Json:
    reply = await get(world, f"/v1/searches/{name}", key)
    assert reply.status_code == 200, reply.text
    shown: Json = reply.json()
    return shown


def events_in(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def replayed(world: World, name: str, **parameters: Any) -> list[Any]:
    async with asyncio.timeout(20):
        reply = await get(world, f"/v1/searches/{name}/events", **parameters)
    assert reply.status_code == 200, reply.text
    return events_in(reply.text)


async def posted(world: World, **fields: Any) -> httpx.Response:
    async with client_of(world) as client:
        return await client.post("/v1/chat/completions", json=chat(store=True, **fields))


async def until_running(world: World) -> None:
    async with asyncio.timeout(20):
        while not world.generator.running:
            await asyncio.sleep(0.01)


async def test_every_controller_returns_a_stored_search_as_it_was_answered(kept: World, elsewhere: World) -> None:
    reply = (await posted(kept)).json()
    stream = await posted(kept, stream=True)
    for world in (kept, elsewhere):
        for name in (reply["id"], reply["search"]["search_id"]):
            shown = await stored_search(world, name)
            assert (shown["status"], shown["error"]) == ("finished", None)
            assert shown["id"] == reply["search"]["search_id"]
            assert shown["reply"] == reply
            assert shown["generated_tokens"] == reply["search"]["generated_tokens"]
            assert shown["nodes"] == reply["search"]["nodes"]
            assert shown["created_at"] <= shown["ended_at"]
    chunks = events_in(stream.text)
    steps = [chunk["search_event"] for chunk in chunks[:-1] if "search_event" in chunk]
    *events, last, done = await replayed(elsewhere, chunks[0]["id"])
    assert [event["search_event"] for event in events] == steps
    assert len(steps) > 4
    assert last["search"]["reply"]["choices"][0]["message"]["content"] == reply["choices"][0]["message"]["content"]
    assert done == "[DONE]"
    assert (await replayed(kept, chunks[0]["id"], after=3))[:-2] == events[3:]
    listed = (await get(kept, "/v1/searches")).json()
    assert [each["id"] for each in listed["data"]] == [last["search"]["id"], reply["search"]["search_id"]]
    assert (await get(kept, "/v1/searches", limit=1)).json()["has_more"] is True


async def test_a_search_is_stored_only_on_request_and_for_its_key_alone(kept: World, tmp_path: Path) -> None:
    async with client_of(kept) as client:
        plain = (await client.post("/v1/chat/completions", json=chat())).json()
        refusing = (await client.post("/v1/chat/completions", json=chat(store=False))).json()
    assert found(tmp_path, "owners/*") == []
    name = (await posted(kept)).json()["id"]
    for world, key, unknown in (
        (kept, KEY, plain["id"]),
        (kept, KEY, refusing["id"]),
        (kept, KEY, "chatcmpl-../x"),
        (kept, OTHER, name),
    ):
        for path in (f"/v1/searches/{unknown}", f"/v1/searches/{unknown}/events"):
            reply = await get(world, path, key)
            assert reply.status_code == 404, reply.text
    assert (await get(kept, "/v1/searches", OTHER)).json()["data"] == []


async def test_responses_and_trees_are_kept_too(kept: World) -> None:
    client = openai.AsyncOpenAI(base_url="http://localhost/v1", api_key=KEY, http_client=kept.client, max_retries=0)
    response = await client.responses.create(model="m", input="6*7?", store=True, extra_body={"seed": 1})
    assert response.store is True
    shown = await stored_search(kept, response.id)
    assert shown["reply"]["choices"][0]["message"]["content"] == response.output_text
    async with client_of(kept) as asking:
        tree = (await asking.post("/v1/search", json=chat(store=True))).json()
    assert (await stored_search(kept, tree["id"]))["reply"] == {
        name: value for name, value in tree.items() if name != "tree"
    }


async def test_a_running_search_can_be_followed_from_another_controller(kept: World, elsewhere: World) -> None:
    kept.generator.gate.clear()
    running = asyncio.create_task(posted(kept, search={"strategy": "best_of_n", "n": 3}))
    await until_running(kept)
    [shown] = (await get(elsewhere, "/v1/searches")).json()["data"]
    assert (shown["status"], shown["ended_at"], shown["nodes"]) == ("running", None, 0)
    assert (await stored_search(elsewhere, shown["id"]))["reply"] is None
    following = asyncio.create_task(replayed(elsewhere, shown["id"]))
    await asyncio.sleep(0.3)
    assert not following.done()
    kept.generator.gate.set()
    reply = (await running).json()
    *events, last, _ = await following
    assert len(events) == reply["search"]["scored_steps"]
    assert last["search"]["reply"] == reply


async def test_a_follower_may_disconnect_and_come_back(kept: World) -> None:
    """Over a socket: its connection is closed, and the search is not affected."""
    name = (await posted(kept)).json()["id"]
    everything = await replayed(kept, name)
    kept.generator.gate.clear()
    running = asyncio.create_task(posted(kept))
    await until_running(kept)
    async with served(kept) as url, httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as client:
        [first, _] = (await client.get(f"{url}/v1/searches")).json()["data"]
        async with client.stream("GET", f"{url}/v1/searches/{first['id']}/events") as stream:
            assert stream.status_code == 200
        kept.generator.gate.set()
        await running
        again = await client.get(f"{url}/v1/searches/{name}/events", headers={"Last-Event-ID": "2"})
    assert events_in(again.text) == everything[2:]


async def test_the_error_of_a_failed_search_is_returned(kept: World) -> None:
    kept.generator.error = generator_is_dead()
    reply = await posted(kept)
    assert reply.status_code == 503
    [shown] = (await get(kept, "/v1/searches")).json()["data"]
    assert shown["status"] == "failed"
    assert shown["error"] == reply.json()["error"]
    [last, done] = await replayed(kept, shown["id"])
    assert (last["search"]["status"], last["search"]["reply"], done) == ("failed", None, "[DONE]")


async def test_a_search_whose_client_hung_up_is_cancelled(kept: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PING_S", 0.05)
    kept.generator.gate.clear()
    async with served(kept) as url, httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as client:
        async with client.stream("POST", f"{url}/v1/chat/completions", json=chat(store=True, stream=True)):
            await until_running(kept)
        async with asyncio.timeout(20):
            while (await client.get(f"{url}/v1/searches")).json()["data"][0]["status"] != "cancelled":
                await asyncio.sleep(0.02)
    kept.generator.gate.set()


OTHER_CONTROLLER = """
import sys, time
from pathlib import Path
from deployments.store import SearchRecord, Store, StoreSettings

path, owner, record = sys.argv[1:]
store = Store(Path(path), StoreSettings(path=Path(path)))
writer = store.owned(owner).searches.begin(SearchRecord.model_validate_json(record))
writer.append(['{"nodes":1,"tokens":7}'])
print("begun", flush=True)
time.sleep(120)
"""


async def test_a_search_that_died_with_its_controller_is_lost(kept: World, tmp_path: Path) -> None:
    finished = (await posted(kept)).json()
    owner = store_owner(key_record(KEY))
    begun = record(new_id("")).model_dump_json()
    arguments = (sys.executable, "-c", OTHER_CONTROLLER, str(tmp_path), owner, begun)
    other = await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.PIPE)
    name = json.loads(begun)["id"]
    try:
        assert other.stdout is not None
        assert await asyncio.wait_for(other.stdout.readline(), 60) == b"begun\n"
        assert (await stored_search(kept, name))["status"] == "running"
        following = asyncio.create_task(replayed(kept, name))
        await asyncio.sleep(0.3)
    finally:
        other.kill()
        await asyncio.wait_for(other.wait(), 10)
    event, last, _ = await following
    assert event == {"search_event": {"nodes": 1, "tokens": 7}}
    for shown in (last["search"], await stored_search(kept, name)):
        assert (shown["status"], shown["error"]["code"]) == ("failed", "search_lost")
        assert (shown["nodes"], shown["generated_tokens"]) == (1, 7)
    assert (await stored_search(kept, finished["id"]))["status"] == "finished"


def record(name: str) -> SearchRecord:
    return SearchRecord(id=name, created=time.time(), model="m", strategy="greedy", n=1, prompt_tokens=3)


async def test_a_disk_error_during_a_search_loses_its_events_only(kept: World, tmp_path: Path) -> None:
    kept.generator.gate.clear()
    running = asyncio.create_task(posted(kept))
    await until_running(kept)
    [directory] = found(tmp_path, "owners/*/searches/*/")
    shutil.rmtree(directory)
    kept.generator.gate.set()
    reply = await running
    assert reply.status_code == 200, reply.text
    assert (await get(kept, f"/v1/searches/{reply.json()['id']}")).status_code == 404


async def test_a_search_that_cannot_be_stored_does_not_begin(kept: World, tmp_path: Path) -> None:
    (tmp_path / "owners" / store_owner(key_record(KEY))).write_text("no directory")
    reply = await posted(kept)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "store_unavailable")
    assert kept.generator.calls == 0


async def test_concurrent_followers_are_limited(kept: World, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.generator.gate.clear()
    running = asyncio.create_task(posted(kept))
    await until_running(kept)
    [shown] = (await get(kept, "/v1/searches")).json()["data"]
    following = [asyncio.create_task(replayed(kept, shown["id"])) for _ in range(MAX_STREAMS)]
    async with asyncio.timeout(60):
        while kept.app.state.endpoint.kept.streams._now.total() < MAX_STREAMS:
            await asyncio.sleep(0.01)
    refused = await get(kept, f"/v1/searches/{shown['id']}/events")
    assert refused.status_code == 429
    assert "streams of events" in refused.json()["error"]["message"]
    kept.generator.gate.set()
    await asyncio.gather(running, *following)
    assert (await get(kept, f"/v1/searches/{shown['id']}/events")).status_code == 200


async def test_without_a_store_the_routes_say_so(world: World) -> None:
    async with world.client as client:
        reply = (await client.post("/v1/chat/completions", json=chat(store=True))).json()
        assert "store: this server stores nothing" in reply["search"]["notes"]
        for path in ("/v1/searches", "/v1/searches/x", "/v1/searches/x/events"):
            assert (await client.get(path)).json()["error"]["code"] == "store_disabled"


class TestStore:
    def test_the_oldest_search_is_removed_above_the_cap(self, tmp_path: Path) -> None:
        store = Store(tmp_path, StoreSettings(path=tmp_path, searches_max=3))
        store.prepare()
        searches = store.owned(ANONYMOUS).searches
        names = [new_id("") for _ in range(5)]
        for age, name in enumerate(names):
            searches.begin(record(name)).end(SearchEnd(status=SearchStatus.FINISHED, ended=time.time()), "{}")
            os.utime(tmp_path / "owners" / ANONYMOUS / "searches" / name, (age, age))
        assert [search.id for search in searches.newest_first()] == names[:1:-1]

    def test_below_the_cap_no_file_is_looked_at(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = Store(tmp_path, StoreSettings(path=tmp_path, searches_max=3))
        store.prepare()
        searches, looked = store.owned(ANONYMOUS).searches, list[Path]()

        def look(path: Path) -> float:
            looked.append(path)
            return modified(path)

        monkeypatch.setattr(searches_module, "modified", look)
        for begun in range(1, 5):
            searches.begin(record(new_id(""))).end(SearchEnd(status=SearchStatus.FINISHED, ended=time.time()), "{}")
            assert bool(looked) == (begun > 3)
        assert len(searches.newest_first()) == 3

    def test_events_past_the_cap_and_all_later_ones_are_not_stored(self, tmp_path: Path) -> None:
        store = Store(tmp_path, StoreSettings(path=tmp_path, search_bytes_max=20))
        store.prepare()
        searches = store.owned(ANONYMOUS).searches
        writer = searches.begin(record(name := new_id("")))
        writer.append(['{"a":1}'])
        writer.append(['{"b":"' + "x" * 20 + '"}'])
        writer.append(['{"c":1}'])
        reply = {"id": f"chatcmpl-{name}", "choices": []}
        writer.end(SearchEnd(status=SearchStatus.FINISHED, ended=time.time()), json.dumps(reply))
        search = searches.get(name)
        assert search.events().lines == ['{"a":1}']
        assert search.reply == reply
        assert search.last_event() == {"a": 1}

    def test_reads_end_with_a_whole_event(self, tmp_path: Path) -> None:
        store = Store(tmp_path, StoreSettings(path=tmp_path))
        store.prepare()
        searches = store.owned(ANONYMOUS).searches
        writer = searches.begin(record(name := new_id("")))
        writer.append(['{"a":"é"}'])
        with (tmp_path / "owners" / ANONYMOUS / "searches" / name / "events.jsonl").open("ab") as file:
            file.write('{"b":"é'.encode()[:-1])
        search = searches.get(name)
        writer.end(SearchEnd(status=SearchStatus.FINISHED, ended=time.time()))
        first = search.events()
        assert first.lines == ['{"a":"é"}']
        assert search.events(first.offset).lines == []
        assert search.last_event() == {"a": "é"}

    def test_expired_searches_are_removed(self, tmp_path: Path) -> None:
        store = Store(tmp_path, StoreSettings(path=tmp_path, keep_s=10.0))
        store.prepare()
        searches = store.owned(ANONYMOUS).searches
        old, lost, running = (new_id("") for _ in range(3))
        writer = searches.begin(record(running))
        searches.begin(record(old)).end(SearchEnd(status=SearchStatus.FAILED, ended=time.time() - 11))
        searches.begin(record(lost).model_copy(update={"created": time.time() - 11}))._held.close()
        store.sweep()
        assert [path.name for path in (tmp_path / "owners" / ANONYMOUS / "searches").glob("?" * 32)] == [running]
        assert [search.id for search in searches.newest_first()] == [running]
        writer.end(SearchEnd(status=SearchStatus.FINISHED, ended=time.time()))
