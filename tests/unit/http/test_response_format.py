"""``response_format``: whole solutions are held to it, and what cannot be is refused before an engine sees it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from http_world import World, chat
from openai.types.responses import Response
from pydantic import BaseModel

from deployments.admission.errors import BadRequest
from deployments.admission.keys import key_record
from deployments.http.chat.schema import ChatRequest
from deployments.http.json_schema.checked_schema import MAX_CHARS, MAX_DEPTH, MAX_SCHEMAS, checked_schema
from deployments.http.json_schema.keywords import MAX_LEAST
from deployments.service.schemas import SchemaCosts, SchemasBusy, SchemaTooDear
from search.errors import SchemaRefused

pytestmark = pytest.mark.asyncio

MakeWorld = Callable[..., World]
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
    assert f"{strategy} writes step by step" in error["message"]
    assert error["message"].endswith("search.strategy may be: greedy, self_consistency, best_of_n")


@pytest.mark.parametrize("strategy", ["select", "fuse", "refine"])
async def test_a_search_that_reads_its_solutions_says_why_not(world: World, strategy: str) -> None:
    error = await error_of(world, chat(response_format={"type": "json_object"}, search={"strategy": strategy}))
    assert error["param"] == "response_format"
    assert f"{strategy} has the model read its solutions" in error["message"]
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
        ({"type": "string", "minLength": MAX_LEAST + 1}, f"{AT}.minLength"),
        ({"type": "array", "minItems": MAX_LEAST + 1}, f"{AT}.minItems"),
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


async def test_what_references_write_out_is_counted_while_it_is_read() -> None:
    many = {f"{index}": {} for index in range(600)}
    copies = [{"allOf": [{"$ref": "#/$defs/P"}, {"properties": {f"q{index}": {}}}]} for index in range(140)]
    with pytest.raises(BadRequest, match=f"more than {MAX_SCHEMAS} schemas"):
        checked_schema({"anyOf": copies, "$defs": {"P": {"properties": many}}}, ("schema",))


class Costs(SchemaCosts):
    """Knows what schemas cost without a worker."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(lambda: ([], "", None))
        self.error = error
        self.checked: list[tuple[str, str]] = []

    async def check(self, schema: str, owner: str = "") -> None:
        self.checked.append((schema, owner))
        if self.error is not None:
            raise self.error


DEAR = SchemaTooDear("costs too much: 9 s; at most 1 s are allowed")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, asked(NULLABLE), AT),
        (CHAT, asked(NULLABLE) | {"stream": True}, AT),
        ("/v1/search", asked(NULLABLE), AT),
        (
            "/v1/responses",
            SPOKEN | {"text": {"format": {"type": "json_schema", "name": "a", "schema": NULLABLE}}},
            "text.format.schema",
        ),
        (
            "/v1/responses",
            SPOKEN | {"stream": True, "text": {"format": {"type": "json_schema", "name": "a", "schema": NULLABLE}}},
            "text.format.schema",
        ),
    ],
)
async def test_a_dear_schema_is_a_400_with_the_figures_before_an_engine_sees_it(
    make_world: MakeWorld, path: str, body: dict[str, Any], param: str
) -> None:
    world = make_world(schemas=Costs(DEAR))
    async with world.client as client:
        replies = [await client.post(path, json=body)]
    status, _, inside = await world._inside.answer("POST", path, json.dumps(body).encode())
    for code, text in ((replies[0].status_code, replies[0].text), (status, inside.decode())):
        assert code == 400
        error = json.loads(text)["error"]
        assert (error["param"], error["code"]) == (param, "above_limit")
        assert error["message"] == f"{param} {DEAR}"
    assert world.generator.calls == 0
    world.assert_idle()


async def test_each_schema_is_checked_for_its_owner_and_a_text_without_one_is_not(make_world: MakeWorld) -> None:
    world = make_world(schemas=(costs := Costs()), keys=("a-key-that-is-long-enough",))
    async with world.client as client:
        headers = {"authorization": "Bearer a-key-that-is-long-enough"}
        for body in (asked(NULLABLE), chat()):
            assert (await client.post(CHAT, json=body, headers=headers)).status_code == 200
    [(schema, owner)] = costs.checked
    assert json.loads(schema) == NULLABLE
    assert owner == key_record("a-key-that-is-long-enough").digest


async def test_a_cost_that_is_not_known_in_time_is_no_fault_of_the_request(make_world: MakeWorld) -> None:
    world = make_world(schemas=Costs(SchemasBusy("busy")))
    async with world.client as client:
        reply = await client.post(CHAT, json=asked(NULLABLE))
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "schema_check_unavailable")


GUIDES = [
    *({"structured_outputs": {kind: "a"}} for kind in ("regex", "choice", "grammar", "json", "structural_tag")),
    *({f"guided_{kind}": "(a+)+b"} for kind in ("regex", "choice", "grammar", "json")),
    *({kind: "(a+)+b"} for kind in ("regex", "grammar", "ebnf", "json_schema")),
    *({"response_format": {"type": kind, kind: "a"}} for kind in ("regex", "grammar", "structural_tag")),
]


@pytest.mark.parametrize("guide", GUIDES, ids=json.dumps)
async def test_an_answer_can_be_held_to_a_json_schema_and_to_nothing_else(world: World, guide: dict[str, Any]) -> None:
    bodies = {
        CHAT: chat(search={"strategy": "greedy"}),
        "/v1/search": chat(search={"strategy": "greedy"}),
        "/v1/responses": SPOKEN,
        "/v1/completions": {"model": "m", "prompt": "abc", "use_beam_search": True},
    }
    sent = [(path, body | guide) for path, body in bodies.items()]
    sent += [(CHAT, chat(search={"strategy": "greedy", **guide})), (CHAT, chat(extra_body=guide))]
    async with world.client as client:
        for path, body in sent:
            assert (await client.post(path, json=body)).status_code == 400, path
            # As a line of a batch.
            assert (await world._inside.answer("POST", path, json.dumps(body).encode()))[0] == 400, path
    assert world.generator.calls == 0
    assert world.generator.beams == []
