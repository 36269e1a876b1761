"""Files and batches through OpenAI's own client: processed like `banyan batch`, by any live runner, visible only to
their owner."""

import asyncio
import errno
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import httpx
import openai
import pytest
import pytest_asyncio
from http_world import World, chat, found, generator_is_dead

from cluster.client import client as client_module
from cluster.client.client import Client
from cluster.client.retries import Retries
from cluster.jobs import batch_run, batches, run
from cluster.jobs.batches import BatchJobs
from cluster.jobs.inputs import MAX_DEPTH
from deployments.admission.auth import ApiKeys
from deployments.admission.errors import Busy, Unavailable
from deployments.admission.keys import key_record, store_owner
from deployments.config import KeyLimits
from deployments.http import store_access
from deployments.http.files_and_batches import files as files_routes
from deployments.http.store_access import MAX_ALL_UPLOADS, MAX_DOWNLOADS, MAX_UPLOADS, OwnerLimit, StoreAccess
from deployments.store import Batch, BatchState, BatchStatus, FileRecord, Files, Store
from search.answers.equivalence import AnswerMatcher
from search.ports import ChildGroup, ExpandRequest, Lane
from search.tools import fair_threads
from search.tools.fair_threads import FairThreads, Steps

Json = dict[str, Any]
KEY, OTHER = "a-key-of-twenty-characters", "another-key-of-many-more"
NARROW = {"search": {"strategy": "best_of_n", "n": 2}}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(batch_run, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(batches, "REST_S", 0.05)


@pytest_asyncio.fixture
async def kept(matcher: AnswerMatcher, tmp_path: Path) -> AsyncIterator[World]:
    """A world of two keys with a store."""
    world = World(matcher, keys=[KEY, OTHER], store={"path": str(tmp_path), "batch_requests": 4})
    yield world
    world.assert_idle()


def client_of(world: World, key: str = KEY) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url="http://localhost/v1", api_key=key, max_retries=0, http_client=world.client)


@asynccontextmanager
async def runner(world: World, connect: Callable[[str], Client] | None = None) -> AsyncIterator[BatchJobs]:
    """Runs batches within the block; it is killed at the end."""
    assert world.store is not None
    jobs = BatchJobs(world.store, connect or world.client_of)
    running = asyncio.create_task(jobs.run())
    try:
        yield jobs
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def requests_of(count: int, **fields: Any) -> list[Json]:
    return [
        {"custom_id": f"c-{index}", "method": "POST", "url": "/v1/chat/completions", "body": chat(**NARROW, seed=index)}
        | fields
        for index in range(count)
    ]


async def uploaded(client: openai.AsyncOpenAI, lines: list[Any]) -> str:
    content = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    file = await client.files.create(file=("in.jsonl", content.encode()), purpose="batch")
    assert (file.bytes, file.filename, file.purpose, file.status) == (len(content), "in.jsonl", "batch", "processed")
    return file.id


async def created(client: openai.AsyncOpenAI, lines: list[Any], **fields: Any) -> Any:
    return await client.batches.create(
        input_file_id=await uploaded(client, lines),
        endpoint="/v1/chat/completions",
        **({"completion_window": "24h"} | fields),
    )


async def ended(client: openai.AsyncOpenAI, batch_id: str) -> Any:
    async with asyncio.timeout(30):
        while True:
            batch = await client.batches.retrieve(batch_id)
            if batch.status in ("completed", "failed", "expired", "cancelled"):
                return batch
            await asyncio.sleep(0.01)


async def lines_in(client: openai.AsyncOpenAI, file_id: str | None) -> list[Json]:
    if file_id is None:
        return []
    content = await client.files.content(file_id)
    return [json.loads(line) for line in content.text.splitlines()]


async def test_a_batch_returns_the_replies_of_chat_and_accounts_for_each_request(kept: World) -> None:
    client = client_of(kept)
    asked = requests_of(9)
    asked[4]["body"] = chat(n=0)
    batch = await created(client, asked, metadata={"night": "1"})
    assert (batch.status, batch.object, batch.completion_window) == ("validating", "batch", "24h")
    assert batch.expires_at == batch.created_at + 86_400
    async with runner(kept):
        batch = await ended(client, batch.id)
    counts = batch.request_counts
    assert (batch.status, counts.total, counts.completed, counts.failed) == ("completed", 9, 8, 1)
    assert batch.metadata == {"night": "1"}
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    assert batch.errors is batch.failed_at is batch.cancelled_at is batch.expired_at is None
    results = {line["custom_id"]: line for line in await lines_in(client, batch.output_file_id)}
    assert results.keys() == {f"c-{index}" for index in range(9) if index != 4}
    for index in (0, 3, 8):
        plain = await client.chat.completions.create(**chat(seed=index, extra_body=NARROW))
        response = results[f"c-{index}"]["response"]
        assert response["status_code"] == 200
        assert response["body"]["choices"][0]["message"]["content"] == plain.choices[0].message.content
        assert (response["body"]["service_tier"], plain.service_tier) == ("flex", "default")
    usages = [line["response"]["body"]["usage"] for line in results.values()]
    assert batch.usage.output_tokens == sum(usage["completion_tokens"] for usage in usages) > 0
    assert batch.usage.total_tokens == sum(usage["total_tokens"] for usage in usages)
    [refused] = await lines_in(client, batch.error_file_id)
    assert (refused["custom_id"], refused["response"]["status_code"]) == ("c-4", 400)
    assert refused["response"]["body"]["error"]["param"] == "n"


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/responses", {"model": "m", "input": "6*7?", "seed": 1}),
        ("/v1/responses", {"model": "m", "input": "6*7?", "seed": 1, "tools": [{"type": "function", "name": "f"}]}),
        ("/v1/chat/completions", chat(tools=[{"type": "function", "function": {"name": "f"}}])),
        ("/v1/search", chat()),
        ("/v1/completions", {"model": "m", "prompt": "6*7", "use_beam_search": True, "n": 1}),
        ("/v1/score", {"model": "m", "question": "6*7?", "steps": ["42"]}),
    ],
)
async def test_every_route_that_does_work_has_batches(kept: World, url: Any, body: Json) -> None:
    client = client_of(kept)
    if "tools" in body:
        kept.generator.texts = ['<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>']
    file_id = await uploaded(client, requests_of(1, url=url, body=body))
    batch = await client.batches.create(input_file_id=file_id, endpoint=url, completion_window="1h")
    async with runner(kept):
        batch = await ended(client, batch.id)
    assert batch.status == "completed", batch
    lanes = kept.generator.lanes | kept.scorer.lanes | {beam.lane for beam in kept.generator.beams}
    assert lanes <= {Lane.FLEX_DEMAND, Lane.FLEX_FIRST_STEPS}, "others go first"
    [result] = await lines_in(client, batch.output_file_id)
    async with kept.client as asking:
        plain = (await asking.post(url, headers={"Authorization": f"Bearer {KEY}"}, json=body)).json()
    reply = result["response"]["body"]
    assert reply.keys() == plain.keys()
    for name in ("choices", "rewards", "tree"):
        assert reply.get(name) == plain.get(name)
    calls = [re.findall(r'call_[0-9a-f]{26}"', json.dumps(each)) for each in (reply, plain)]
    assert calls[0] == calls[1]
    assert bool(calls[0]) is ("tools" in body)
    assert batch.usage is not None
    assert batch.usage.total_tokens > 0


