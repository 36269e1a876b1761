"""/v1/responses: every reply and event is a type of the official client, and the answer is that of a chat."""

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from http_world import World, chat, generator_is_dead, served
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from deployments.http.responses import reply as response_reply
from search.errors import ScorerError

RESPONSES = "/v1/responses"
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
USER = {"role": "user", "content": "6*7?"}


def asking(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": "6*7?", "seed": 1, **fields}


async def posted(world: World, **fields: Any) -> dict[str, Any]:
    async with world.client as client:
        reply = await client.post(RESPONSES, json=asking(**fields))
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    Response.model_validate(body)
    return body


async def refused(world: World, **fields: Any) -> dict[str, Any]:
    async with world.client as client:
        reply = await client.post(RESPONSES, json=asking(**fields))
    assert reply.status_code == 400, reply.text
    return reply.json()["error"]  # type: ignore[no-any-return]


async def streamed(world: World, **fields: Any) -> list[dict[str, Any]]:
    """The events, each parsed as the type that its name and fields say."""
    async with world.client as client:
        reply = await client.post(RESPONSES, json=asking(stream=True, **fields))
    events = []
    for block in reply.text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert EVENTS.validate_python(event).type == event["type"]
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def text(response: dict[str, Any]) -> str:
    return Response.model_validate(response).output_text


async def chatted(world: World, **fields: Any) -> dict[str, Any]:
    async with world.client as client:
        return (await client.post("/v1/chat/completions", json=chat(**fields))).json()  # type: ignore[no-any-return]


async def test_a_response_equals_the_chat_of_the_same_seed(world: World) -> None:
    response, completion = await posted(world), await chatted(world)
    assert text(response) == completion["choices"][0]["message"]["content"]
    assert (response["status"], response["store"], response["incomplete_details"]) == ("completed", False, None)
    usage, other = response["usage"], completion["usage"]
    assert usage["input_tokens"] == other["prompt_tokens"]
    assert usage["output_tokens"] == other["completion_tokens"]
    assert usage["output_tokens_details"] == other["completion_tokens_details"]
    assert response["search"]["answer"] == completion["search"]["answer"]


async def test_a_streamed_response_is_the_same_and_includes_scored_steps(world: World) -> None:
    plain = await posted(world)
    events = await streamed(world)
    kinds = [event["type"].removeprefix("response.") for event in events]
    steps = kinds.count("reasoning_text.delta")
    assert steps == plain["search"]["scored_steps"] + plain["search"]["repeated_steps"]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["reasoning_text.delta"] * steps,
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    final = events[-1]["response"]
    assert text(final) == text(plain)
    assert final["usage"] == plain["usage"]
    deltas = [event for event in events if event["type"] == "response.reasoning_text.delta"]
    assert final["output"][0]["content"][0]["text"] == "".join(event["delta"] for event in deltas)
    assert deltas[0]["search_event"]["type"] == "step_scored"
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == final["output"]


async def test_the_reasoning_item_is_truncated_but_its_events_are_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await streamed(world)
    monkeypatch.setattr(response_reply, "MAX_REASONING_CHARS", 50)
    events = await streamed(world)
    said = [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"]
    assert len(events) == len(whole)
    kept = events[-1]["response"]["output"][0]["content"][0]["text"]
    assert 0 < len(kept) <= 50 < len("".join(said))
    assert "".join(said).startswith(kept)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_truncated_response_is_incomplete(world: World, stream: bool) -> None:
    cut: dict[str, Any] = {"search": {"max_depth": 1}}
    response = (await streamed(world, **cut))[-1]["response"] if stream else await posted(world, **cut)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][-1]["status"] == "incomplete"


async def test_an_error_in_mid_stream_is_a_failed_response(make_world: Callable[..., World]) -> None:
    world = make_world(fallback="fail")
    world.scorer.error = ScorerError("no reply")
    *_, last = await streamed(world)
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "server_error"
    world.generator.error = generator_is_dead()
    async with world.client as client:
        assert (await client.post(RESPONSES, json=asking())).status_code == 503
    world.assert_idle()


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        ({"instructions": "Be brief."}, [{"role": "system", "content": "Be brief."}, USER]),
        ({"instructions": ""}, [USER]),
        ({"input": [{"role": "developer", "content": "Hm."}, USER]}, [{"role": "system", "content": "Hm."}, USER]),
        ({"input": [{**USER, "type": "message", "content": [{"type": "input_text", "text": "6*7?"}]}]}, [USER]),
        (
            {"input": [{**USER, "content": [{"type": "input_text", "text": part} for part in ("6", "*7?")]}]},
            [{**USER, "content": "6\n*7?"}],
        ),
        ({"input": [{"role": "developer", "content": "6*7?"}]}, [USER]),
        ({"input": [USER, {"role": "developer", "content": "Hm."}]}, [USER, {"role": "system", "content": "Hm."}]),
        (
            {"input": [{**USER, "content": ""}, {"role": "assistant", "content": "42"}, USER]},
            [{**USER, "content": ""}, {"role": "assistant", "content": "42"}, USER],
        ),
    ],
)
async def test_input_and_instructions_are_messages(
    world: World, fields: dict[str, Any], same: list[dict[str, Any]]
) -> None:
    response, completion = await posted(world, **fields), await chatted(world, messages=same)
    assert response["usage"]["input_tokens"] == completion["usage"]["prompt_tokens"]
    assert text(response) == completion["choices"][0]["message"]["content"]


