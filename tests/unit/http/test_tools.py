"""Requests with tools: what the model is told, and the calls in replies."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from http_world import World, chat
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI
from pydantic import ValidationError

from deployments.config import AppConfig
from deployments.engines.tool_support import ToolSupport
from deployments.http.chat.conversation import question
from deployments.http.chat.schema import ChatRequest
from deployments.http.replies import pieces

Json = dict[str, Any]
MakeWorld = Callable[..., World]
CHAT = "/v1/chat/completions"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str = "weather", **fields: Any) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": CITY, **fields}}


def call(name: str = "weather", **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def called(call_id: str = "c1", name: str = "weather", arguments: str = '{"city": "Rome"}', **fields: Any) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **fields}


NAMED = {"type": "function", "function": {"name": "f"}}
USER = {"role": "user", "content": "How warm is it in Rome?"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [called()]}
CALLED_AGAIN = {**CALLED, "tool_calls": [called("c2", "time", "{}")]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "21"}
TWO_CALLS = {**CALLED, "tool_calls": [called(), called("c2", "time", "{}")]}
SECOND_RESULT = {**RESULT, "tool_call_id": "c2", "content": "noon"}


async def reply(world: World, **fields: Any) -> Json:
    response = await world.client.post(CHAT, json=chat(**fields))
    assert response.status_code == 200, response.text
    found: Json = response.json()
    return found


async def refusal(world: World, **fields: Any) -> tuple[int, str | None, str]:
    response = await world.client.post(CHAT, json=chat(**fields))
    error = response.json().get("error", {})
    return response.status_code, error.get("param"), error.get("message", "")


async def test_a_call_is_the_answer(world: World) -> None:
    world.generator.texts = [f"Let me see. {call(city='Rome')}{call('time')}"]
    found = await reply(world, tools=[tool(), tool("time", description="Now.")])
    [choice] = found["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see. "
    first, second = choice["message"]["tool_calls"]
    assert first["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert second["function"] == {"name": "time", "arguments": "{}"}
    assert first["type"] == second["type"] == "function"
    assert first["id"] != second["id"]
    assert choice["answer"] == found["search"]["answer"]
    assert json.loads(choice["answer"])[0] == {"name": "time", "arguments": {}}
    assert found["search"]["n"] == 1
    assert world.generator.calls == 1


async def test_without_a_call_the_text_is_the_answer(world: World) -> None:
    for text, answer, reason in (
        ("It is \\boxed{21}.", "21", "stop"),
        ("Warm.", None, "stop"),
        ("War…", None, "length"),
    ):
        world.generator.texts = [text]
        [choice] = (await reply(world, tools=[tool()]))["choices"]
        assert choice["message"]["content"] == text.removesuffix("…")
        assert "tool_calls" not in choice["message"]
        assert (choice["answer"], choice["finish_reason"]) == (answer, reason)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (f"<think>\nRome? {call(city='Rome')}\n</think>\n\n{call(city='Oslo')}", '{"city": "Oslo"}'),
        (call(city="<think>Rome</think>"), '{"city": "<think>Rome</think>"}'),
        (f"<think>a</think>{call(city='<think>Rome')}", '{"city": "<think>Rome"}'),
    ],
)
async def test_a_call_is_read_behind_the_thought(world: World, text: str, arguments: str) -> None:
    world.generator.texts = [text]
    [made] = (await reply(world, tools=[tool()]))["choices"][0]["message"]["tool_calls"]
    assert made["function"]["arguments"] == arguments


async def test_ids_follow_from_seed_and_prompt(world: World) -> None:
    world.generator.texts = [call(city="Rome")]

    async def ids(**fields: Any) -> list[str]:
        message = (await reply(world, tools=[tool()], **fields))["choices"][0]["message"]
        return [each["id"] for each in message["tool_calls"]]

    assert await ids(seed=1) == await ids(seed=1) != await ids(seed=2)
    assert await ids(seed=1) != await ids(seed=1, messages=[USER, CALLED, RESULT]), "each turn has ids of its own"


async def test_a_conversation_goes_on_behind_a_result(world: World) -> None:
    world.generator.texts = ["It is \\boxed{21}."]
    found = await reply(world, messages=[USER, CALLED, RESULT], tools=[tool(strict=True)])
    assert found["choices"][0]["message"]["content"] == "It is \\boxed{21}."
    turns = json.loads(world.generator.prompts[-1])
    assert turns[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Rome"}}
    assert turns[2] == {"role": "tool", "content": "21", "tool_call_id": "c1", "name": "weather"}
    assert turns[3] == tool()
    # Without tools any strategy answers.
    assert (await reply(world, messages=[USER, CALLED, RESULT]))["search"]["strategy"] == "beam_search"
    assert world.scorer.questions == {'How warm is it in Rome?\n\nweather({"city": "Rome"}) = 21'}


async def test_of_equal_calls_the_vote_is_one(make_world: MakeWorld) -> None:
    world = make_world(tool_calls="vote", exclude_arguments=["why"])
    world.generator.texts = [
        call(city="Oslo"), "It is \\boxed{21}.", call(city="Rome", why="a"), "Warm.",
        '<tool_call>{"arguments": {"why": 2, "city": "Rome"}, "name": "weather"}</tool_call>', "So \\boxed{21.0}.",
        call(city="Rome"), "Warm.",
    ]  # fmt: skip
    found = await reply(world, tools=[tool()], search={"strategy": "self_consistency", "n": 8})
    sizes = [(each["answer"], each["paths"]) for each in found["search"]["answers"]]
    assert sizes[0] == ('[{"name":"weather","arguments":{"city":"Rome"}}]', 3)
    assert sorted(size for _, size in sizes) == [1, 1, 2, 3], "a text that is written twice is one path"
    assert found["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome", "why": "a"}'
    assert (await reply(world, tools=[tool()]))["search"]["n"] == 4, "that of the default search"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [tool("a b")]}, "tools.0.function.name"),
        ({"tools": [tool("a" * 65)]}, "tools.0.function.name"),
        ({"tools": [tool(), tool()]}, "tools.1.function.name"),
        ({"tools": [tool(parameters=[])]}, "tools.0.function.parameters"),
        ({"tools": [tool(f"f{n}") for n in range(129)]}, "tools"),
        ({"tools": [tool()], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        ({"tools": [tool()], "tool_choice": NAMED}, "tool_choice.function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [tool()], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"tools": [tool()], "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [tool()], "search": {"strategy": "beam_search"}}, "tools"),
        ({"tools": [tool()], "model": "m:beam-4"}, "tools"),
        ({"tools": [tool(parameters={"properties": {"x": {"pattern": "("}}})], "tool_choice": "required"}, None),
        ({"messages": [USER, {**USER, "tool_calls": [called()]}]}, "messages.1.tool_calls"),
        ({"messages": [USER, {**USER, "tool_call_id": "c1"}]}, "messages.1.tool_call_id"),
        ({"messages": [USER, RESULT]}, "messages.1.tool_call_id"),
        ({"messages": [USER, CALLED, {"role": "tool", "content": "1"}]}, "messages.2.tool_call_id"),
        ({"messages": [USER, CALLED, {**RESULT, "tool_call_id": "c2"}]}, "messages.2.tool_call_id"),
        ({"messages": [USER, {"role": "assistant"}, USER]}, "messages.1.content"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages.1.tool_calls.0.function"),
        ({"messages": [USER, {**CALLED, "tool_calls": [called(type="custom")]}]}, "messages.1.tool_calls.0.type"),
        ({"messages": [USER, {**CALLED, "tool_calls": False}]}, "messages.1.tool_calls"),
        ({"messages": [USER, {**CALLED, "tool_calls": [called(), called()]}, RESULT]}, "messages.1.tool_calls.1.id"),
        ({"messages": [USER, {"role": "function", "name": "f", "content": "1"}]}, "messages.1.role"),
    ],
)  # fmt: skip
async def test_what_cannot_be_is_refused_with_its_path(world: World, fields: Json, param: str | None) -> None:
    status, found, message = await refusal(world, **fields)
    assert status == 400
    if param is None:
        assert str(found).startswith("tools.0.function.parameters")
    else:
        assert found == param
        assert param in message


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": None, "tool_choice": "none"},
        {"tools": [tool()], "tool_choice": "none"},
        {"tools": [tool(parameters=None, description=None, strict=None)]},
        {"tools": [tool(parameters={}, strict=True)], "parallel_tool_calls": True},
        {"tools": [tool(parameters={**CITY, "additionalProperties": False, "$schema": "x"})], "tool_choice": "auto"},
        {"messages": [USER, {"role": "assistant", "tool_calls": [called(index=0)]}, RESULT]},
        {"messages": [USER, {**CALLED, "content": ""}, {**RESULT, "name": "weather"}]},
        {"messages": [USER, CALLED, {**RESULT, "content": [{"type": "text", "text": "21"}]}]},
        {"messages": [USER, {**CALLED, "tool_calls": [called(arguments="{broken")]}, RESULT]},
        {"messages": [USER, {**CALLED, "tool_calls": [called(arguments="")]}, {**RESULT, "content": ""}]},
        {"messages": [USER, TWO_CALLS, SECOND_RESULT, RESULT]},
        {"messages": [USER, TWO_CALLS, SECOND_RESULT]},
        {"messages": [USER, CALLED, RESULT, RESULT, USER, RESULT]},
        {"tools": [tool()], "response_format": {"type": "text"}, "max_completion_tokens": 300},
        {"tools": [tool()], "search": {"strategy": "best_of_n", "n": 2}},
    ],
)
async def test_what_clients_send_is_accepted(world: World, fields: Json) -> None:
    assert (await reply(world, **fields))["choices"][0]["finish_reason"] == "stop"


async def test_three_dozen_tools_as_pydantic_writes_them_are_accepted(make_world: MakeWorld) -> None:
    """As Open WebUI sends them with every question."""
    world = make_world(max_model_len=65536)
    properties = {
        "query": {"description": "What to look for.", "type": "string"},
        "count": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": 5, "title": "Count"},
        "ids": {"anyOf": [{"items": {"type": "string"}, "type": "array"}, {"type": "null"}], "default": None},
        "extra": {"additionalProperties": True, "type": "object"},
        "deep": {"default": False, "type": "boolean"},
    }
    parameters = {"properties": properties, "required": ["query"], "type": "object"}
    tools = [tool(f"search_{n}", description="Searches.", parameters=parameters) for n in range(36)]
    world.generator.texts = ["".join(call(f"search_{n}", query="x") for n in (0, 35))]
    message = (await reply(world, tools=tools, search={}))["choices"][0]["message"]
    assert [each["function"]["name"] for each in message["tool_calls"]] == ["search_0", "search_35"]
    world.generator.texts = ['[{"name": "search_35", "parameters": {"query": "x"}}]']
    [choice] = (await reply(world, tools=tools, tool_choice="required"))["choices"]
    assert choice["finish_reason"] == "tool_calls"


async def test_max_completion_tokens_is_the_length_of_the_answer(world: World) -> None:
    request = ChatRequest.parse(chat(tools=[tool()], max_completion_tokens=250))
    strategy = world.jobs.search(request).settings
    assert (strategy.max_path_tokens, strategy.budget.tokens) == (250, 250)


async def test_without_parallel_calls_the_first_counts(world: World) -> None:
    world.generator.texts = [call(city="Rome") + call(city="Oslo")]
    message = (await reply(world, tools=[tool()], parallel_tool_calls=False))["choices"][0]["message"]
    assert [each["function"]["arguments"] for each in message["tool_calls"]] == ['{"city": "Rome"}']
    assert message["content"] is None


async def test_with_none_the_model_is_told_of_no_tools(world: World) -> None:
    found = await reply(world, tools=[tool()], tool_choice="none")
    assert found["search"]["strategy"] == "beam_search"
    assert "weather" not in world.generator.prompts[0]


async def test_a_call_that_must_be_is_held_to_its_schema(world: World) -> None:
    tree = {"properties": {"x": {"$ref": "#/$defs/T"}}, "$defs": {"T": {"type": "null"}}}
    tools = [tool(), tool("grow", parameters=tree), tool("now", parameters=None)]
    world.generator.texts = ['[{"name": "weather", "parameters": {"city": "Rome"}}, {"name": "now", "parameters": {}}]']
    [choice] = (await reply(world, tools=tools, tool_choice="required"))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert [each["function"]["arguments"] for each in choice["message"]["tool_calls"]] == ['{"city": "Rome"}', "{}"]
    schema = json.loads(world.generator.schemas[-1])
    assert "maxItems" not in schema
    assert [each["properties"]["name"]["enum"] for each in schema["items"]["anyOf"]] == [["weather"], ["grow"], ["now"]]
    assert schema["$defs"].keys() == {
        schema["items"]["anyOf"][1]["properties"]["parameters"]["properties"]["x"]["$ref"][8:]
    }

    await reply(world, tools=tools, tool_choice="required", parallel_tool_calls=False)
    assert json.loads(world.generator.schemas[-1])["maxItems"] == 1

    world.generator.texts = ['{"city": "Rome"}']
    named = {"type": "function", "function": {"name": "weather"}}
    [choice] = (await reply(world, tools=tools, tool_choice=named))["choices"]
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert json.loads(world.generator.schemas[-1])["properties"] == CITY["properties"]

    world.generator.texts = ['{"city": "Ro…']
    [choice] = (await reply(world, tools=tools, tool_choice=named))["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", '{"city": "Ro')


async def test_the_operator_may_refuse_tools(make_world: MakeWorld) -> None:
    world = make_world(tool_calls="refuse")
    status, param, message = await refusal(world, tools=[tool()])
    assert (status, param) == (400, "tools")
    assert "tools is not supported" in message
    assert (await reply(world, tools=[]))["choices"]
    with pytest.raises(ValidationError):
        AppConfig.model_validate({"controller": {"tool_calls": "beam"}})


async def test_what_the_template_leaves_out_is_refused(world: World) -> None:
    world.encoder.tool_support = ToolSupport(tools=False, calls=False, results=False)
    assert (await refusal(world, tools=[tool()]))[1] == "tools"
    assert (await refusal(world, messages=[USER, CALLED, RESULT]))[1] == "messages.1.tool_calls"
    world.encoder.tool_support = ToolSupport(tools=False, calls=True, results=False)
    assert (await refusal(world, messages=[USER, CALLED, RESULT]))[1] == "messages.2.role"


async def test_without_a_parser_only_calls_that_must_be_are_read(make_world: MakeWorld) -> None:
    world = make_world()
    world.jobs._calls = None
    status, param, message = await refusal(world, tools=[tool()])
    assert (status, param) == (400, "tools")
    assert "generator.tool_parser" in message
    world.generator.texts = ['[{"name": "weather", "parameters": {"city": "Rome"}}]']
    assert (await reply(world, tools=[tool()], tool_choice="required"))["choices"][0]["finish_reason"] == "tool_calls"


async def streamed(world: World, **fields: Any) -> list[Json]:
    response = await world.client.post(CHAT, json=chat(stream=True, **fields))
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("said", ["", "Let me see. "])
async def test_a_streamed_call_joins_to_the_plain_one(world: World, said: str) -> None:
    long = "x" * 700
    world.generator.texts = [f"{said}{call(city=long)}{call('time')}"]
    fields = {"tools": [tool(), tool("time")]}
    message = (await reply(world, **fields))["choices"][0]["message"]
    chunks = [chunk["choices"][0] for chunk in await streamed(world, **fields)]
    assert chunks[-1]["finish_reason"] == "tool_calls"
    assert "".join(each["delta"].get("content") or "" for each in chunks) == (message["content"] or "")
    assert not any(each["delta"].get("reasoning_content") for each in chunks), "agents send it back"
    parts = [part for each in chunks for part in each["delta"].get("tool_calls", ())]
    whole: dict[int, Json] = {}
    for part in parts:
        if "id" in part:
            assert part["index"] not in whole
            whole[part["index"]] = {"id": part["id"], "type": part["type"], "function": dict(part["function"])}
        else:
            whole[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    assert list(whole.values()) == message["tool_calls"]
    assert len(parts) == 6


@given(st.text(max_size=2000))
@settings(deadline=None)
def test_pieces_of_arguments_join_to_the_whole(arguments: str) -> None:
    assert "".join(pieces(arguments)) == arguments


@pytest.mark.parametrize(
    ("messages", "asked"),
    [
        ([USER, CALLED, RESULT], 'How warm is it in Rome?\n\nweather({"city": "Rome"}) = 21'),
        ([CALLED, RESULT], 'weather({"city": "Rome"}) = 21'),
        ([USER, CALLED, RESULT, {"role": "assistant", "content": "21"}, {**USER, "content": "And Oslo?"}], "And Oslo?"),
        (
            [USER, CALLED, RESULT, CALLED_AGAIN, {**RESULT, "tool_call_id": "c2"}],
            'How warm is it in Rome?\n\nweather({"city": "Rome"}) = 21\n\ntime({}) = 21',
        ),
        (
            [USER, TWO_CALLS, SECOND_RESULT, RESULT],
            'How warm is it in Rome?\n\ntime({}) = noon\n\nweather({"city": "Rome"}) = 21',
        ),
        (
            [USER, CALLED, RESULT, {**CALLED, "tool_calls": [called(arguments='{"city": "Oslo"}')]}, RESULT],
            'How warm is it in Rome?\n\nweather({"city": "Rome"}) = 21\n\nweather({"city": "Oslo"}) = 21',
        ),
    ],
)  # fmt: skip
def test_the_question_is_the_users_with_what_was_learned_since(messages: list[Json], asked: str) -> None:
    request = ChatRequest.parse(chat(messages=messages))
    assert question(request.conversation, conversation=False) == asked


def test_a_whole_conversation_has_its_calls() -> None:
    request = ChatRequest.parse(chat(messages=[USER, CALLED, RESULT]))
    said = (
        'User: How warm is it in Rome?\n\nAssistant: weather({"city": "Rome"})\n\nTool: weather({"city": "Rome"}) = 21'
    )
    assert question(request.conversation, conversation=True) == said


async def test_a_kept_search_has_the_calls_and_the_conversation(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world(store={"path": str(tmp_path)}, tool_calls="vote")
    world.generator.texts = [call(city="Rome"), call(city="Oslo"), call(city="Rome"), "Warm."]
    found = await reply(world, messages=[USER, CALLED, RESULT], tools=[tool()], store=True)
    kept = (await world.client.get(f"/v1/searches/{found['search']['search_id']}")).json()
    assert kept["reply"]["choices"] == found["choices"]
    assert found["choices"][0]["finish_reason"] == "tool_calls"
    assert kept["question"] == 'How warm is it in Rome?\n\nweather({"city": "Rome"}) = 21'


# The Responses API.

FUNCTION = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}


def openai(world: World) -> AsyncOpenAI:
    return AsyncOpenAI(api_key="k", base_url="http://localhost/v1", http_client=world.client, max_retries=0)


async def test_a_response_may_be_a_call(make_world: MakeWorld) -> None:
    world = make_world(max_model_len=4096)
    world.generator.texts = [f"Let me see. {call(city='Rome' * 100)}"]
    client = openai(world)
    fields: Json = {"model": "m", "input": "How warm?", "tools": [FUNCTION], "extra_body": {"seed": 1}}
    response = await client.responses.create(**fields)
    message, made = response.output
    assert message.content[0].text == "Let me see. "
    assert (made.type, made.name, made.status) == ("function_call", "weather", "completed")
    assert json.loads(made.arguments) == {"city": "Rome" * 100}
    assert [each.name for each in response.tools] == ["weather"]

    arguments, kinds = "", []
    async for event in await client.responses.create(**fields, stream=True):
        kinds.append(event.type)
        if event.type == "response.function_call_arguments.delta":
            arguments += event.delta
        if event.type == "response.completed":
            last = event.response
    assert arguments == made.arguments
    assert kinds.count("response.function_call_arguments.delta") == 2
    assert kinds.count("response.function_call_arguments.done") == 1
    assert last.output[-1].arguments == arguments

    items = [
        {"role": "user", "content": "How warm?"},
        *(each.model_dump(exclude_none=True) for each in response.output),
    ]
    items.append({"type": "function_call_output", "call_id": made.call_id, "output": "21"})
    world.generator.texts = ["It is \\boxed{21}."]
    second = await client.responses.create(**fields | {"input": items})
    assert second.output_text == "It is \\boxed{21}."
    turns = json.loads(world.generator.prompts[-1])
    assert [turn.get("role") for turn in turns] == ["user", "assistant", "tool", None]
    assert turns[1]["content"] == "Let me see. "
    assert turns[1]["tool_calls"][0]["id"] == turns[2]["tool_call_id"] == made.call_id


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools.1.name"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "1"}]}, "input.0.call_id"),
        (
            {"input": [{"role": "user", "content": "x"}, {"type": "function_call", "call_id": "c", "name": "f"}]},
            "input.1.arguments",
        ),
        ({"input": [{"type": "web_search_call", "id": "1"}]}, "input.0.type"),
    ],
)
async def test_refusals_of_responses_have_paths(world: World, fields: Json, param: str) -> None:
    response = await world.client.post("/v1/responses", json={"model": "m", "input": "x", **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_a_stored_call_is_continued_by_its_result(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world(store={"path": str(tmp_path)}, max_model_len=4096)
    client = openai(world)
    world.generator.texts = [call(city="Rome")]
    fields: Json = {"model": "m", "tools": [FUNCTION]}
    first = await client.responses.create(**fields, input="How warm?")
    world.generator.texts = ["It is \\boxed{21}."]
    output = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "21"}
    second = await client.responses.create(**fields, input=[output], previous_response_id=first.id)
    third = await client.responses.create(**fields, input="Sure?", previous_response_id=second.id)
    turns = json.loads(world.generator.prompts[-1])
    assert [turn.get("role") for turn in turns] == ["user", "assistant", "tool", "assistant", "user", None]
    assert turns[1]["tool_calls"][0]["function"]["name"] == turns[2]["name"] == "weather"
    items = await client.responses.input_items.list(second.id)
    assert [(each.type, each.call_id, each.output) for each in items.data] == [
        ("function_call_output", first.output[-1].call_id, "21")
    ]
    assert third.output_text
