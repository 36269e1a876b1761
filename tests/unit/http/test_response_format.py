"""``response_format``: whole solutions are held to it, and what cannot be is refused before an engine sees it."""

import json
from typing import Any

import pytest
from http_world import World, chat
from openai.types.responses import Response
from pydantic import BaseModel

from deployments.admission.errors import BadRequest
from deployments.http.json_schema import MAX_CHARS, MAX_DEPTH, checked_schema
from deployments.http.schema import ChatRequest
from search.errors import SchemaRefused

pytestmark = pytest.mark.asyncio

CHAT = "/v1/chat/completions"
AT = "response_format.json_schema.schema"
TEXT = {"type": "string"}


def asked(schema: Any, **search: Any) -> dict[str, Any]:
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    return chat(response_format=wanted, search={"strategy": "best_of_n", "n": 4, **search})


async def error_of(world: World, body: dict[str, Any]) -> dict[str, Any]:
    async with world.client as client:
        reply = await client.post(CHAT, json=body)
    assert reply.status_code == 400, reply.text
    assert world.generator.calls == 0
    return reply.json()["error"]  # type: ignore[no-any-return]


class Part(BaseModel):
    value: int | None = None


class Answer(BaseModel):
    """As programs write schemas."""

    parts: list[Part]
    name: str = "x"
    share: tuple[float, int]
    rest: dict[str, Part]


@pytest.mark.parametrize(
    "schema",
    [
        {},
        Answer.model_json_schema(),
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": ["integer", "null"], "minimum": 0},
        {"type": "object", "properties": {"type": TEXT, "$ref": TEXT}, "required": ["$ref"]},
        {"$defs": {"A": {"type": "array", "items": {"$ref": "#/$defs/A"}}}, "$ref": "#/$defs/A"},
        {"type": "string", "enum": ["a", "b"], "description": "one of two"},
        {"anyOf": [{"const": 1}, {"type": "string", "format": "date"}]},
    ],
)
async def test_a_schema_reaches_the_generator_as_it_is(world: World, schema: dict[str, Any]) -> None:
    job = world._endpoint.jobs.search(ChatRequest.parse(asked(schema)))
    assert json.loads(job.json_schema) == schema


async def test_an_object_is_a_schema_and_a_text_is_none(world: World) -> None:
    jobs = world._endpoint.jobs
    search = {"strategy": "greedy"}
    for wanted, schema in [("json_object", {"type": "object"}), ("text", None)]:
        job = jobs.search(ChatRequest.parse(chat(response_format={"type": wanted}, search=search)))
        assert (json.loads(job.json_schema) if job.json_schema else None) == schema
    assert jobs.search(ChatRequest.parse(chat(response_format={"type": "text"}))).json_schema == ""


