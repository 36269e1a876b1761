"""JSON schemas as generators write them: what the engine gets, what is left out, and what is refused."""

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from deployments.admission.errors import BadRequest
from deployments.http.json_schema.checked_schema import checked_schema

Json = dict[str, Any]
TEXT: Json = {"type": "string"}
INTEGER: Json = {"type": "integer"}


def record(properties: Json, **more: Any) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        **more,
    }


def for_engine(schema: Json) -> Json:
    read = json.loads(checked_schema(schema, ()).text)
    Draft202012Validator.check_schema(read)
    return read  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("given", "unheld"),
    [
        ({"type": "integer", "format": "int32"}, ["format (int32)"]),
        ({"type": "number", "format": "double"}, ["format (double)"]),
        ({"type": ["integer", "null"], "format": "uint64"}, ["format (uint64)"]),
        ({"type": "boolean", "format": "date"}, ["format (date)"]),
        ({"type": "string", "format": "password"}, ["format (password)"]),
        ({"type": "string", "format": "time-span"}, ["format (time-span)"]),
        ({"type": "string", "format": "date-time", "minLength": 1}, ["minLength"]),
        ({"type": "string", "nullable": True, "example": "x"}, ["example", "nullable"]),
        ({"type": "string", "contentEncoding": "base64"}, ["contentEncoding"]),
        ({"type": "integer", "x-enumNames": ["A", "B"], "x-type": "E"}, ["x-enumNames", "x-type"]),
        ({"type": "integer", "multipleOf": 1}, ["multipleOf"]),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": False}, ["exclusiveMinimum"]),
        ({"type": "array", "items": TEXT, "uniqueItems": False}, ["uniqueItems"]),
        ({"type": "array", "items": TEXT, "maxItems": 1, "uniqueItems": True}, ["uniqueItems"]),
        (
            {"type": "array", "items": TEXT, "additionalItems": False, "minContains": 2},
            ["additionalItems", "minContains"],
        ),
        ({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": INTEGER}, ["propertyNames"]),
        ({"type": "object", "propertyNames": {}, "additionalProperties": INTEGER}, ["propertyNames"]),
        (record({"a": TEXT}, minProperties=1, maxProperties=1), ["maxProperties", "minProperties"]),
        (record({"a": TEXT}, minProperties=0, patternProperties={}), ["minProperties", "patternProperties"]),
        ({"type": "object", "properties": {"a": TEXT}, "unevaluatedProperties": False}, ["unevaluatedProperties"]),
        (record({"a": TEXT}, xml={"name": "a"}, dependentRequired={}), ["dependentRequired", "xml"]),
    ],
)
def test_a_keyword_that_constrains_nothing_is_left_out_and_named(given: Json, unheld: list[str]) -> None:
    checked = checked_schema(given, ())
    assert sorted(checked.unheld) == unheld
    left_out = {name.partition(" ")[0] for name in unheld}
    assert json.loads(checked.text) == {keyword: value for keyword, value in given.items() if keyword not in left_out}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        # Draft 7: schemars 0.8, TypeBox, zod 3
        ({"type": "array", "items": [TEXT, INTEGER]}, {"type": "array", "prefixItems": [TEXT, INTEGER]}),
        (
            {"type": "array", "items": [TEXT], "additionalItems": False, "minItems": 1, "maxItems": 1},
            {"type": "array", "prefixItems": [TEXT], "items": False, "minItems": 1, "maxItems": 1},
        ),
        # OpenAPI 3.0 and draft 4
        (
            {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 1, "exclusiveMaximum": False},
            {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        ),
        # .NET's [Range(0, double.MaxValue)], and what int64 can be
        ({"type": "number", "minimum": 0, "maximum": 1.7e308}, {"type": "number", "minimum": 0, "maximum": 1 << 53}),
        (
            {"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1},
            {"type": "integer", "minimum": -(1 << 53), "maximum": 1 << 53},
        ),
        ({"type": "string", "format": "guid"}, {"type": "string", "format": "uuid"}),
        # Go's invopop, TypeBox
        (
            {"type": "object", "patternProperties": {".*": INTEGER}},
            {"type": "object", "additionalProperties": INTEGER},
        ),
        (
            {"type": "object", "patternProperties": {"^(.*)$": INTEGER}, "additionalProperties": False},
            {"type": "object", "additionalProperties": INTEGER},
        ),
        # zod's record of an enum
        (
            {
                "type": "object",
                "propertyNames": {"enum": ["a", "b"]},
                "additionalProperties": INTEGER,
                "required": ["a"],
            },
            {
                "type": "object",
                "required": ["a"],
                "additionalProperties": False,
                "properties": {name: {"$ref": "#/$defs/additionalProperties"} for name in "ab"},
                "$defs": {"additionalProperties": INTEGER},
            },
        ),
        # Pydantic's dict with an enum's values as keys
        (
            {
                "$defs": {"Colour": {"enum": ["r"], "type": "string"}},
                "type": "object",
                "propertyNames": {"$ref": "#/$defs/Colour"},
                "additionalProperties": INTEGER,
            },
            {
                "type": "object",
                "additionalProperties": False,
                "properties": {"r": {"$ref": "#/$defs/additionalProperties"}},
                "$defs": {"additionalProperties": INTEGER},
            },
        ),
        # never: zod 3's optional, TypeBox's Never
        ({"anyOf": [{"not": {}}, TEXT]}, {"anyOf": [TEXT]}),
        (
            {"type": "object", "properties": {"a": TEXT, "b": {"not": {}}}},
            {"type": "object", "properties": {"a": TEXT}},
        ),
        ({"type": "object", "additionalProperties": {"not": {}}}, {"type": "object", "additionalProperties": False}),
        # anything: schemars and Go write true
        (record({"a": True}), record({"a": {}})),
        ({"type": "array", "items": True}, {"type": "array", "items": True}),
        # victools for draft 7
        (
            {"definitions": {"A": TEXT}, "allOf": [{"$ref": "#/definitions/A"}, {"description": "its name"}]},
            {"$defs": {"A": TEXT}, "allOf": [{"$ref": "#/$defs/A"}]},
        ),
        # inheritance and intersections: OpenAPI, TypeBox, zod 3
        (
            {
                "definitions": {"Base": {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}},
                "description": "both",
                "allOf": [{"$ref": "#/definitions/Base"}, {"properties": {"b": INTEGER}, "required": ["b"]}],
                "unevaluatedProperties": False,
            },
            {
                "description": "both",
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"$ref": "#/$defs/b"}},
                "required": ["a", "b"],
                "$defs": {"a": TEXT, "b": INTEGER},
            },
        ),
        # springdoc
        (
            {"type": "object", "oneOf": [record({"a": TEXT}), record({"b": TEXT})]},
            {"oneOf": [record({"a": TEXT}), record({"b": TEXT})]},
        ),
        (
            {"type": "object", "$ref": "#/$defs/A", "$defs": {"A": record({})}},
            {"$ref": "#/$defs/A", "$defs": {"A": record({})}},
        ),
        # values of no admitted type
        ({"type": "string", "enum": ["a", None, 1], "nullable": True}, {"type": "string", "enum": ["a"]}),
        ({"type": "integer", "format": "int32", "enum": [0, 1, 2.5]}, {"type": "integer", "enum": [0, 1]}),
        # Pydantic's dict with a length
        (
            {"type": "object", "additionalProperties": INTEGER, "minProperties": 1, "maxProperties": 3},
            {"type": "object", "additionalProperties": INTEGER, "minProperties": 1, "maxProperties": 3},
        ),
        # no type
        (
            {"properties": {"a": TEXT}, "required": ["a"]},
            {"type": "object", "properties": {"a": TEXT}, "required": ["a"]},
        ),
        ({"minimum": 5}, {"type": "number", "minimum": 5}),
        ({"format": "uuid"}, {"type": "string", "format": "uuid"}),
        ({"items": TEXT, "maxItems": 2}, {"type": "array", "items": TEXT, "maxItems": 2}),
    ],
)
def test_the_engine_gets_what_other_forms_mean(given: Json, read: Json) -> None:
    assert for_engine(given) == read


