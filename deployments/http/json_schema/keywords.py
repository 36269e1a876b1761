"""Keywords of JSON Schema: those to which answers can be held, with the values that they may have, and the others."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from deployments.http.json_schema.forms import ANNOTATIONS, FORMATS, MAX_NUMBER, TYPES, is_never

MAX_COUNT = 100_000
MAX_LEAST = 500
"""Maximum of lower bounds. Until a text has reached its bound, the engine's memory for it grows with its square."""
DEFINITIONS = ("$defs", "definitions")


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
_CHOICES = _Value(
    lambda given: isinstance(given, list) and not all(map(is_never, given)),
    "a list of schemas, at least one of which can be satisfied",
)
_NAMED = _Value(lambda given: isinstance(given, dict), "an object of schemas")
_COUNT = _Value(lambda given: type(given) is int and 0 <= given <= MAX_COUNT, f"an integer from 0 to {MAX_COUNT}")
_LEAST = _Value(lambda given: type(given) is int and 0 <= given <= MAX_LEAST, f"an integer from 0 to {MAX_LEAST}")
_LIMIT = _Value(
    lambda given: type(given) in (int, float) and abs(given) <= MAX_NUMBER,
    "a number from -2^53 to 2^53",
    ("number", "integer"),
)
KEYWORDS: Mapping[str, _Value] = {
    "type": _Value(_is_type, f"one or more of {', '.join(TYPES)}"),
    "properties": _NAMED._replace(types=("object",)),
    "required": _Value(
        lambda given: isinstance(given, list) and all(isinstance(name, str) for name in given),
        "a list of names in properties",
        ("object",),
    ),
    "additionalProperties": _SCHEMA._replace(types=("object",)),
    "minProperties": _LEAST._replace(types=("object",)),
    "maxProperties": _COUNT._replace(types=("object",)),
    "items": _SCHEMA._replace(types=("array",)),
    "prefixItems": _SCHEMAS._replace(types=("array",)),
    "minItems": _LEAST._replace(types=("array",)),
    "maxItems": _COUNT._replace(types=("array",)),
    "minLength": _LEAST._replace(types=("string",)),
    "maxLength": _COUNT._replace(types=("string",)),
    "format": _Value(lambda given: given in FORMATS, f"one of {', '.join(FORMATS)}", ("string",)),
    "minimum": _LIMIT,
    "maximum": _LIMIT,
    "exclusiveMinimum": _LIMIT,
    "exclusiveMaximum": _LIMIT,
    "$ref": _Value(lambda given: isinstance(given, str), "a reference such as #/$defs/name"),
    "anyOf": _CHOICES,
    "oneOf": _CHOICES,
    "allOf": _SCHEMAS,
    "enum": _Value(
        lambda given: isinstance(given, list) and bool(given) and all(map(_is_plain, given)),
        "a list of texts, numbers, true, false or null, of its type",
    ),
    "const": _Value(_is_plain, "a text, a number, true, false or null"),
    "$defs": _NAMED,
    "definitions": _NAMED,
}
UNHELD = frozenset(
    {
        *("additionalItems", "contains", "dependencies", "dependentRequired", "dependentSchemas", "else", "if"),
        *("maxContains", "minContains", "multipleOf", "not", "pattern", "patternProperties", "propertyNames", "then"),
        *("unevaluatedItems", "unevaluatedProperties", "uniqueItems"),
        *("$dynamicRef", "$recursiveRef", "disallow", "divisibleBy", "extends"),
    }
)
"""Keywords that constrain an answer, and to which none can be held."""
READ = ANNOTATIONS | KEYWORDS.keys() | UNHELD
COMBINED = ("$ref", "anyOf", "oneOf", "allOf")
ALONE = (*COMBINED, "enum", "const")
"""Keywords beside which xgrammar ignores all others."""
RANGES = (
    ("minItems", "maxItems"),
    ("minLength", "maxLength"),
    ("minProperties", "maxProperties"),
    ("minimum", "maximum"),
)