@pytest.mark.parametrize(
    "strategy", ["beam_search", "dvts", "rebase", "ets", "mcts", "ab_mcts", "frontier", "particle_filter"]
)
async def test_a_search_by_steps_says_why_not(world: World, strategy: str) -> None:
    error = await error_of(world, chat(response_format={"type": "json_object"}, search={"strategy": strategy}))
    assert error["param"] == "response_format"
    assert f"{strategy} writes an answer step by step" in error["message"]
    assert error["message"].endswith("search.strategy may be: greedy, self_consistency, best_of_n")


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = TEXT
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ({"type": "strin"}, f"{AT}.type"),
        ({"type": []}, f"{AT}.type"),
        ({"type": 5, "minimum": 1}, f"{AT}.type"),
        ({"type": "object", "properties": {"a": {"type": "int"}}}, f"{AT}.properties.a.type"),
        ({"type": "object", "properties": []}, f"{AT}.properties"),
        ({"type": "object", "properties": {"a": TEXT}, "required": ["b"]}, f"{AT}.required"),
        ({"type": "object", "required": [1]}, f"{AT}.required"),
        ({"type": "string", "pattern": "(a+)+b"}, f"{AT}.pattern"),
        ({"type": "string", "format": "regex"}, f"{AT}.format"),
        ({"type": "string", "minLength": 10**9}, f"{AT}.minLength"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, f"{AT}.minLength"),
        ({"type": "string", "minLength": True}, f"{AT}.minLength"),
        ({"type": "integer", "minimum": 1e300}, f"{AT}.minimum"),
        ({"type": "integer", "multipleOf": 2}, f"{AT}.multipleOf"),
        ({"type": "array", "uniqueItems": True}, f"{AT}.uniqueItems"),
        ({"type": "array", "prefixItems": []}, f"{AT}.prefixItems"),
        ({"enum": []}, f"{AT}.enum"),
        ({"enum": [{"a": 1}]}, f"{AT}.enum"),
        ({"anyOf": [TEXT, 5]}, f"{AT}.anyOf.1"),
        ({"anyOf": [TEXT], "type": "integer"}, f"{AT}.type"),
        ({"allOf": [TEXT, TEXT]}, f"{AT}.allOf"),
        ({"not": TEXT}, f"{AT}.not"),
        ({"$ref": "#/$defs/A"}, f"{AT}.$ref"),
        ({"$ref": "https://example.com/schema"}, f"{AT}.$ref"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"anyOf": [{"$ref": "#/$defs/A"}]}}}, AT),
        ({"description": "x" * MAX_CHARS}, AT),
        (nested(MAX_DEPTH + 1), AT + ".items" * (MAX_DEPTH + 1)),
        ("string", AT),
        (True, AT),
    ],
)
async def test_what_no_answer_can_be_held_to_is_refused_by_its_path(world: World, schema: Any, param: str) -> None:
    assert (await error_of(world, asked(schema)))["param"] == param


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, f"{AT}"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name"),
        ({"type": "structural_tag"}, "response_format.type"),
        ({"type": "json_object", "schema": TEXT}, "response_format.schema"),
        ({"type": "json_object", "json_schema": {"name": "a", "schema": TEXT}}, "response_format.json_schema"),
        ({"type": "text", "json_schema": {"name": "a", "schema": TEXT}}, "response_format.json_schema"),
        ({"type": "json_object", "json_schem": {}}, "response_format.json_schem"),
        ("json", "response_format"),
    ],
)
async def test_what_is_no_format_is_refused_by_its_path(world: World, wanted: Any, param: str) -> None:
    assert (await error_of(world, chat(response_format=wanted, search={"strategy": "greedy"})))["param"] == param


SPOKEN = {"model": "m", "input": "6*7?", "seed": 1, "search": {"strategy": "best_of_n", "n": 4}}
NULLABLE = {"type": "object", "properties": {"a": {"const": None}}, "required": ["a"], "additionalProperties": False}


async def test_a_response_has_the_same_format_in_its_own_words(world: World) -> None:
    wanted = {"type": "json_schema", "name": "answer", "schema": NULLABLE, "strict": True}
    async with world.client as client:
        for format_ in (wanted, {"type": "json_object"}, {"type": "text"}):
            reply = (await client.post("/v1/responses", json=SPOKEN | {"text": {"format": format_}})).json()
            assert Response.model_validate(reply)
            assert reply["text"]["format"] == format_
    assert [json.loads(each) for each in world.generator.schemas if each] == [NULLABLE, {"type": "object"}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"not": TEXT}}}}, "text.format.schema.not"),
        ({"text": {"format": {"type": "json_object"}}, "search": {"strategy": "mcts"}}, "text.format"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"json": {}}, "text": None}, "structured_outputs"),
    ],
)
async def test_a_response_is_refused_by_its_own_paths(world: World, fields: dict[str, Any], param: str) -> None:
    async with world.client as client:
        reply = await client.post("/v1/responses", json=SPOKEN | fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
    assert world.generator.calls == 0


async def test_a_stream_and_a_line_of_a_batch_are_held_to_it_too(world: World) -> None:
    body = asked(NULLABLE)
    async with world.client as client:
        await client.post(CHAT, json=body | {"stream": True})
    status, _, _ = await world._inside.answer("POST", CHAT, json.dumps(body).encode())
    assert status == 200
    assert [json.loads(each) for each in world.generator.schemas] == [NULLABLE] * 2
    bad = json.dumps(asked({"not": TEXT})).encode()
    assert (await world._inside.answer("POST", CHAT, bad))[0] == 400


async def test_token_level_beam_search_has_no_format(world: World) -> None:
    body = {"model": "m", "prompt": "abc", "use_beam_search": True, "response_format": {"type": "json_object"}}
    async with world.client as client:
        reply = await client.post("/v1/completions", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "response_format")


async def test_a_schema_that_is_nested_without_end_is_refused() -> None:
    with pytest.raises(BadRequest, match="nested") as refused:
        checked_schema(nested(5000), ("schema",))
    assert refused.value.param == "schema"


async def test_what_the_engine_refuses_is_the_schemas_fault(world: World) -> None:
    world.generator.error = SchemaRefused("xgrammar knows why")
    async with world.client as client:
        reply = await client.post(CHAT, json=asked({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}))
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == AT
    assert "xgrammar" not in reply.text
