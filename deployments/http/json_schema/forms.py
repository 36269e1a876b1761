"""Forms of JSON Schema in which generators say what the supported part can say too, and keywords that say nothing.

Generators write for several drafts of JSON Schema, and for OpenAPI. Each form here becomes one that admits the same
texts, or fewer: an answer that is held to it satisfies what the client sent.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from deployments.http.json_schema.references import Pointer, fragment_of

Json = dict[str, Any]

TYPES = ("string", "number", "integer", "boolean", "null", "object", "array")
MAX_NUMBER = 1 << 53
"""Every integer up to here is exact as a float."""
FORMATS = ("date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")
"""Formats of texts to which vLLM's grammars hold an answer."""
FORMATS_UNHELD = (
    *("idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer", "regex", "relative-json-pointer"),
    *("uri-reference", "uri-template"),
)
"""All others of JSON Schema's own formats. The rest are a generator's own, and no validator checks them."""
ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator"),
        *("$schema", "$id", "$comment", "$anchor", "$dynamicAnchor", "$vocabulary", "id"),
    }
)
"""Keywords that are there for readers and programs."""


class Form(NamedTuple):
    """A schema in the supported form. The schemas in it are as they were."""

    schema: Json
    origins: dict[str, Pointer]
    """Where the schemas below a keyword stand in the client's schema, if not below this keyword."""
    unheld: list[str]
    """What was left out."""


def supported_form(given: Json, pointer: Pointer) -> Form:
    """Returns a schema without other forms, and without keywords that constrain nothing. ``pointer``: of the schema."""
    schema = dict(given)
    origins: dict[str, Pointer] = {}
    _write_tuple(schema, origins)
    _write_limits(schema)
    _write_map(schema, origins)
    _name_properties(schema, (*pointer, *origins.get("additionalProperties", ("additionalProperties",))))
    _drop_impossible(schema)
    if schema.get("format") == "guid":
        schema["format"] = "uuid"
    unheld = [keyword for keyword in schema if _says_nothing(keyword, schema)]
    return Form({keyword: value for keyword, value in schema.items() if keyword not in unheld}, origins, unheld)


def is_never(schema: Any) -> bool:
    """Whether no value satisfies a schema, as generators write it: ``false`` or ``{"not": {}}``."""
    return schema is False or (isinstance(schema, dict) and schema.get("not") in ({}, True))


def types_of(names: Any) -> frozenset[str]:
    """Returns the types that ``type`` admits. Every integer is a number."""
    found = {name for name in (names if isinstance(names, list | tuple) else [names]) if name in TYPES}
    return frozenset(found | ({"integer"} if "number" in found else set()))


def types_of_values(values: Iterable[Any]) -> frozenset[str]:
    """Returns the types of JSON values, each the narrowest one."""
    return frozenset(map(_type_of, values))


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int() | float():
            return "integer" if value == int(value) else "number"
        case list():
            return "array"
    return "object"


def _write_tuple(schema: Json, origins: dict[str, Pointer]) -> None:
    """Draft 7 lists the schemas of a tuple in ``items``, and has ``additionalItems`` for what comes after."""
    if not isinstance(schema.get("items"), list):
        return
    schema["prefixItems"], origins["prefixItems"] = schema.pop("items"), ("items",)
    if "additionalItems" in schema:
        schema["items"], origins["items"] = schema.pop("additionalItems"), ("additionalItems",)


def _write_limits(schema: Json) -> None:
    """Draft 4 and OpenAPI 3.0 say by true that a limit is exclusive. Limits beyond `MAX_NUMBER` are drawn in to it."""
    for inclusive, exclusive, sign in (("minimum", "exclusiveMinimum", -1), ("maximum", "exclusiveMaximum", 1)):
        if schema.get(exclusive) is True and inclusive in schema:
            schema[exclusive] = schema.pop(inclusive)
        for keyword in (inclusive, exclusive):
            limit = schema.get(keyword)
            if isinstance(limit, int | float) and limit * sign > MAX_NUMBER:
                schema[keyword] = sign * MAX_NUMBER