@pytest.mark.parametrize(
    ("reference", "named"),
    [
        ("#/properties/a", INTEGER),
        ("#/properties/list/items", TEXT),
        ("#/properties/either/anyOf/1", TEXT),
        ("#/$defs/Two~1Words~0", TEXT),
        ("#/$defs/Two%20Words%3CT%3E", INTEGER),
        ("#/definitions/nested/$defs/Inner", TEXT),
        ("#/components/schemas/Pet", INTEGER),
        ("T0", TEXT),
        ("#anchor", INTEGER),
        ("https://example.com/top.json#/properties/a", INTEGER),
        ("https://example.com/T0", TEXT),
    ],
)
def test_a_reference_is_followed_wherever_it_leads(reference: str, named: Json) -> None:
    schema = {
        "$id": "https://example.com/top.json",
        "type": "object",
        "properties": {
            "a": INTEGER,
            "list": {"type": "array", "items": TEXT},
            "either": {"anyOf": [INTEGER, TEXT]},
            "it": {"$ref": reference},
        },
        "$defs": {
            "Two/Words~": TEXT,
            "Two Words<T>": INTEGER,
            "identified": {"$id": "T0", **TEXT},
            "anchored": {"$anchor": "anchor", **INTEGER},
        },
        "definitions": {"nested": {"$defs": {"Inner": TEXT}}},
        "components": {"schemas": {"Pet": INTEGER}},
    }
    read = for_engine(schema)
    [(name, definition)] = read["$defs"].items()
    assert read["properties"]["it"] == {"$ref": f"#/$defs/{name}"}
    assert re.fullmatch(r"[\w.-]+", name), "xgrammar undoes no escapes"
    assert {keyword: value for keyword, value in definition.items() if not keyword.startswith("$")} == named