async def test_a_long_file_of_one_key_is_checked_in_turn_with_those_of_others(
    kept: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_threads, "TURN_S", 0.0)  # so a turn is one line
    monkeypatch.setattr(batch_run, "_THREADS", FairThreads(1, 100, "test"))
    checked, checking = list[int](), batch_run.checking

    def noted(path: Path, endpoint: str, most: int) -> Steps[Any]:
        steps, lines = checking(path, endpoint, most), path.read_text().count("\n")
        while True:
            checked.append(lines)
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            yield

    monkeypatch.setattr(batch_run, "checking", noted)
    mine, other = client_of(kept), client_of(kept, OTHER)
    long = await created(mine, [*requests_of(3000), "not JSON"])
    short = await created(other, requests_of(2))
    async with runner(kept):
        assert (await ended(other, short.id)).status == "completed"
        assert (await ended(mine, long.id)).status == "failed"
    assert 3001 in checked[: checked.index(2)], "the long file came first"
    last = max(index for index, lines in enumerate(checked) if lines == 2)
    turns = checked[checked.index(2) : last + 1]
    assert turns.count(3001) <= turns.count(2), "and had a turn for each of the short one"
    assert len(checked) > 6000


async def test_files_and_batches_are_visible_to_their_key_only(kept: World) -> None:
    mine, other = client_of(kept), client_of(kept, OTHER)
    batch = await created(mine, requests_of(2))
    async with runner(kept):
        batch = await ended(mine, batch.id)
    assert [each.id async for each in other.files.list()] == [each.id async for each in other.batches.list()] == []
    unknown = f"file-{'0' * 32}"
    for file_id in (batch.input_file_id, batch.output_file_id, unknown, "../../x"):
        for ask in (other.files.retrieve, other.files.content, other.files.delete):
            with pytest.raises(openai.NotFoundError) as refused:
                await ask(file_id)
            if file_id != "../../x":
                reply = refused.value.body
                assert reply == {
                    "message": f"no such file: {file_id!r}",
                    "type": "invalid_request_error",
                    "param": None,
                    "code": "not_found",
                }
    for ask_batch in (other.batches.retrieve, other.batches.cancel):
        with pytest.raises(openai.NotFoundError, match="no such batch"):
            await ask_batch(batch.id)
    with pytest.raises(openai.NotFoundError, match="input_file_id: no such file"):
        await other.batches.create(
            input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    with pytest.raises(openai.AuthenticationError):
        await client_of(kept, "nobodys-key-at-all-here").files.list()
    assert len(kept.generator.salts) == 1
    assert kept.generator.salts == {key_record(KEY).cache_salt}


async def test_another_runner_resumes_where_one_was_killed(kept: World) -> None:
    """Repeatedly: no request is lost, and none is in the results twice."""
    client = client_of(kept)
    batch = await created(client, requests_of(40))
    for _ in range(6):
        async with runner(kept):
            before = (await client.batches.retrieve(batch.id)).request_counts.completed
            async with asyncio.timeout(20):
                while (now := await client.batches.retrieve(batch.id)).request_counts.completed == before:
                    if now.status == "completed":
                        break
                    await asyncio.sleep(0)
    async with runner(kept):
        batch = await ended(client, batch.id)
    results = await lines_in(client, batch.output_file_id)
    assert sorted(line["line"] for line in results) == list(range(1, 41))
    assert batch.error_file_id is None
    assert batch.request_counts.completed == 40


async def test_two_runners_process_a_batch_once(kept: World) -> None:
    client = client_of(kept)
    made = [await created(client, requests_of(8)) for _ in range(3)]
    async with runner(kept), runner(kept):
        batches_ = [await ended(client, batch.id) for batch in made]
    for batch in batches_:
        assert batch.status == "completed"
        assert sorted(line["line"] for line in await lines_in(client, batch.output_file_id)) == list(range(1, 9))


async def test_a_cancelled_batch_keeps_finished_requests_and_lists_the_others(kept: World) -> None:
    client = client_of(kept)
    batch, waiting = await created(client, requests_of(6)), await created(client, requests_of(2))
    kept.generator.gate.clear()
    async with runner(kept):
        async with asyncio.timeout(20):
            while not kept.generator.running:
                await asyncio.sleep(0)
        for each in (batch, waiting):  # a runner may end it before the reply
            assert (await client.batches.cancel(each.id)).status in ("cancelling", "cancelled")
        cancelled = await ended(client, batch.id)
        # A batch that has not begun is cancelled at once.
        assert (await ended(client, waiting.id)).status == "cancelled"
    kept.generator.gate.set()
    assert cancelled.status == "cancelled"
    assert cancelled.cancelling_at <= cancelled.cancelled_at
    assert cancelled.output_file_id is None
    errors = await lines_in(client, cancelled.error_file_id)
    assert sorted(line["custom_id"] for line in errors) == [f"c-{index}" for index in range(6)]
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
    assert (await client.batches.cancel(batch.id)).status == "cancelled"


async def test_a_batch_past_its_window_ends_as_expired(kept: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(kept)
    batch = await created(client, requests_of(6), completion_window="1m")
    kept.generator.gate.clear()
    async with runner(kept):
        async with asyncio.timeout(20):
            while not kept.generator.running:
                await asyncio.sleep(0)
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + 61)
        batch = await ended(client, batch.id)
    kept.generator.gate.set()
    assert (batch.status, batch.request_counts.failed) == ("expired", 6)
    assert {line["error"]["code"] for line in await lines_in(client, batch.error_file_id)} == {"batch_expired"}
    with pytest.raises(openai.ConflictError, match="a batch that is expired cannot be cancelled"):
        await client.batches.cancel(batch.id)


@pytest.mark.parametrize(
    ("lines", "code", "line"),
    [
        ([], "empty_file", None),
        ([*requests_of(1), "{"], "invalid_line", 2),
        (requests_of(2, method="GET"), "invalid_line", 1),
        (requests_of(1, url="/v1/search"), "mismatched_url", 1),
        ([*requests_of(2), *requests_of(1)], "duplicate_custom_id", 3),
        (requests_of(6), "too_many_requests", None),
    ],
)
async def test_an_invalid_file_fails_the_batch_before_anything_is_sent(
    matcher: AnswerMatcher, tmp_path: Path, lines: list[Any], code: str, line: int | None
) -> None:
    world = World(matcher, keys=[KEY], store={"path": str(tmp_path), "batch_lines_max": 5})
    client = client_of(world)
    batch = await created(client, lines)
    async with runner(world):
        batch = await ended(client, batch.id)
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert batch.output_file_id is batch.error_file_id is None
    assert (batch.errors.data[0].code, batch.errors.data[0].line) == (code, line)
    assert world.generator.calls == 0


async def test_a_batch_waits_for_a_key_that_is_unknown_for_a_while(
    kept: World, caplog: pytest.LogCaptureFixture
) -> None:
    client = client_of(kept)
    batch = await created(client, requests_of(3))
    kept.known.replace([key_record(OTHER)])
    async with runner(kept):
        async with asyncio.timeout(20):
            while "KeyRefused" not in caplog.text:
                await asyncio.sleep(0.01)
        kept.known.replace([key_record(KEY), key_record(OTHER)])
        batch = await ended(client, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 3)


async def test_a_batch_without_its_key_expires_with_its_finished_results(
    kept: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(kept)
    batch = await begun(kept, client, 40)
    kept.known.replace([key_record(OTHER)])
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 61)
    store = kept.store
    assert isinstance(store, Store)
    owned = store.owned(store_owner(key_record(KEY)))
    async with runner(kept), asyncio.timeout(20):
        while not (state := owned.batches.get(batch.id).state).status.is_final:
            await asyncio.sleep(0.01)
    assert (state.status, state.completed + state.failed) == (BatchStatus.EXPIRED, 40)
    assert state.output_file_id is not None
    assert len(owned.files.path(state.output_file_id).read_text().splitlines()) == state.completed > 0


async def test_a_batch_whose_key_was_removed_fails_with_its_finished_results(
    kept: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(kept)
    done, untouched = await begun(kept, client, 40), await created(client, requests_of(2))
    kept.known.replace([key_record(OTHER)])
    for batch in (done, untouched):
        async with runner(kept):
            await until_state(batch_of(kept, batch.id), lambda state: state.refused_since is not None)
    # The time counts from the first refusal, not from the next runner's start; both windows are still open.
    now = time.time
    monkeypatch.setattr(batch_run, "KEY_GONE_S", 30.0)
    monkeypatch.setattr(time, "time", lambda: now() + 31)
    async with runner(kept):
        states = [
            await until_state(batch_of(kept, each.id), lambda state: state.status.is_final)
            for each in (done, untouched)
        ]
    assert [state.status for state in states] == [BatchStatus.FAILED] * 2
    assert [[error.code for error in state.errors] for state in states] == [["key_removed"]] * 2

    # If the removal was a mistake, the key finds everything once it is back.
    kept.known.replace([key_record(KEY), key_record(OTHER)])
    for each, total in ((done, 40), (untouched, 2)):
        batch = await ended(client, each.id)
        assert (batch.status, batch.errors.data[0].code) == ("failed", "key_removed")
        results, errors = [await lines_in(client, file_id) for file_id in (batch.output_file_id, batch.error_file_id)]
        assert len(results) + len(errors) == total
        assert bool(results) == (each is done)
        assert {line["error"]["code"] for line in errors} == {"key_removed"}


async def test_a_key_that_is_back_clears_the_refusal(kept: World) -> None:
    client = client_of(kept)
    batch = await created(client, requests_of(3))
    kept.known.replace([key_record(OTHER)])
    async with runner(kept):
        await until_state(batch_of(kept, batch.id), lambda state: state.refused_since is not None)
        kept.known.replace([key_record(KEY), key_record(OTHER)])
        await ended(client, batch.id)
    assert batch_of(kept, batch.id).state.refused_since is None


def batch_of(kept: World, batch_id: str) -> Batch:
    """The stored batch, looked up as the first key's whether that key is known now or not."""
    assert isinstance(kept.store, Store)
    return kept.store.owned(store_owner(key_record(KEY))).batches.get(batch_id)


async def until_state(batch: Batch, reached: Callable[[BatchState], bool]) -> BatchState:
    async with asyncio.timeout(20):
        while not reached(state := batch.state):
            await asyncio.sleep(0.01)
    return state


async def test_without_a_service_a_batch_is_cancelled_with_its_finished_results(kept: World) -> None:
    client = client_of(kept)
    batch = await begun(kept, client, 40)
    await client.batches.cancel(batch.id)
    async with runner(kept, lambda owner: gone()):
        batch = await ended(client, batch.id)
    assert batch.status == "cancelled"
    assert len(await lines_in(client, batch.output_file_id)) == batch.request_counts.completed > 0
    assert len(await lines_in(client, batch.error_file_id)) == batch.request_counts.failed


async def test_a_batch_resumes_after_the_model_was_renamed(kept: World, tmp_path: Path) -> None:
    client = client_of(kept)
    batch = await begun(kept, client, 40)
    [path] = found(tmp_path, "owners/*/batches/*/output.job.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model": "another"}))
    async with runner(kept):
        batch = await ended(client, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 40)