def _write_map(schema: Json, origins: dict[str, Pointer]) -> None:
    """A pattern that all names match says what ``additionalProperties`` says where no property is named."""
    patterns = schema.get("patternProperties")
    if isinstance(patterns, dict) and len(patterns) == 1 and not schema.get("properties"):
        [pattern] = patterns
        if pattern.strip("^$").strip("()") in ("", ".*"):
            del schema["patternProperties"]
            schema["additionalProperties"] = patterns[pattern]
            origins["additionalProperties"] = ("patternProperties", pattern)


def _name_properties(schema: Json, others: Pointer) -> None:
    """Lists names of a map that are known, by ``propertyNames`` or ``required``, as properties. ``others``: pointer of
    the schema of their values."""
    names, required = schema.get("propertyNames"), schema.get("required")
    listed = None
    if isinstance(names, dict) and "string" in types_of(names.get("type", "string")):
        listed = names.get("enum") if names.keys() <= ANNOTATIONS | {"type", "enum"} else None
    properties, additional = schema.get("properties", {}), schema.get("additionalProperties", bool(listed))
    if not isinstance(properties, dict) or not all(_are_texts(each) for each in (listed or [], required or [])):
        return
    if listed:
        del schema["propertyNames"]
        properties = {name: each for name, each in properties.items() if name in listed}
    if additional is True or isinstance(additional, dict):
        value = {} if additional is True else {"$ref": fragment_of(others)}
        properties = {
            **properties,
            **{name: value for name in (*(listed or ()), *(required or ())) if name not in properties},
        }
    if listed:
        schema["additionalProperties"] = False
    if properties or "properties" in schema:
        schema["properties"] = properties


def _drop_impossible(schema: Json) -> None:
    """Values of an enumeration that are of no admitted type, properties that no value satisfies."""
    if "type" in schema and isinstance(values := schema.get("enum"), list):
        schema["enum"] = [value for value in values if _type_of(value) in types_of(schema["type"])]
    for keyword in ("items", "additionalProperties"):
        if is_never(schema.get(keyword)):
            schema[keyword] = False
    properties, required = schema.get("properties"), _as_list(schema.get("required"))
    if isinstance(properties, dict) and schema.get("additionalProperties", False) is False:
        schema["properties"] = {
            name: each for name, each in properties.items() if name in required or not is_never(each)
        }


def _says_nothing(keyword: str, schema: Json) -> bool:
    """Whether a keyword constrains no answer: by its value, by what is beside it, or since an answer has only the
    properties and items that a schema names."""
    value, types = schema[keyword], _as_list(schema.get("type"))
    match keyword:
        case "format":
            elsewhere = bool(types) and "string" not in types
            return isinstance(value, str) and (elsewhere or value not in (*FORMATS, *FORMATS_UNHELD))
        case "minLength":
            return value in (0, 1) and schema.get("format") in FORMATS
        case "uniqueItems":
            return value is False or schema.get("maxItems") in (0, 1)
        case "exclusiveMinimum" | "exclusiveMaximum":
            return value is False
        case "multipleOf":
            return type(value) is int and value == 1 and types == ["integer"]
        case "minProperties":
            return type(value) is int and value <= len(_as_list(schema.get("required")))
        case "maxProperties":
            closed = schema.get("additionalProperties", False) is False and "patternProperties" not in schema
            return closed and type(value) is int and value >= len(schema.get("properties", ()))
        case "propertyNames":
            plain = isinstance(value, dict) and value.keys() <= ANNOTATIONS | {"type"}
            return value is True or (plain and types_of(value.get("type", "string")) == {"string"})
        case "patternProperties" | "dependencies" | "dependentRequired" | "dependentSchemas":
            return bool(value == {})
        case "unevaluatedProperties" | "unevaluatedItems":
            return isinstance(value, bool)
        case "minContains" | "maxContains":
            return "contains" not in schema
        case "additionalItems":
            return True
    return False


def _as_list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [] if given is None else [given]


def _are_texts(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(each, str) for each in given)
