"""Whole solutions are held to a JSON schema, and a given beginning is continued exactly, on a real vLLM engine."""

import json
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft202012Validator
from vllm.v1.structured_output import backend_xgrammar
from vllm.v1.structured_output.backend_types import StructuredOutputOptions

from deployments.engines.generation import GenerationEngine
from deployments.engines.settings import GeneratorSettings
from deployments.http.json_schema.checked_schema import checked_schema
from deployments.service.schemas import WORKER_SCRIPT
from search.errors import SchemaRefused
from search.ports import Branch, Child, ExpandItem, ExpandRequest, Lane, Sampling, StopCondition, branch_seed
from search.tools.worker_process import WorkerProcess
from search.tree import Prefill, StepEnd

pytestmark = pytest.mark.asyncio(loop_scope="session")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "sure": {"type": "boolean"},
        "answer": {"anyOf": [{"type": "integer", "minimum": 10, "maximum": 99}, {"$ref": "#/$defs/word"}]},
        "steps": {"type": "array", "items": {"enum": ["add", "subtract"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["sure", "answer", "steps"],
    "additionalProperties": False,
    "$defs": {"word": {"type": "string", "minLength": 1, "maxLength": 4}},
}
GENERATED: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "point": {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]},
        "same": {"$ref": "#/properties/point"},
        "pair": {
            "type": "array",
            "items": [{"type": "boolean"}, {"$ref": "#/definitions/Two%20Words"}],
            "minItems": 2,
            "maxItems": 2,
        },
        "map": {
            "type": "object",
            "propertyNames": {"enum": ["x", "y"]},
            "additionalProperties": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 9},
            "required": ["x"],
        },
        "never": {"not": {}},
    },
    "required": ["point", "same", "pair", "map"],
    "additionalProperties": False,
    "definitions": {"Two Words": {"type": "string", "enum": ["a", "b", None], "nullable": True}},
}
"""Forms in which generators write, which the engine does not read."""
QUESTION = [{"role": "user", "content": "Start with 5. Add 37. Multiply by 3. Subtract 40. What is the result?"}]


def wanted(prefix: list[int], schema: str, count: int, temperature: float = 1.0) -> ExpandRequest:
    branches = tuple(Branch(index, branch_seed(7, (), index), 400) for index in range(count))
    item = ExpandItem((), tuple(prefix), branches)
    return ExpandRequest(
        "search", (item,), Sampling(temperature), StopCondition.SOLUTION, Lane.DEMAND, 600.0, json_schema=schema
    )


async def written(engine: GenerationEngine, request: ExpandRequest) -> dict[int, Child]:
    return {child.index: child async for group in engine.expand(request) for child in group.children}


def text(child: Child) -> str:
    return "".join(step.text for step in child.steps)


async def test_every_solution_that_ends_satisfies_the_schema(generation: GenerationEngine) -> None:
    prompt = generation.encode_chat(QUESTION)
    request = wanted(prompt, checked_schema(SCHEMA, ()).text, 24)
    children = await written(generation, request)
    ended = [child for child in children.values() if child.steps[-1].end is StepEnd.END_OF_SEQUENCE]
    assert len(ended) >= 12
    for child in ended:
        Draft202012Validator(SCHEMA).validate(json.loads(text(child)))
    assert len({text(child) for child in ended}) > 4
    again = await written(generation, request)
    assert {index: child.steps for index, child in again.items()} == {
        index: child.steps for index, child in children.items()
    }
    plain = await written(generation, wanted(prompt, "", 4))
    assert not any(text(child).lstrip().startswith("{") for child in plain.values())


async def test_solutions_satisfy_a_schema_as_generators_write_it(generation: GenerationEngine) -> None:
    request = wanted(generation.encode_chat(QUESTION), checked_schema(GENERATED, ()).text, 12)
    children = await written(generation, request)
    ended = [child for child in children.values() if child.steps[-1].end is StepEnd.END_OF_SEQUENCE]
    assert len(ended) >= 4
    for child in ended:
        Draft7Validator(GENERATED).validate(json.loads(text(child)))


async def test_the_front_of_the_engine_parses_no_schema(
    generation: GenerationEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[Any] = []
    monkeypatch.setattr(backend_xgrammar, "validate_xgrammar_grammar", parsed.append)
    request = wanted(generation.encode_chat(QUESTION), checked_schema(SCHEMA, ()).text, 6)
    children = await written(generation, request)
    assert len(children) == 6
    assert all(text(child).startswith("{") for child in children.values())
    assert parsed == []


@pytest.mark.filterwarnings("ignore:max_rollback_tokens is deprecated")
async def test_the_worker_compiles_what_the_engine_does(generation: GenerationEngine) -> None:
    engine, chat = generation._running.engine, generation._running.chat
    backend = backend_xgrammar.XgrammarBackend(
        engine.vllm_config, tokenizer=engine.get_tokenizer(), vocab_size=chat.vocabulary
    )
    worker = WorkerProcess("worker", WORKER_SCRIPT, 60.0, json.dumps([*chat.spelling, 10.0]).encode() + b"\n")
    worker.start()
    for schema in (SCHEMA, GENERATED):
        spec = checked_schema(schema, ()).text
        grammar = backend.compile_grammar(StructuredOutputOptions.JSON, spec)
        figures = json.loads(worker.exchange(json.dumps(spec).encode() + b"\n", 60.0))
        assert figures["bytes"] == grammar.ctx.memory_size_bytes
    worker.close()


async def test_an_object_of_any_kind_is_json(generation: GenerationEngine) -> None:
    children = await written(generation, wanted(generation.encode_chat(QUESTION), '{"type":"object"}', 8))
    for child in children.values():
        assert text(child).lstrip().startswith("{")
        if child.steps[-1].end is StepEnd.END_OF_SEQUENCE:
            assert isinstance(json.loads(text(child)), dict)


async def test_a_schema_without_any_text_is_refused_and_the_engine_lives(generation: GenerationEngine) -> None:
    empty = checked_schema({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, ()).text
    with pytest.raises(SchemaRefused):
        await written(generation, wanted(generation.encode_chat(QUESTION), empty, 4))
    generation.check_alive()


async def test_a_path_that_was_given_is_continued_as_it_was_written(generation: GenerationEngine) -> None:
    prompt = generation.encode_chat(QUESTION)
    (whole,) = (await written(generation, wanted(prompt, "", 1, temperature=0.0))).values()
    assert len(whole.steps) > 2
    chat = generation._running.chat
    for count in range(1, len(whole.steps)):
        given = "".join(step.text for step in whole.steps[:count])
        assert Prefill.of(given, GeneratorSettings().step_delimiter) == (
            tuple(step.text for step in whole.steps[:count]),
            "",
        )
        ids = chat.encode_text(given, written=True)
        assert ids == [token for step in whole.steps[:count] for token in step.token_ids]
        (rest,) = (await written(generation, wanted([*prompt, *ids], "", 1, temperature=0.0))).values()
        assert rest.steps == whole.steps[count:]