def test_schemas_that_hold_themselves_stay_so() -> None:
    """System.Text.Json refers to a property's own place, TypeBox to an ``$id``, and others to the top."""
    top = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
    assert for_engine(top) == top
    dotnet = {
        "type": "object",
        "properties": {"next": {"type": ["object", "null"], "properties": {"next": {"$ref": "#/properties/next"}}}},
    }
    read = for_engine(dotnet)
    assert read["$defs"]["next"]["properties"]["next"] == {"$ref": "#/$defs/next"}
    typebox = {"$id": "Node", "type": "object", "properties": {"nodes": {"type": "array", "items": {"$ref": "Node"}}}}
    assert for_engine(typebox)["properties"]["nodes"]["items"] == {"$ref": "#"}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "string", "pattern": "a+"}, "pattern"),
        ({"type": "string", "format": "regex"}, "format"),
        ({"type": "string", "format": "email", "maxLength": 9}, "maxLength"),
        ({"type": "array", "items": TEXT, "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "contains": TEXT}, "contains"),
        ({"type": "number", "multipleOf": 0.01}, "multipleOf"),
        ({"type": "object", "propertyNames": {"minLength": 2}, "additionalProperties": TEXT}, "propertyNames"),
        (
            {"type": "object", "propertyNames": {"enum": ["a"], "minLength": 2}, "additionalProperties": TEXT},
            "propertyNames",
        ),
        ({**record({"a": TEXT, "b": TEXT}), "propertyNames": {"enum": ["a"]}}, "required"),
        ({"type": "object", "patternProperties": {"^x-": TEXT}}, "patternProperties"),
        ({"type": "object", "additionalProperties": TEXT, "minProperties": 2}, "minProperties"),
        ({"type": "object", "additionalProperties": TEXT, "minProperties": 1, "maxProperties": 0}, "minProperties"),
        ({"type": "object", "unevaluatedProperties": TEXT}, "unevaluatedProperties"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"if": TEXT, "then": {"minLength": 1}}, "if"),
        ({"allOf": [record({"a": TEXT}), record({"b": TEXT})]}, "allOf"),
        ({"allOf": [{"properties": {"a": TEXT}}, {"properties": {"a": {"type": "null"}}}]}, "allOf"),
        ({"allOf": [{"properties": {"a": TEXT}}, {"$ref": "#"}]}, "allOf"),
        ({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, "allOf"),
        (
            {"allOf": [{"properties": {"a": TEXT}}, {"properties": {"b": {"pattern": "a"}}}]},
            "allOf.1.properties.b.pattern",
        ),
        ({"anyOf": [TEXT, INTEGER], "type": "string"}, "type"),
        ({"type": "string", "const": 5}, "type"),
        ({"type": "string", "enum": [5, None]}, "enum"),
        ({"anyOf": [{"not": {}}]}, "anyOf"),
        ({"type": "integer", "maximum": -(1 << 60)}, "maximum"),
        ({"type": "object", "properties": {"a": {"not": {}}}, "required": ["a"]}, "properties.a.not"),
        ({"type": "array", "items": [TEXT, {"type": "strin"}]}, "items.1.type"),
        ({"type": "object", "patternProperties": {"^.*$": {"pattern": "a"}}}, "patternProperties.^.*$.pattern"),
        ({"type": "integer", "minimun": 5}, "minimun"),
        ({"type": "object", "additionalPropertes": False}, "additionalPropertes"),
        ({"$ref": "#/properties/a"}, "$ref"),
        ({"$ref": "other.json#/$defs/A"}, "$ref"),
        ({"anyOf": [TEXT, {"$ref": "#/anyOf/2"}]}, "anyOf.1.$ref"),
        ({"anyOf": [TEXT, {"$ref": "#/anyOf/" + "9" * 5000}]}, "anyOf.1.$ref"),
        ({"anyOf": [TEXT, {"$ref": "#/anyOf/\u0660"}]}, "anyOf.1.$ref"),
        ({"$ref": "#"}, "schema"),
        ({"anyOf": [{"$ref": "#/anyOf/0"}]}, "schema"),
    ],
)
def test_what_would_have_to_hold_and_cannot_is_refused(schema: Json, path: str) -> None:
    with pytest.raises(BadRequest) as refused:
        checked_schema(schema, ("schema",))
    assert refused.value.param == (path if path == "schema" else f"schema.{path}")


