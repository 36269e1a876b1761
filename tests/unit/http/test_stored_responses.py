"""Stored responses through OpenAI's own client: read, continued, cancelled and followed at every controller, by their
key alone."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from http_world import World, chat, found, served
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from cluster.client.errors import Refused
from deployments.admission.keys import key_record, store_owner
from deployments.config import KeyLimits
from deployments.http.responses import stored_responses
from deployments.http.store_access import StoreAccess
from deployments.store import Store, StoreSettings
from deployments.store.records import new_id
from deployments.telemetry.context import CLIENT_KEY
from search.answers.equivalence import AnswerMatcher

Json = dict[str, Any]
KEY, OTHER = "a-key-of-twenty-characters", "another-key-of-many-more"
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ASKED: Any = {"model": "m", "input": "6*7?", "extra_body": {"seed": 1}}
WAIT_S = 20.0
OTHER_CONTROLLER = """
import json, sys, time
from pathlib import Path
from deployments.store import ResponseRecord, SearchRecord, Store, StoreSettings
path, owner, name, begun = sys.argv[1:]
record = SearchRecord(id=name, created=time.time(), model="m", strategy="greedy", n=1, prompt_tokens=3)
response = ResponseRecord(response=json.loads(begun), messages=(("user", "6*7?"),), streamed=True)
writer = Store(Path(path), StoreSettings(path=path)).owned(owner).searches.begin(record, response)
print("begun", flush=True)
time.sleep(120)
"""


@pytest_asyncio.fixture
async def kept(matcher: AnswerMatcher, tmp_path: Path) -> AsyncIterator[World]:
    """A world of two keys with a store."""
    world = World(matcher, keys=[KEY, OTHER], store={"path": str(tmp_path)})
    yield world
    await until_idle(world)


@pytest.fixture
def elsewhere(kept: World, matcher: AnswerMatcher, tmp_path: Path) -> World:
    """Another controller of the same application."""
    return World(matcher, keys=[KEY, OTHER], store={"path": str(tmp_path)})


def client_of(world: World, key: str = KEY) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url="http://localhost/v1", api_key=key, http_client=world.client, max_retries=0, timeout=WAIT_S
    )


async def until_idle(world: World) -> None:
    """Waits until no search holds a slot: the end of one in the background is told a moment before."""
    async with asyncio.timeout(WAIT_S):
        while world.service.running:
            await asyncio.sleep(0.01)
    world.assert_idle()


async def ended(client: openai.AsyncOpenAI, response_id: str) -> Response:
    async with asyncio.timeout(WAIT_S):
        while (response := await client.responses.retrieve(response_id)).status in ("queued", "in_progress"):
            await asyncio.sleep(0.02)
    return response


async def events_of(client: openai.AsyncOpenAI, response_id: str, after: int = -1) -> list[Json]:
    """The events of a stored response, each of the type that its name and fields say."""
    async with asyncio.timeout(WAIT_S):
        stream = await client.responses.retrieve(response_id, stream=True, starting_after=after)
        return [checked(event.model_dump(exclude_unset=True)) async for event in stream]


def checked(event: Json) -> Json:
    assert EVENTS.validate_python(event).type == event["type"]
    return event


async def refusal(asking: Any, kind: type[openai.APIStatusError] = openai.BadRequestError) -> openai.APIStatusError:
    with pytest.raises(kind) as raised:
        await asking
    return raised.value


async def prompt_tokens(world: World, messages: list[Json]) -> int:
    """Prompt tokens of a chat, of which the fake encoder has one per letter and role."""
    client = client_of(world)
    completion = await client.chat.completions.create(**chat(messages=messages))
    assert completion.usage is not None
    return completion.usage.prompt_tokens


async def test_a_response_is_stored_unless_told_otherwise(kept: World, elsewhere: World) -> None:
    client, other_client = client_of(kept), client_of(elsewhere)
    response = await client.responses.create(**ASKED)
    assert response.store is True
    assert await other_client.responses.retrieve(response.id) == response
    chatted = await client.chat.completions.create(**chat(store=True))
    unstored = await client.responses.create(**ASKED, store=False)
    assert unstored.store is False
    names = ["resp_../x", "resp_", unstored.id, chatted.id, f"resp_{chatted.id.removeprefix('chatcmpl-')}"]
    for client_, name in ((client_of(kept, OTHER), response.id), *((client, name) for name in names)):
        for asking in (
            client_.responses.retrieve(name),
            client_.responses.delete(name),
            client_.responses.cancel(name),
            client_.responses.input_items.list(name),
            client_.responses.retrieve(name, stream=True),
        ):
            await refusal(asking, openai.NotFoundError)
    await other_client.responses.delete(response.id)
    await refusal(client.responses.retrieve(response.id), openai.NotFoundError)


async def test_responses_of_jobs_are_stored_on_request_only(kept: World) -> None:
    jobs = kept.client_of(store_owner(key_record(KEY)))
    async with jobs:
        for said, stored in (({}, False), ({"store": True}, True)):
            reply = await jobs.post("/v1/responses", {"model": "m", "input": "6*7?", "seed": 1, **said})
            assert reply["store"] is stored
        with pytest.raises(Refused, match="background must be false in a batch"):
            await jobs.post("/v1/responses", {"model": "m", "input": "6*7?", "background": True})


async def test_the_messages_of_the_input_are_listed(kept: World) -> None:
    client = client_of(kept)
    turns: Any = [{"role": role, "content": str(index)} for index, role in enumerate(("user", "assistant", "user"))]
    response = await client.responses.create(**{**ASKED, "input": turns}, instructions="Hm.")
    items = client.responses.input_items
    listed: Any = [item async for item in items.list(response.id, order="asc", limit=2)]
    assert [(item.role, item.content[0].text) for item in listed] == [("user", "0"), ("assistant", "1"), ("user", "2")]
    assert [item.id for item in (await items.list(response.id)).data] == [item.id for item in listed[::-1]]
    page = await items.list(response.id, after=listed[1].id, order="asc")
    assert ([item.id for item in page.data], page.has_more) == ([listed[2].id], False)


async def last_event_after(kept: World, act: Callable[[str], Awaitable[Any]]) -> Any:
    """The last event of a stream in the background on whose response ``act`` is called after the first event."""
    kept.generator.gate.clear()
    async with served(kept) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY) as streaming:
        stream = await streaming.responses.create(**ASKED, background=True, stream=True)
        first = await anext(aiter(stream))
        assert first.type == "response.created"
        await act(first.response.id)
        *_, last = [event async for event in stream]
    return last


class TestConversations:
    async def test_a_continued_response_knows_what_was_said(self, kept: World, elsewhere: World) -> None:
        client, other_client = client_of(kept), client_of(elsewhere)
        first = await client.responses.create(**ASKED, instructions="Be brief.")
        second = await other_client.responses.create(
            **{**ASKED, "input": "Sure?"}, previous_response_id=first.id, instructions="Be kind."
        )
        third = await client.responses.create(**{**ASKED, "input": "So?"}, previous_response_id=second.id, store=False)
        assert second.previous_response_id == first.id
        said = [
            {"role": "user", "content": "6*7?"},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "Sure?"},
        ]
        kind = {"role": "system", "content": "Be kind."}
        assert second.usage is not None
        assert third.usage is not None
        assert second.usage.input_tokens == await prompt_tokens(kept, [kind, *said])
        said += [{"role": "assistant", "content": second.output_text}, {"role": "user", "content": "So?"}]
        assert third.usage.input_tokens == await prompt_tokens(kept, said)
        completion = await client.chat.completions.create(**chat(messages=said))
        assert third.output_text == completion.choices[0].message.content

    async def test_a_response_that_cannot_be_continued_is_refused(
        self, kept: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = client_of(kept)

        async def code(name: str, key: str = KEY) -> str | None:
            error = await refusal(client_of(kept, key).responses.create(**ASKED, previous_response_id=name))
            assert error.param == "previous_response_id"
            return error.code

        long = {**ASKED, "input": f"6*7?{' ' * 60}"}
        chain = [(await client.responses.create(**long)).id]
        for _ in range(2):
            chain.append((await client.responses.create(**long, previous_response_id=chain[-1])).id)
        assert await code("resp_1") == "previous_response_not_found"
        assert await code(chain[0], OTHER) == "previous_response_not_found"
        with monkeypatch.context() as patch:
            patch.setattr(stored_responses, "MAX_TURNS", 2)
            assert await code(chain[2]) == "conversation_too_long"
            assert (await client.responses.create(**ASKED, previous_response_id=chain[1])).status == "completed"
        kept.live.change(
            kept.live.now.model_copy(update={"limits": kept.live.now.limits.model_copy(update={"body_bytes": 250})})
        )
        assert await code(chain[2]) == "conversation_too_long"
        kept.live.change(kept.config.controller)
        await client.responses.delete(chain[1])
        assert await code(chain[2]) == "previous_response_not_found"
        kept.generator.gate.clear()
        running = await client.responses.create(**ASKED, background=True)
        assert await code(running.id) == "previous_response_not_completed"
        await client.responses.cancel(running.id)
        assert await code(running.id) == "previous_response_not_completed"

    async def test_errors_name_the_input_or_the_previous_response(
        self, kept: World, matcher: AnswerMatcher, tmp_path: Path
    ) -> None:
        client = client_of(kept)
        turns: Any = [{"role": "system", "content": "Hm."}, {"role": "user", "content": "6*7?"}]
        first = await client.responses.create(**{**ASKED, "input": turns})
        follow = {"previous_response_id": first.id}
        blank: Any = [{"role": "user", "content": "a"}, {"role": "user", "content": " "}]
        assert (
            await refusal(client.responses.create(**{**ASKED, "input": blank}, **follow))
        ).param == "input.1.content"
        assert (await refusal(client.responses.create(**{**ASKED, "input": "x" * 600}, **follow))).param == "input"
        strict = World(
            matcher,
            keys=[KEY],
            store={"path": str(tmp_path)},
            prompt={"system": "Think.", "client_system": "refuse"},
        )
        error = await refusal(client_of(strict).responses.create(**ASKED, **follow))
        assert error.param == "previous_response_id"


class TestBackground:
    async def test_it_goes_on_without_its_client_and_is_polled_elsewhere(self, kept: World, elsewhere: World) -> None:
        client, other_client = client_of(kept), client_of(elsewhere)
        kept.generator.gate.clear()
        begun = await client.responses.create(**ASKED, background=True, metadata={"run": "7"})
        assert (begun.status, begun.background, begun.output) == ("in_progress", True, [])
        assert await other_client.responses.retrieve(begun.id) == begun
        assert kept.service.running == 1, "it holds its slot"
        kept.generator.gate.set()
        response = await ended(other_client, begun.id)
        plain = await client.responses.create(**ASKED)
        assert (response.status, response.output_text) == ("completed", plain.output_text)
        assert (response.usage, response.metadata) == (plain.usage, {"run": "7"})

    async def test_it_counts_for_its_keys_limits_until_it_ends(self, matcher: AnswerMatcher, tmp_path: Path) -> None:
        record = key_record(KEY, KeyLimits(places=1, tokens_per_minute=10))
        world = World(matcher, records=[record], store={"path": str(tmp_path)})
        client = client_of(world)
        world.generator.gate.clear()
        begun = await client.responses.create(**ASKED, background=True)
        refused = await refusal(client.responses.create(**ASKED), openai.RateLimitError)
        assert "limits.places" in str(refused)
        world.generator.gate.set()
        assert (await ended(client, begun.id)).status == "completed"
        await until_idle(world)
        refused = await refusal(client.responses.create(**ASKED), openai.RateLimitError)
        assert "tokens_per_minute" in str(refused)

    async def test_it_is_cancelled_from_elsewhere_once_or_twice(self, kept: World, elsewhere: World) -> None:
        client, other_client = client_of(kept), client_of(elsewhere)
        kept.generator.gate.clear()
        begun = await client.responses.create(**ASKED, background=True)
        for _ in range(2):
            assert (await other_client.responses.cancel(begun.id)).status == "cancelled"
        assert (await client.responses.retrieve(begun.id)).status == "cancelled"
        await until_idle(kept)
        kept.generator.gate.set()
        plain = await client.responses.create(**ASKED)
        await refusal(client.responses.cancel(plain.id))
        done = await client.responses.create(**ASKED, background=True)
        assert (await ended(client, done.id)).status == "completed"
        assert (await client.responses.cancel(done.id)).status == "completed"

    async def test_deleting_it_ends_it(self, kept: World, elsewhere: World) -> None:
        kept.generator.gate.clear()
        begun = await client_of(kept).responses.create(**ASKED, background=True)
        await client_of(elsewhere).responses.delete(begun.id)
        await until_idle(kept)

    async def test_a_controller_that_stops_gives_it_the_grace_and_then_an_error(self, kept: World) -> None:
        client = client_of(kept)
        kept.generator.gate.clear()
        begun = await client.responses.create(**ASKED, background=True)
        async with asyncio.timeout(WAIT_S):
            await kept.open_requests.close(0.1)
        response = await client.responses.retrieve(begun.id)
        assert response.status == "failed"
        assert response.error is not None
        assert (response.error.code, "stopping" in response.error.message) == ("server_error", True)

    async def test_it_has_a_deadline(self, matcher: AnswerMatcher, tmp_path: Path) -> None:
        world = World(matcher, keys=[KEY], store={"path": str(tmp_path)}, limits={"seconds": 0.2})
        client = client_of(world)
        world.generator.gate.clear()
        begun = await client.responses.create(**ASKED, background=True)
        response = await ended(client, begun.id)
        assert response.status == "failed"
        assert response.error is not None
        assert "deadline" in response.error.message
        await until_idle(world)

    async def test_it_counts_for_its_key_in_the_metrics(self, kept: World) -> None:
        told = asyncio.get_running_loop().create_future()

        async def work() -> None:
            told.set_result(CLIENT_KEY.get())

        access = StoreAccess(Store(Path("unused"), StoreSettings()), kept.live)
        CLIENT_KEY.set("1a2b3c4d")
        await access.later(work())
        assert told.result() == "1a2b3c4d"

    async def test_it_must_be_stored(self, kept: World) -> None:
        error = await refusal(client_of(kept).responses.create(**ASKED, background=True, store=False))
        assert error.param == "background"
        assert kept.generator.calls == 0

    async def test_one_whose_controller_died_has_failed(self, kept: World, tmp_path: Path) -> None:
        client = client_of(kept)
        name = new_id("")
        begun = (await client.responses.create(**ASKED)).to_dict() | {"id": f"resp_{name}", "status": "in_progress"}
        arguments = str(tmp_path), store_owner(key_record(KEY)), name, json.dumps({**begun, "output": []})
        other = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", OTHER_CONTROLLER, *arguments], stdout=subprocess.PIPE
        )
        assert other.stdout is not None
        try:
            assert await asyncio.to_thread(other.stdout.readline) == b"begun\n"
            assert (await client.responses.retrieve(f"resp_{name}")).status == "in_progress"
            following = asyncio.create_task(events_of(client, f"resp_{name}"))
            await asyncio.sleep(0.3)
        finally:
            other.kill()
            other.stdout.close()
            await asyncio.to_thread(other.wait, 10)
        *_, last = await following
        assert last["type"] == "response.failed"
        response = await client.responses.retrieve(f"resp_{name}")
        assert response.status == "failed"
        assert response.error is not None
        assert "the controller that ran this search was lost" in response.error.message


class TestStreams:
    async def test_a_stream_is_made_again_as_it_was(self, kept: World, elsewhere: World) -> None:
        client, other_client = client_of(kept), client_of(elsewhere)
        asked: Any = {**ASKED, "stream": True, "reasoning": {"summary": "auto"}}
        live = [event.model_dump(exclude_unset=True) async for event in await client.responses.create(**asked)]
        response_id = live[0]["response"]["id"]
        again = await events_of(other_client, response_id)
        assert again == live
        assert len(live) > 20
        for after in (0, 3, 7, len(live) - 2, len(live) - 1, 10_000):
            assert await events_of(other_client, response_id, after) == live[after + 1 :]
        stored = await other_client.responses.retrieve(response_id)
        assert stored.to_dict() == live[-1]["response"]

    async def test_a_stream_in_the_background_is_taken_up_elsewhere_after_a_cut(
        self, kept: World, elsewhere: World
    ) -> None:
        """Over sockets: the first connection is closed, and the search goes on."""
        kept.generator.gate.clear()
        asked: Any = {**ASKED, "background": True, "stream": True}
        async with served(kept) as here, served(elsewhere) as there:
            async with openai.AsyncOpenAI(base_url=f"{here}/v1", api_key=KEY, max_retries=0) as client:
                stream = await client.responses.create(**asked)
                first = await anext(aiter(stream))
                assert first.type == "response.created"
                await stream.close()
            async with openai.AsyncOpenAI(base_url=f"{there}/v1", api_key=KEY, max_retries=0) as client:
                following = asyncio.create_task(events_of(client, first.response.id, first.sequence_number))
                await asyncio.sleep(0.3)
                assert not following.done()
                kept.generator.gate.set()
                events = await following
                assert [event["sequence_number"] for event in events] == list(range(1, len(events) + 1))
                plain = await client.responses.create(**ASKED)
                final = Response.model_validate(events[-1]["response"])
                assert (final.status, final.output_text) == ("completed", plain.output_text)
                async with client.responses.stream(response_id=first.response.id, starting_after=4) as helper:
                    numbers = [event.sequence_number async for event in helper]
                    assert (await helper.get_final_response()).output_text == plain.output_text
                assert numbers == list(range(5, len(events) + 1))

    async def test_a_cancelled_stream_ends(self, kept: World) -> None:
        last = await last_event_after(kept, client_of(kept).responses.cancel)
        assert last.type == "response.failed"
        assert last.response.status == "cancelled"

    @pytest.mark.parametrize("stored_bytes", [1, 2000])
    async def test_events_past_the_cap_are_missing_and_the_others_keep_their_numbers(
        self, matcher: AnswerMatcher, tmp_path: Path, stored_bytes: int
    ) -> None:
        world = World(matcher, keys=[KEY], store={"path": str(tmp_path), "search_bytes_max": stored_bytes})
        client = client_of(world)
        live = [
            event.model_dump(exclude_unset=True) async for event in await client.responses.create(**ASKED, stream=True)
        ]
        again = await events_of(client, live[0]["response"]["id"])
        assert len(again) < len(live)
        assert all(event == live[event["sequence_number"]] for event in again)
        assert again[-1] == live[-1]

    async def test_a_response_that_was_not_streamed_has_no_stream(self, kept: World) -> None:
        client = client_of(kept)
        response = await client.responses.create(**ASKED)
        assert (await refusal(client.responses.retrieve(response.id, stream=True))).param == "stream"

    async def test_the_stream_of_a_deleted_response_ends_with_an_error(self, kept: World) -> None:
        last = await last_event_after(kept, client_of(kept).responses.delete)
        assert last.type == "error"
        assert "no such" in last.message


class TestSummaries:
    async def test_the_search_is_told_in_short(self, kept: World) -> None:
        client = client_of(kept)
        asked: Any = {**ASKED, "extra_body": {"seed": 1, "search": {"strategy": "best_of_n", "n": 8}}}

        async def summary(kind: Any) -> str:
            response = await client.responses.create(**asked, reasoning={"summary": kind})
            reasoning, message = response.output
            assert (reasoning.type, message.type) == ("reasoning", "message")
            assert response.reasoning is not None
            assert response.reasoning.summary == kind
            [part] = reasoning.summary
            return part.text

        concise, detailed = await summary("concise"), await summary("detailed")
        assert await summary("auto") != concise
        block: Json = (await client.responses.create(**asked)).to_dict()["search"]
        winner, *others = block["answers"]
        assert f"n = 8) wrote {block['written_steps']} candidate steps on 3 levels; " in concise
        assert f"The answer is {winner['answer']} ({winner['vote']:.0%} of the weight)." in concise
        assert detailed.startswith(concise)
        assert f"{len(others)} other answer" in detailed
        assert f"{block['generated_tokens']} tokens were generated" in detailed
        assert f"; one sample: {block['sample_tokens']:,.0f} and {block['prompt_tokens']:,}" in detailed

    async def test_a_search_without_answer_is_told_too(self, kept: World) -> None:
        cut: Any = {**ASKED, "extra_body": {"seed": 1, "search": {"max_depth": 1}}}
        response = await client_of(kept).responses.create(**cut, reasoning={"summary": "concise"})
        reasoning, _ = response.output
        assert (response.status, reasoning.type) == ("incomplete", "reasoning")
        assert "on 1 level; " in reasoning.summary[0].text
        assert reasoning.summary[0].text.endswith("No path has an answer to vote on.")

    async def test_a_stream_has_the_events_of_the_summary(self, kept: World) -> None:
        client = client_of(kept)
        async with client.responses.stream(**ASKED, reasoning={"summary": "concise"}) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        [delta] = [event for event in events if event.type == "response.reasoning_summary_text.delta"]
        reasoning, _ = final.output
        assert reasoning.type == "reasoning"
        assert reasoning.content
        assert [part.text for part in reasoning.summary] == [delta.delta]


async def test_without_a_store_the_routes_say_so(world: World) -> None:
    client = client_of(world)
    response = await client.responses.create(**ASKED)
    assert response.store is False
    error = await refusal(client.responses.retrieve(response.id), openai.NotFoundError)
    assert error.code == "store_disabled"
    for fields in ({"background": True}, {"previous_response_id": response.id}):
        error = await refusal(client.responses.create(**ASKED, **fields))
        assert (error.param, error.code) == (next(iter(fields)), "store_disabled")


async def test_a_stored_response_expires(kept: World, tmp_path: Path) -> None:
    client = client_of(kept)
    response = await client.responses.create(**ASKED)
    [end] = found(tmp_path, "owners/*/searches/*/end.json")
    told = json.loads(end.read_text())
    end.write_text(json.dumps({**told, "ended": told["ended"] - kept.config.controller.store.keep_s}))
    await refusal(client.responses.retrieve(response.id), openai.NotFoundError)