async def test_the_output_of_a_response_is_accepted_as_input(world: World) -> None:
    output = (await streamed(world))[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message"]
    again = await posted(world, input=[USER, *output, {"role": "user", "content": "Sure?"}])
    told = [USER, {"role": "assistant", "content": text({**again, "output": output})}]
    completion = await chatted(world, messages=[*told, {"role": "user", "content": "Sure?"}])
    assert again["usage"]["input_tokens"] == completion["usage"]["prompt_tokens"]


async def test_effort_limit_and_sampling_fields_are_used(world: World) -> None:
    response = await posted(world, reasoning={"effort": "high", "summary": "auto"}, top_k=5, max_output_tokens=5000)
    assert response["search"]["n"] == 64
    assert response["reasoning"]["effort"] == "high"
    assert {each.top_k for each in world.generator.samplings} == {5}
    less = await posted(world, reasoning={"effort": "high"}, max_output_tokens=100)
    assert less["usage"]["output_tokens"] <= 100 < response["usage"]["output_tokens"]


async def test_logprobs_are_returned_if_included(world: World) -> None:
    plain = await posted(world)
    told = await posted(world, include=["message.output_text.logprobs", "reasoning.encrypted_content"])
    assert plain["output"][0]["content"][0]["logprobs"] == []
    assert {token["logprob"] for token in told["output"][0]["content"][0]["logprobs"]} == {-0.25}
    events = await streamed(world, include=["message.output_text.logprobs"])
    [delta] = [event for event in events if event["type"] == "response.output_text.delta"]
    assert delta["logprobs"] == told["output"][0]["content"][0]["logprobs"]


async def test_fields_that_clients_always_send_are_accepted(world: World) -> None:
    usual = {
        "background": False,
        "include": ["reasoning.encrypted_content", "web_search_call.action.sources"],
        "max_tool_calls": 3,
        "metadata": {"run": "7"},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": "k",
        "service_tier": "auto",
        "store": True,
        "stream_options": {"include_obfuscation": False},
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "top_logprobs": 0,
        "tool_choice": "auto",
        "tools": [],
        "truncation": "disabled",
        "user": "me",
    }
    response = await posted(world, **usual)
    assert response["metadata"] == {"run": "7"}
    assert response["store"] is False, "nothing is stored, and it says so"
    assert response["search"]["notes"] == ["store: this server stores nothing"]


async def test_unknown_fields_are_ignored_wherever_they_are_and_named_in_the_notes(world: World) -> None:
    output = [{"type": "output_text", "text": "42", "cache_control": {"type": "ephemeral"}}]
    conversation = [
        {**USER, "agent": "cli"},
        {"type": "reasoning", "summary": [], "format": "unknown"},
        {"type": "message", "role": "assistant", "content": output, "provider_data": {}},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": []},
        USER,
    ]
    response = await posted(world, input=conversation, weather="fine", nothing=None)
    [note] = response["search"]["notes"]
    assert note == (
        "unknown fields have no effect here: input.agent, input.content.cache_control, input.format, weather"
    )
    assistant = [{"role": "assistant", "content": text} for text in ("42", "", "")]
    completion = await chatted(world, messages=[USER, *assistant, USER])
    assert response["usage"]["input_tokens"] == completion["usage"]["prompt_tokens"]
    assert text(response) == completion["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"background": True, "store": False}, "background"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"truncation": "auto"}, "truncation"),
        ({"text": {"format": {"type": "json"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"include": ["message.output_text.logprob"]}, "include.0"),
        ({"reasoning": {"effort": "minimal"}}, "reasoning.effort"),
        ({"reasoning": {"effort": "extreme"}}, "reasoning.effort"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**12}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"search": {"n": 0}}, "search.n"),
        ({"max_ouput_tokens": 5}, "max_ouput_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": [USER]}, "messages"),
        ({"reasoning": {"efort": "low"}}, "reasoning.efort"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"n": 2}, "n"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"input": [{**USER, "content": None}]}, "input.0.content"),
        ({"input": [{**USER, "content": []}]}, "input.0.content"),
        ({"input": [USER, {"role": "system", "content": None}]}, "input.1.content"),
        ({"input": ""}, "input"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": "x" * 600}, "input"),
        ({"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]}, "input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role"),
        ({"input": [USER, {"role": "assistant", "content": "42"}]}, "input.1.role"),
        ({"input": [{"type": "reasoning", "summary": []}, {**USER, "content": " "}]}, "input.1.content"),
        ({"instructions": "Hm.", "input": [{**USER, "content": " "}]}, "input.0.content"),
        ({"input": [{**USER, "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0.type"),
    ],
)
async def test_errors_name_the_field_as_the_client_wrote_it(world: World, fields: dict[str, Any], param: str) -> None:
    error = await refused(world, **fields)
    assert error["param"] == param, error
    assert world.generator.calls == 0


async def test_previous_response_id_is_refused_with_the_reason(world: World) -> None:
    error = await refused(world, previous_response_id="resp_1")
    assert error["code"] == "store_disabled"
    assert "send the conversation in input" in error["message"]


async def test_a_reference_to_an_item_is_refused_with_the_reason(world: World) -> None:
    """The Vercel AI SDK sends one for each earlier message, unless its client sets ``store`` to false."""
    error = await refused(world, input=[USER, {"type": "item_reference", "id": "msg_1"}, USER])
    assert error["param"] == "input.1.type"
    assert "send the item itself" in error["message"]


async def test_instructions_may_be_refused_as_a_system_message(make_world: Callable[..., World]) -> None:
    world = make_world(prompt={"system": "Think.", "client_system": "refuse"})
    assert (await refused(world, instructions="Be brief."))["param"] == "instructions"


async def test_the_official_client_reads_plain_and_streamed_responses(world: World) -> None:
    asked: Any = {"model": "m", "input": "6*7?", "extra_body": {"seed": 1}}
    async with served(world) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        plain = await client.responses.create(**asked, reasoning={"effort": "low"})
        async with client.responses.stream(**asked, reasoning={"effort": "low"}) as stream:
            deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
        assert "".join(deltas) == final.output_text == plain.output_text
        assert final.usage == plain.usage
        with pytest.raises(openai.BadRequestError) as raised:
            await client.responses.create(**asked, previous_response_id=plain.id)
        assert raised.value.param == "previous_response_id"