def test_a_schema_that_its_references_make_too_long_is_refused() -> None:
    """Each part that is referred to is written once more: parts inside parts could make it a hundred times as long."""
    inner: Json = {"enum": ["x" * 5000]}
    for _ in range(8):
        inner = record({"a": inner})
    references = [{"$ref": "#/properties/a" + "/properties/a" * depth} for depth in range(8)]
    top = record({"a": inner, "b": {"anyOf": references}})
    with pytest.raises(BadRequest, match="with its references expanded"):
        checked_schema(top, ("schema",))
    assert checked_schema(record({"a": inner, "b": references[-1]}), ("schema",))


@pytest.mark.parametrize("wide", ["anyOf", "allOf"])
def test_references_in_references_take_no_time(wide: str) -> None:
    """Types are looked up once for each schema, however often it is referred to, and no further than 16 deep."""
    below = {f"d{depth}": {wide: [{"$ref": f"#/$defs/d{depth + 1}"}] * 8} for depth in range(40)}
    with pytest.raises(BadRequest):
        checked_schema({"type": "object", "$ref": "#/$defs/d0", "$defs": below}, ())
    chain = {f"d{depth}": {"$ref": f"#/$defs/d{depth + 1}"} for depth in range(400)} | {"d400": TEXT}
    assert for_engine({"$ref": "#/$defs/d0", "$defs": chain})["$defs"]["d400"] == TEXT