async def begun(kept: World, client: openai.AsyncOpenAI, count: int) -> Any:
    """A batch with five requests done, whose runner was killed."""
    batch = await created(client, requests_of(count), completion_window="1m")

    def connect(owner: str) -> Client:
        asking, left = kept.client_of(owner), iter(range(5))
        post = asking.post

        async def five(path: str, body: dict[str, object]) -> Json:
            if next(left, None) is None:
                await asyncio.Event().wait()
            return await post(path, body)

        asking.post = five  # type: ignore[method-assign]
        return asking

    async with runner(kept, connect), asyncio.timeout(20):
        while (now := await client.batches.retrieve(batch.id)).request_counts.completed < 5:
            await asyncio.sleep(0.01)
    assert (now.status, now.request_counts.completed) == ("in_progress", 5)
    return now


async def test_a_batch_whose_runner_dies_at_the_end_keeps_its_final_status(
    kept: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only its result files remain, whenever the kill came."""
    client = client_of(kept)
    batch = await begun(kept, client, 40)
    await client.batches.cancel(batch.id)
    fails_once(monkeypatch, batch_run, "usage_of")
    fails_once(monkeypatch, Batch, "drop_work")
    async with runner(kept), asyncio.timeout(20):
        while found(tmp_path, "pending/*"):
            await asyncio.sleep(0.01)
    batch = await client.batches.retrieve(batch.id)
    assert batch.status == "cancelled"
    lines = await lines_in(client, batch.output_file_id) + await lines_in(client, batch.error_file_id)
    assert sorted(line["line"] for line in lines) == list(range(1, 41))
    left = {path.name for path in found(tmp_path, "owners/*/batches/*/*")}
    assert left == {"record.json", "state.json", "lease", "cancel"}


def fails_once(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> None:
    whole = getattr(where, name)

    def failing(*given: Any) -> Any:
        monkeypatch.setattr(where, name, whole)
        raise OSError("once")

    monkeypatch.setattr(where, name, failing)


async def test_batches_of_all_keys_run_concurrently_within_their_limits(matcher: AnswerMatcher, tmp_path: Path) -> None:
    """A key that may have one request at work has one, and does not hold up other keys."""
    records = [key_record(KEY, KeyLimits(places=1)), key_record(OTHER)]
    world = World(matcher, keys=[], records=records, store={"path": str(tmp_path), "batch_requests": 4})
    one, many = client_of(world), client_of(world, OTHER)
    narrow, wide = await created(one, requests_of(5)), await created(many, requests_of(20))
    world.generator.gate.clear()
    async with runner(world) as jobs:
        async with asyncio.timeout(20):
            while jobs.running < 2 or world.service.running < 3:
                await asyncio.sleep(0.01)
        # Two requests for each key, at most four in all; one of the first key's two is refused.
        assert world.service.running == 3
        world.generator.gate.set()
        assert (await ended(many, wide.id)).request_counts.completed == 20
        assert (await ended(one, narrow.id)).request_counts.completed == 5
    assert jobs.running == 0


async def test_a_batch_waits_for_a_service_that_is_down(kept: World) -> None:
    client = client_of(kept)
    batch = await created(client, requests_of(4))
    tries = 0

    def connect(owner: str) -> Client:
        nonlocal tries
        tries += 1
        if tries > 3:
            return kept.client_of(owner)
        return gone()

    async with runner(kept, connect):
        batch = await ended(client, batch.id)
    assert (batch.status, batch.request_counts.completed, tries) == ("completed", 4, 4)


def gone() -> Client:
    """A client of a service that is not there."""

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("gone", request=request)

    return Client("http://127.0.0.1", transport=httpx.MockTransport(refuse), waits_for_room=False)


async def test_requests_that_failed_during_an_outage_are_retried(kept: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_FAILURES", 3)
    monkeypatch.setattr(client_module, "DEFAULT_RETRIES", Retries(attempts=1))
    client = client_of(kept)
    batch = await created(client, requests_of(8))
    kept.generator.error = generator_is_dead()
    async with runner(kept):
        async with asyncio.timeout(20):
            while (await client.batches.retrieve(batch.id)).request_counts.failed < 3:
                await asyncio.sleep(0.01)
        kept.generator.error = None
        batch = await ended(client, batch.id)
    counts = batch.request_counts
    assert (batch.status, counts.completed, counts.failed) == ("completed", 8, 0)
    assert batch.error_file_id is None


async def failing(kept: World, monkeypatch: pytest.MonkeyPatch, client: openai.AsyncOpenAI) -> Any:
    """A batch whose two requests fail because of the service."""
    monkeypatch.setattr(client_module, "DEFAULT_RETRIES", Retries(attempts=1))
    kept.generator.error = generator_is_dead()
    return await created(client, requests_of(2))


async def all_failed(client: openai.AsyncOpenAI, batch_id: str) -> None:
    async with asyncio.timeout(20):
        while (await client.batches.retrieve(batch_id)).request_counts.failed < 2:
            await asyncio.sleep(0.01)


async def test_lines_that_failed_because_of_the_service_are_retried(
    kept: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(kept)
    batch = await failing(kept, monkeypatch, client)
    async with runner(kept):
        await all_failed(client, batch.id)
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        kept.generator.error = None
        batch = await ended(client, batch.id)
    assert (batch.status, batch.request_counts.completed, batch.error_file_id) == ("completed", 2, None)


async def test_an_unreadable_batch_stops_no_other(kept: World, tmp_path: Path) -> None:
    client = client_of(kept)
    first, broken, third = [await created(client, requests_of(2)) for _ in range(3)]
    [record] = found(tmp_path, f"owners/*/batches/{broken.id}/record.json")
    record.write_text("{")
    async with runner(kept):
        for batch in (first, third):
            assert (await ended(client, batch.id)).status == "completed"


async def test_lines_that_fail_in_every_pass_have_failed(kept: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_PASSES", 3)
    client = client_of(kept)
    batch = await failing(kept, monkeypatch, client)
    async with runner(kept):
        batch = await ended(client, batch.id)
    assert (batch.status, batch.request_counts.failed, kept.generator.calls) == ("completed", 2, 6)
    assert {line["kind"] for line in await lines_in(client, batch.error_file_id)} == {"failed"}


async def test_a_line_that_ends_engines_has_failed_at_once_and_the_others_go_on(
    kept: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "MAX_FAILURES", 1)
    expand, poison = kept.generator.expand, "2+0?"

    async def deadly(request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        if poison in "".join(map(chr, request.expansions[0].prefix)):
            raise kept.service.suspects.found_harmful(request.search_id)
        async for group in expand(request):
            yield group

    monkeypatch.setattr(kept.generator, "expand", deadly)
    client = client_of(kept)
    lines = requests_of(4)
    lines[2]["body"]["messages"] = [{"role": "user", "content": poison}]
    batch = await created(client, lines)
    async with runner(kept):
        batch = await ended(client, batch.id)
    counts = batch.request_counts
    assert (batch.status, counts.completed, counts.failed) == ("completed", 3, 1)
    [line] = await lines_in(client, batch.error_file_id)
    assert line["response"]["status_code"] == 500
    assert line["response"]["body"]["error"]["code"] == "engine_ended_twice"
    assert line["kind"] == "input", "it is not tried in another pass"


async def test_passes_are_counted_across_runners(kept: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner that is killed after each pass makes no more passes than one that lives."""
    monkeypatch.setattr(batches, "MAX_PASSES", 3)
    client = client_of(kept)
    batch = await failing(kept, monkeypatch, client)
    for made in (1, 2):
        async with runner(kept):
            await until_state(batch_of(kept, batch.id), lambda state, made=made: state.passes == made)  # type: ignore[misc]
    async with runner(kept):
        batch = await ended(client, batch.id)
    assert (batch.status, batch.request_counts.failed, kept.generator.calls) == ("completed", 2, 6)


async def test_a_pause_between_passes_outlives_its_runner(kept: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "REST_S", 600.0)
    client = client_of(kept)
    batch = await failing(kept, monkeypatch, client)
    async with runner(kept):
        await until_state(batch_of(kept, batch.id), lambda state: state.passes == 1)
    kept.generator.error = None
    async with runner(kept):
        calls = kept.generator.calls
        assert (await ended(client, (await created(client, requests_of(1))).id)).status == "completed"
        assert kept.generator.calls == calls + len(NARROW)
        assert (await client.batches.retrieve(batch.id)).request_counts.failed == 2
        await client.batches.cancel(batch.id)
        assert (await ended(client, batch.id)).status == "cancelled"


async def test_a_pass_is_resumed_after_its_runner_died(
    kept: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Requests that have already failed in this pass are not sent again before the next one."""
    monkeypatch.setattr(batches, "REST_S", 600.0)
    client = client_of(kept)
    created_ = await failing(kept, monkeypatch, client)
    batch = batch_of(kept, created_.id)
    async with runner(kept):
        await until_state(batch, lambda state: state.passes == 1)
    # The state of the second pass after the first of the two requests has failed again.
    batch.tell(batch.state.model_copy(update={"rests_until": None, "again": False}))
    [errors] = found(tmp_path, f"owners/*/batches/{batch.id}/output.errors.jsonl")
    errors.write_text(errors.read_text().splitlines(keepends=True)[0])
    calls = kept.generator.calls
    async with runner(kept):
        state = await until_state(batch, lambda state: state.passes == 2)
    assert (state.failed, kept.generator.calls) == (2, calls + 1)


async def test_a_pausing_batch_is_cancelled_at_once_and_holds_up_no_other(
    kept: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "REST_S", 600.0)
    client = client_of(kept)
    batch = await failing(kept, monkeypatch, client)
    async with runner(kept) as jobs:
        await all_failed(client, batch.id)
        async with asyncio.timeout(20):
            while jobs.running:
                await asyncio.sleep(0.01)
        kept.generator.error = None
        assert (await ended(client, (await created(client, requests_of(1))).id)).status == "completed"
        await client.batches.cancel(batch.id)
        batch = await ended(client, batch.id)
    assert (batch.status, batch.request_counts.failed) == ("cancelled", 2)
    assert {line["kind"] for line in await lines_in(client, batch.error_file_id)} == {"failed"}


class TestDamage:
    """What is damaged ends a batch, with its reason; it keeps none from being cancelled, and none from expiring."""

    DAMAGES: ClassVar[dict[str, tuple[str, str]]] = {
        "no JSON": ("output.jsonl", "\0\0\n"),
        "no line of the input": ("output.jsonl", '{"line": 99}\n'),
        "no reply": ("output.jsonl", '{"line": 40}\n'),
        "errors": ("output.errors.jsonl", "[]\n"),
        "the identity": ("output.job.json", "{"),
    }

    @pytest.mark.parametrize(
        ("damage", "ending"),
        [
            *((damage, "failed") for damage in DAMAGES),
            ("no JSON", "cancelled"),
            ("the identity", "cancelled"),
            ("errors", "expired"),
            ("the identity", "expired"),
        ],
    )
    async def test_a_damaged_file_ends_the_batch(
        self, kept: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: str, ending: str
    ) -> None:
        name, written = self.DAMAGES[damage]
        client = client_of(kept)
        batch = await begun(kept, client, 40)
        [path] = found(tmp_path, f"owners/*/batches/*/{name}")
        with path.open("a") as file:
            file.write(written)
        if ending == "cancelled":
            await client.batches.cancel(batch.id)
        if ending == "expired":
            now = time.time
            monkeypatch.setattr(time, "time", lambda: now() + 61)
        async with runner(kept):
            batch = await ended(client, batch.id)
            async with asyncio.timeout(20):
                while found(tmp_path, "pending/*"):
                    await asyncio.sleep(0.01)
        assert batch.status == ending
        [error] = batch.errors.data
        assert error.code == "files_damaged"
        assert str(tmp_path) not in error.message
        results = (await client.files.content(batch.output_file_id)).text
        assert len(results.splitlines()) >= 5, "what is there is given out"

    async def test_a_batch_without_its_input_has_failed(self, kept: World, tmp_path: Path) -> None:
        client = client_of(kept)
        batch = await begun(kept, client, 40)
        [path] = found(tmp_path, "owners/*/batches/*/input.jsonl")
        path.unlink()
        async with runner(kept):
            batch = await ended(client, batch.id)
        assert (batch.status, batch.errors.data[0].message) == ("failed", "input.jsonl is gone")
        assert len(await lines_in(client, batch.output_file_id)) == 5

    async def test_what_cannot_be_worked_with_ends_a_while_after_it_should_have(
        self, kept: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = client_of(kept)
        batch = await begun(kept, client, 40)
        await client.batches.cancel(batch.id)

        def failing(*_: Any) -> None:
            raise OSError("for ever")

        monkeypatch.setattr(batch_run, "Outputs", failing)
        async with runner(kept):
            async with asyncio.timeout(20):
                while caplog.text.count("for ever") < 3:
                    await asyncio.sleep(0.01)
            assert (await client.batches.retrieve(batch.id)).status == "cancelling"
            monkeypatch.setattr(batch_run, "ENDING_S", 0.0)
            batch = await ended(client, batch.id)
        assert (batch.status, batch.errors.data[0].code) == ("cancelled", "files_damaged")
        assert len(await lines_in(client, batch.output_file_id)) == 5

    async def test_a_lost_mark_is_found_again(
        self, kept: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(batches, "SWEEP_EVERY_S", 0.0)
        client = client_of(kept)
        batch = await created(client, requests_of(2))
        [mark] = found(tmp_path, "pending/*")
        mark.unlink()
        async with runner(kept):
            assert (await ended(client, batch.id)).status == "completed"


async def test_a_line_that_is_nested_too_deeply_is_told(kept: World) -> None:
    """Also at the depths at which it can still be read, and not be written any more."""
    client = client_of(kept)
    line = json.dumps(requests_of(1)[0]).replace('"c-0"', '"d-%d"').replace('"seed": 0', '"seed": 0, "user": %s')
    depths = [MAX_DEPTH, *range(MAX_DEPTH + 1, 1200, 25)]
    batch = await created(client, [line % (depth, "[" * (depth - 1) + "]" * (depth - 1)) for depth in depths])
    async with runner(kept):
        batch = await ended(client, batch.id)
    assert batch.status == "failed"
    assert [(error.code, error.line) for error in batch.errors.data] == [
        ("invalid_line", number) for number in range(2, len(depths) + 1)
    ]
    assert kept.generator.calls == 0


@pytest.mark.parametrize("url", ["/v1/responses", "/v1/chat/completions"])
async def test_a_line_in_the_background_is_refused_with_its_number(kept: World, url: Any) -> None:
    """Its search would go on without a place of the batch, after the line has ended."""
    client = client_of(kept)
    body = {"model": "m", "input": "6*7?"} if url == "/v1/responses" else chat()
    lines = [requests_of(3, url=url, body=body | {"background": index == 1})[index] for index in range(3)]
    batch = await client.batches.create(
        input_file_id=await uploaded(client, lines), endpoint=url, completion_window="1h"
    )
    async with runner(kept):
        batch = await ended(client, batch.id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    [error] = batch.errors.data
    assert error.line == 2
    assert "body.background must be false" in (error.message or "")
    assert kept.generator.calls == 0


async def test_results_that_become_too_long_end_a_batch_with_those_it_has(
    matcher: AnswerMatcher, tmp_path: Path
) -> None:
    most = 20_000
    world = World(matcher, keys=[KEY], store={"path": str(tmp_path), "batch_output_bytes_max": most})
    client = client_of(world)
    batch = await created(client, requests_of(40))
    async with runner(world):
        batch = await ended(client, batch.id)
    assert batch.status == "failed"
    [error] = batch.errors.data
    assert error.code == "output_too_long"
    assert f"{most} bytes (store.batch_output_bytes_max)" in error.message
    results = await lines_in(client, batch.output_file_id)
    errors = await lines_in(client, batch.error_file_id)
    assert len(results) > 2
    assert (await client.files.retrieve(batch.output_file_id)).bytes <= most
    assert {line["error"]["code"] for line in errors} == {"output_too_long"}
    assert sorted(line["line"] for line in (*results, *errors)) == list(range(1, 41))
    assert (batch.request_counts.completed, batch.request_counts.failed) == (len(results), len(errors))


async def test_a_batch_killed_with_results_that_are_too_long_ends_as_it_was_to(
    matcher: AnswerMatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = {"path": str(tmp_path), "batch_output_bytes_max": 20_000}
    world = World(matcher, keys=[KEY], store=store)
    client = client_of(world)
    batch = await created(client, requests_of(40))
    fails_once(monkeypatch, batch_run, "_account_for_the_rest")
    async with runner(world):
        batch = await ended(client, batch.id)
    assert (batch.status, batch.errors.data[0].code) == ("failed", "output_too_long")


async def test_listings_of_one_key_keep_no_other_from_its_own(kept: World, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = client_of(kept), client_of(kept, OTHER)
    file_id = await uploaded(mine, ["x"])
    let_go, reading, whole = threading.Event(), 0, Files.newest_first

    def waiting(files: Files) -> list[FileRecord]:
        nonlocal reading
        found = whole(files)
        if found:
            reading += 1
            let_go.wait(20)
        return found

    monkeypatch.setattr(Files, "newest_first", waiting)
    listings = [asyncio.ensure_future(mine.files.list()) for _ in range(60)]
    try:
        async with asyncio.timeout(10):
            while not reading:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            assert [file.id async for file in other.files.list()] == []
    finally:
        let_go.set()
    for page in await asyncio.gather(*listings):
        assert [file.id for file in page.data] == [file_id]


async def test_work_that_hangs_on_the_disk_keeps_its_threads_from_its_owner_alone(
    kept: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when nobody waits for it any more."""
    monkeypatch.setattr(store_access, "DISK_S", 0.2)
    assert kept.store is not None
    access, let_go = store_access.StoreAccess(kept.store, kept.live), threading.Event()
    hanging = [asyncio.create_task(access.do("a", lambda: let_go.wait(20))) for _ in range(8)]
    try:
        for each in hanging:
            with pytest.raises(Unavailable):
                await each
        monkeypatch.setattr(store_access, "DISK_S", 20)
        assert await access.do("b", lambda: 1) == 1
    finally:
        let_go.set()
    async with asyncio.timeout(10):
        while True:
            with suppress(Unavailable):
                assert await access.do("a", lambda: 2) == 2
                break


async def test_accesses_past_the_limit_are_refused_but_no_write_of_a_search(
    kept: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_access, "_THREADS", threads := FairThreads(4, 20, "test"))
    assert kept.store is not None
    access, let_go = store_access.StoreAccess(kept.store, kept.live), threading.Event()
    waiting = [asyncio.create_task(access.do("a", lambda: let_go.wait(20))) for _ in range(30)]
    try:
        done, waiting_still = await asyncio.wait(waiting, timeout=0.1)
        assert (len(done), len(waiting_still)) == (20, 10), "half of them is for others"
        for refused in done:
            error = refused.exception()
            assert isinstance(error, Busy)
            assert (error.status, error.reason) == (429, "store")
        write = asyncio.create_task(access.do("a", lambda: "written", size=0))
        assert await access.do("b", lambda: "read") == "read"
    finally:
        let_go.set()
    assert await write == "written"
    await asyncio.wait(waiting)
    assert threads.owners == 0


class TestFiles:
    async def test_a_full_temporary_directory_is_told_as_such(
        self, kept: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(tempfile.SpooledTemporaryFile, "rollover", full)
        client = client_of(kept)
        with pytest.raises(openai.InternalServerError) as refused:
            await client.files.create(file=("long.jsonl", b"x" * (2 << 20)), purpose="batch")
        assert (refused.value.status_code, refused.value.code) == (503, "store_unavailable")
        assert await uploaded(client, ["short"])

    @pytest.mark.parametrize("checks", [0, 1, 2, 3])
    async def test_uploads_leave_a_reserve_on_the_disk(
        self, kept: World, monkeypatch: pytest.MonkeyPatch, checks: int, tmp_path: Path
    ) -> None:
        """Before an upload, while it arrives, and while it is copied."""
        passed = 0

        def check(_: StoreAccess, more: int = 0) -> None:
            nonlocal passed
            passed += 1
            with monkeypatch.context() as patched:
                if passed > checks:
                    patched.setattr(store_access, "RESERVE_BYTES", 1 << 60)
                whole(_, more)

        whole = StoreAccess.check_disk
        monkeypatch.setattr(StoreAccess, "check_disk", check)
        monkeypatch.setattr(files_routes, "CHECK_DISK_BYTES", 1 << 20)
        client = client_of(kept)
        with pytest.raises(openai.InternalServerError) as refused:
            await client.files.create(file=("long.jsonl", b"x" * (1 << 20)), purpose="batch")
        assert (refused.value.status_code, refused.value.code) == (503, "store_unavailable")
        assert passed == checks + 1
        monkeypatch.setattr(StoreAccess, "check_disk", whole)
        assert not found(tmp_path, "*.data")
        assert await uploaded(client, ["short"])

    async def test_uploads_of_all_keys_are_limited_together(self, kept: World) -> None:
        limit = OwnerLimit(MAX_UPLOADS, "uploads", MAX_ALL_UPLOADS)
        with ExitStack() as stack:
            for index in range(MAX_ALL_UPLOADS):
                stack.enter_context(limit.one(f"owner {index}"))
            with pytest.raises(Busy, match="of other clients"):
                stack.enter_context(limit.one("another"))
        with limit.one("another"):
            pass

    @pytest.mark.parametrize(
        "part",
        [
            b"Content-Disposition: form-data; name=x; a=" + b"x" * 50_000 + b"\r\n\r\n",
            b"X: y\r\n" * 50 + b"\r\n",
            b"x" * 50_000,
        ],
        ids=["long header", "many headers", "endless name"],
    )
    async def test_the_headers_of_a_part_are_limited(self, kept: World, part: bytes) -> None:
        headers = {"content-type": "multipart/form-data; boundary=b", "authorization": f"Bearer {KEY}"}
        reply = await kept.client.post("/v1/files", headers=headers, content=b"--b\r\n" + part)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_form")

    async def test_what_goes_in_comes_out(self, kept: World) -> None:
        client = client_of(kept)
        content = bytes(range(256)) * 8000
        file = await client.files.create(
            file=("long.jsonl", content),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        assert file.expires_at == file.created_at + 3600
        assert (await client.files.content(file.id)).read() == content
        assert await client.files.retrieve(file.id) == file
        deleted = await client.files.delete(file.id)
        assert (deleted.id, deleted.deleted) == (file.id, True)
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(file.id)

    async def test_lists_have_pages(self, kept: World) -> None:
        client = client_of(kept)
        ids = [await uploaded(client, [str(index)]) for index in range(5)]
        assert [file.id async for file in client.files.list()] == ids[::-1]
        assert [file.id async for file in client.files.list(order="asc", limit=2)] == ids
        first = await client.files.list(limit=2)
        assert (first.has_more, [file.id for file in first.data]) == (True, ids[:-3:-1])
        assert [file.id for file in (await client.files.list(after=ids[1])).data] == ids[:1]
        assert [file.id async for file in client.files.list(purpose="batch_output")] == []
        batches_ = [await created(client, requests_of(1)) for _ in range(3)]
        found = [batch.id async for batch in client.batches.list(limit=1)]
        assert found == [batch.id for batch in batches_][::-1]
        for wrong in ({"limit": 0}, {"limit": 101}, {"after": "nobody"}):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.batches.list(**wrong)  # type: ignore[arg-type]
            assert refused.value.param in wrong

    async def test_errors_about_caps_name_the_setting(self, matcher: AnswerMatcher, tmp_path: Path) -> None:
        store = {"path": str(tmp_path), "files_max": 2, "file_bytes_max": 100_000, "batches_max": 1}
        client = client_of(World(matcher, keys=[KEY], store=store))
        with pytest.raises(openai.APIStatusError) as long:
            await client.files.create(file=b"x" * 300_000, purpose="batch")
        assert (long.value.status_code, long.value.code) == (413, "body_too_large")
        with pytest.raises(openai.BadRequestError, match=r"store\.file_bytes_max"):
            await client.files.create(file=b"x" * 100_001, purpose="batch")
        await created(client, requests_of(1))
        with pytest.raises(openai.BadRequestError, match=r"store\.batches_max") as refused:
            await created(client, requests_of(1))
        assert refused.value.code == "store_full"
        with pytest.raises(openai.BadRequestError, match=r"store\.files_max"):
            await uploaded(client, ["x"])

    async def test_concurrent_downloads_are_limited(self, kept: World, monkeypatch: pytest.MonkeyPatch) -> None:
        client = client_of(kept)
        file_id = await uploaded(client, ["x"])
        let_go = threading.Event()

        def waiting(store: Files, name: str) -> FileRecord:
            let_go.wait(20)
            return whole(store, name)

        whole = Files.get
        monkeypatch.setattr(Files, "get", waiting)
        downloads = [asyncio.create_task(client.files.content(file_id)) for _ in range(MAX_DOWNLOADS)]
        async with asyncio.timeout(60):
            while kept.app.state.endpoint.kept.downloads._now.total() < MAX_DOWNLOADS:
                await asyncio.sleep(0.01)
        with pytest.raises(openai.RateLimitError, match="downloads"):
            await client.files.content(file_id)
        let_go.set()
        for content in await asyncio.gather(*downloads):
            assert content.text == "x\n"
        assert (await client.files.content(file_id)).text == "x\n"

    async def test_copies_of_uploads_do_not_block_other_disk_work(
        self, kept: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client, let_go, whole, copying = client_of(kept), threading.Event(), Files.add, list[str]()

        def waiting(store: Files, source: BinaryIO, filename: str, keep_s: float | None) -> FileRecord:
            copying.append(filename)
            let_go.wait(120)
            return whole(store, source, filename, keep_s)

        monkeypatch.setattr(Files, "add", waiting)
        uploads = [asyncio.create_task(uploaded(client, ["x"])) for _ in range(MAX_UPLOADS)]
        async with asyncio.timeout(60):
            while len(copying) < MAX_UPLOADS:
                await asyncio.sleep(0.01)
            assert [file.id async for file in client.files.list()] == []
        with pytest.raises(openai.RateLimitError, match="uploads"):
            await uploaded(client, ["x"])
        let_go.set()
        assert sorted(await asyncio.gather(*uploads)) == sorted([file.id async for file in client.files.list()])

    async def test_the_time_limit_of_a_copy_grows_with_its_size(
        self, kept: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store_access, "DISK_S", 0.05)
        assert kept.store is not None
        disk = store_access.StoreAccess(kept.store, kept.live)
        with pytest.raises(Unavailable):
            await disk.copy("a", lambda: time.sleep(0.3), 1)
        await disk.copy("a", lambda: time.sleep(0.3), 10 * store_access.MIN_COPY_BYTES_PER_S)

    async def test_a_download_from_a_hanging_disk_times_out(
        self, kept: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """The file is then closed by a thread, since the read holds its lock."""
        client = client_of(kept)
        file_id = await uploaded(client, ["x"])
        os.mkfifo(pipe := tmp_path / "pipe")
        writer = os.open(pipe, os.O_RDWR)  # like a disk that never replies

        def hanging(files: Files, name: str) -> tuple[FileRecord, BinaryIO]:
            monkeypatch.setattr(store_access, "DISK_S", 0.2)  # of the reads from now on, not of this
            return files.get(name), pipe.open("rb")

        monkeypatch.setattr(Files, "open", hanging)
        try:
            async with asyncio.timeout(60):
                with pytest.raises(RuntimeError, match="response already started"):
                    await client.files.content(file_id)
        finally:
            os.write(writer, b"x")
            os.close(writer)

    @pytest.mark.parametrize(
        ("form", "param"),
        [
            ({"data": {"purpose": "batch"}}, "file"),
            ({"files": {"file": b"x"}}, "purpose"),
            ({"files": {"file": b"x"}, "data": {"purpose": "assistants"}}, "purpose"),
            ({"files": {"file": b"x"}, "data": {"purpose": "batch", "more": "1"}}, "more"),
            ({"files": {"other": b"x"}, "data": {"purpose": "batch"}}, "file"),
            ({"files": {"file": ("n" * 256, b"x")}, "data": {"purpose": "batch"}}, "file"),
            (
                {"files": {"file": b"x"}, "data": {"purpose": "batch", "expires_after[anchor]": "now"}},
                "expires_after.anchor",
            ),
            (
                {
                    "files": {"file": b"x"},
                    "data": {
                        "purpose": "batch",
                        "expires_after[anchor]": "created_at",
                        "expires_after[seconds]": "3599",
                    },
                },
                "expires_after.seconds",
            ),
        ],
    )
    async def test_errors_in_a_form_name_the_field(self, kept: World, form: Json, param: str) -> None:
        form = {"files": {"other": b""}, **form}
        async with kept.client as client:
            reply = await client.post("/v1/files", headers={"Authorization": f"Bearer {KEY}"}, **form)
        assert reply.status_code == 400, reply.text
        assert reply.json()["error"]["param"] == param

    @pytest.mark.parametrize(
        ("media", "body", "status"),
        [
            ("application/json", b"{}", 415),
            ("multipart/form-data", b"x", 400),
            ("multipart/form-data; boundary=b", b"no boundary", 400),
            ("multipart/form-data; boundary=b", b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n", 400),
            ("multipart/form-data; boundary=b", b"", 400),
            (f"multipart/form-data; boundary={'b' * 300}", b"", 400),
        ],
    )
    async def test_a_body_that_is_not_a_form_is_refused(
        self, kept: World, media: str, body: bytes, status: int
    ) -> None:
        headers = {"Authorization": f"Bearer {KEY}", "content-type": media}
        async with kept.client as client:
            reply = await client.post("/v1/files", headers=headers, content=body)
        assert reply.status_code == status, reply.text
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"completion_window": "24"}, "completion_window"),
        ({"completion_window": "8d"}, "completion_window"),
        ({"completion_window": "-1h"}, "completion_window"),
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"metadata": {str(index): "" for index in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"more": 1}, "more"),
        ({"input_file_id": None}, "input_file_id"),
    ],
)
async def test_errors_in_a_batch_name_the_field(kept: World, fields: Json, param: str) -> None:
    body = {
        "input_file_id": await uploaded(client_of(kept), requests_of(1)),
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    async with kept.client as client:
        reply = await client.post("/v1/batches", headers={"Authorization": f"Bearer {KEY}"}, json=body | fields)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


async def test_result_files_cannot_be_the_input_of_a_batch(kept: World) -> None:
    client = client_of(kept)
    batch = await created(client, requests_of(1))
    async with runner(kept):
        batch = await ended(client, batch.id)
    with pytest.raises(openai.BadRequestError, match="was not uploaded with the purpose batch"):
        await client.batches.create(
            input_file_id=batch.output_file_id, endpoint="/v1/chat/completions", completion_window="24h"
        )


async def test_without_a_store_the_routes_name_the_setting(world: World) -> None:
    async with world.client as client:
        for method, path in (
            ("POST", "/v1/files"),
            ("GET", "/v1/files"),
            ("GET", "/v1/files/x"),
            ("GET", "/v1/files/x/content"),
            ("DELETE", "/v1/files/x"),
            ("POST", "/v1/batches"),
            ("GET", "/v1/batches"),
            ("GET", "/v1/batches/x"),
            ("POST", "/v1/batches/x/cancel"),
        ):
            reply = await client.request(method, path)
            assert reply.status_code == 404, (method, path)
            assert reply.json()["error"]["code"] == "store_disabled"
            assert "controller.store.path" in reply.json()["error"]["message"]


async def test_without_keys_all_clients_share_files_and_batches(matcher: AnswerMatcher, tmp_path: Path) -> None:
    world = World(matcher, store={"path": str(tmp_path)})
    client = client_of(world, "none")
    batch = await created(client, requests_of(2))
    async with runner(world):
        assert (await ended(client, batch.id)).status == "completed"


def test_disk_errors_are_reported_as_such(kept: World, tmp_path: Path) -> None:
    assert isinstance(kept.known, ApiKeys)
    owner = store_owner(key_record(KEY))
    (tmp_path / "owners" / owner).write_text("no directory")

    async def ask() -> httpx.Response:
        async with kept.client as client:
            headers = {"Authorization": f"Bearer {KEY}"}
            return await client.post("/v1/files", headers=headers, files={"file": b"x"}, data={"purpose": "batch"})

    reply = asyncio.run(ask())
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "store_unavailable"
