"""Checks the JSON schema of an answer before a search begins.

Supported is the part of JSON Schema to which vLLM's grammars (xgrammar 0.2) hold a text, within bounds that keep
compiling a grammar to milliseconds. xgrammar ignores some other keywords in silence, so all others are refused.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from deployments.admission.body import Path, dotted
from deployments.admission.errors import BadRequest

MAX_CHARS = 16_384
"""Maximum length of a schema as compact JSON."""
MAX_DEPTH = 16
"""Maximum depth of schemas inside schemas."""
MAX_COUNT = 100_000
MAX_NUMBER = 1 << 53
"""Every integer up to here is exact as a float."""

TYPES = ("string", "number", "integer", "boolean", "null", "object", "array")
FORMATS = ("date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")
_REFERENCE = re.compile(r"#/(\$defs|definitions)/[^/~%]+")
_DEFINITIONS = ("$defs", "definitions")

Json = dict[str, Any]


class _Value(NamedTuple):
    """The values that a keyword may have."""

    fits: Callable[[Any], bool]
    allowed: str
    types: tuple[str, ...] = ()
    """``type`` must name one of these, because xgrammar ignores the keyword otherwise. Empty: any type."""


def _is_type(given: Any) -> bool:
    names = given if isinstance(given, list) else [given]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


def _is_plain(given: Any) -> bool:
    return not isinstance(given, dict | list)


_SCHEMA = _Value(lambda given: isinstance(given, bool | dict), "a schema")
_SCHEMAS = _Value(lambda given: isinstance(given, list) and bool(given), "a list of schemas")
_NAMED = _Value(lambda given: isinstance(given, dict), "an object of schemas")
_COUNT = _Value(lambda given: type(given) is int and 0 <= given <= MAX_COUNT, f"an integer from 0 to {MAX_COUNT}")
_LIMIT = _Value(
    lambda given: type(given) in (int, float) and abs(given) <= MAX_NUMBER,
    "a number from -2^53 to 2^53",
    ("number", "integer"),
)
_KEYWORDS: Mapping[str, _Value] = {
    "type": _Value(_is_type, f"one or more of {', '.join(TYPES)}"),
    "properties": _NAMED._replace(types=("object",)),
    "required": _Value(
        lambda given: isinstance(given, list) and all(isinstance(name, str) for name in given),
        "a list of names in properties",
        ("object",),
    ),
    "additionalProperties": _SCHEMA._replace(types=("object",)),
    "items": _SCHEMA._replace(types=("array",)),
    "prefixItems": _SCHEMAS._replace(types=("array",)),
    "minItems": _COUNT._replace(types=("array",)),
    "maxItems": _COUNT._replace(types=("array",)),
    "minLength": _COUNT._replace(types=("string",)),
    "maxLength": _COUNT._replace(types=("string",)),
    "format": _Value(lambda given: given in FORMATS, f"one of {', '.join(FORMATS)}", ("string",)),
    "minimum": _LIMIT,
    "maximum": _LIMIT,
    "exclusiveMinimum": _LIMIT,
    "exclusiveMaximum": _LIMIT,
    "$ref": _Value(lambda given: isinstance(given, str) and bool(_REFERENCE.fullmatch(given)), "#/$defs/ and a name"),
    "anyOf": _SCHEMAS,
    "oneOf": _SCHEMAS,
    "allOf": _Value(lambda given: isinstance(given, list) and len(given) == 1, "a list of one schema"),
    "enum": _Value(
        lambda given: isinstance(given, list) and bool(given) and all(map(_is_plain, given)),
        "a list of texts, numbers, true, false or null",
    ),
    "const": _Value(_is_plain, "a text, a number, true, false or null"),
    "$defs": _NAMED,
    "definitions": _NAMED,
}
_ALONE = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")
"""Keywords beside which xgrammar ignores all others."""
_RANGES = (("minItems", "maxItems"), ("minLength", "maxLength"), ("minimum", "maximum"))
_ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator"),
        *("$schema", "$id", "$comment"),
    }
)
"""Keywords that say nothing about which texts are valid."""


def checked_schema(schema: Json, path: Path) -> str:
    """Returns a schema as compact JSON, if answers can be held to it.

    Raises:
        BadRequest: it is invalid, too large, or has a keyword that is not supported; names its path, below ``path``.
    """
    try:
        text = json.dumps(schema, separators=(",", ":"))
    except RecursionError:
        raise _refused(path, "is nested too deeply") from None
    if len(text) > MAX_CHARS:
        raise _refused(path, f"may have at most {MAX_CHARS} characters, not {len(text)}")
    given = {place: schema[place] for place in _DEFINITIONS if isinstance(schema.get(place), dict)}
    definitions = {f"#/{place}/{name}": each for place, named in given.items() for name, each in named.items()}
    stack: list[tuple[Path, Any, int]] = [(path, schema, 0)]
    while stack:
        where, part, depth = stack.pop()
        _check(where, part, depth, definitions)
        stack += [((*where, *name), each, depth + 1) for name, each in _parts(part)]
    same = {name: set(_same(each)) for name, each in definitions.items()}
    try:
        TopologicalSorter(same).prepare()
    except CycleError as error:
        raise _refused(path, f"says of {error.args[1][0]} only that it is itself") from None
    return text


def _check(path: Path, schema: Any, depth: int, definitions: Mapping[str, Any]) -> None:
    """Checks a schema, without those inside it.

    Raises:
        BadRequest: it is invalid or not supported.
    """
    if not isinstance(schema, dict):
        raise _refused(path, "must be a schema: an object")
    if depth > MAX_DEPTH:
        raise _refused(path, f"is nested in more than {MAX_DEPTH} schemas")
    alone = next((keyword for keyword in _ALONE if keyword in schema), None)
    for keyword in sorted(schema.keys() - _ANNOTATIONS, key=lambda keyword: (keyword != "type", keyword)):
        where, value, given = (*path, keyword), _KEYWORDS.get(keyword), schema[keyword]
        if value is None:
            raise _refused(where, "is not supported: no answer can be held to it", "unsupported_parameter")
        if not value.fits(given):
            raise _refused(where, f"must be {value.allowed}")
        if keyword in _DEFINITIONS:
            if depth:
                raise _refused(where, "can only be at the top of the schema")
        elif alone not in (None, keyword) and (keyword != "type" or alone not in ("enum", "const")):
            raise _refused(where, f"cannot be beside {alone}")
        if value.types and not any(name in schema.get("type", ()) for name in value.types):
            raise _refused(where, f"is only for type {' or '.join(value.types)}")
    if any(name not in schema.get("properties", ()) for name in schema.get("required", ())):
        raise _refused((*path, "required"), f"must be {_KEYWORDS['required'].allowed}")
    for least, most in _RANGES:
        if least in schema and most in schema and schema[least] > schema[most]:
            raise _refused((*path, least), f"is above {most}")
    if "$ref" in schema and schema["$ref"] not in definitions:
        raise _refused((*path, "$ref"), "refers to no schema in $defs or definitions")


def _parts(schema: Json) -> Iterator[tuple[Path, Any]]:
    """Yields each schema directly inside a schema, with its path."""
    for keyword in ("properties", *_DEFINITIONS):
        for name, each in schema.get(keyword, {}).items():
            yield (keyword, name), each
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for index, each in enumerate(schema.get(keyword, ())):
            yield (keyword, index), each
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            yield (keyword,), schema[keyword]


def _same(schema: Json) -> Iterator[str]:
    """Yields the definitions whose texts are whole texts of a schema. A definition that is among its own has no text:
    the engine would have no token to choose."""
    if "$ref" in schema:
        yield schema["$ref"]
    for keyword in ("anyOf", "oneOf", "allOf"):
        for each in schema.get(keyword, ()):
            yield from _same(each)


def _refused(path: Path, why: str, code: str | None = None) -> BadRequest:
    return BadRequest(f"{dotted(path)} {why}", dotted(path), code)
