"""Checks the JSON schema of an answer before a search begins, and writes it as the engine reads it.

Supported is the part of JSON Schema to which vLLM's grammars (xgrammar 0.2) hold a text, within bounds that keep
compiling a grammar to milliseconds, and what says the same in other forms (`forms`). A keyword that would
have to hold and cannot is refused, since xgrammar ignores some in silence. One that constrains nothing is left out.
"""

import json
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import chain, count
from typing import Any, NamedTuple

from deployments.admission.errors import BadRequest
from deployments.http.fields import MAX_UNKNOWN, nearest
from deployments.http.json_body import Path, dotted
from deployments.http.json_schema.forms import (
    ANNOTATIONS,
    TYPES,
    Json,
    is_never,
    supported_form,
    types_of,
    types_of_values,
)
from deployments.http.json_schema.inheritance import as_one_object
from deployments.http.json_schema.keywords import ALONE, COMBINED, DEFINITIONS, KEYWORDS, RANGES, READ, UNHELD
from deployments.http.json_schema.references import Pointer, References

MAX_CHARS = 16_384
"""Maximum length of a schema as compact JSON. For the engine it may be twice as long, since what references name is
written once more."""
MAX_DEPTH = 16
"""Maximum depth of schemas inside schemas."""
MAX_SCHEMAS = 4096
"""Maximum number of schemas inside a schema as it is written for the engine, where what references name may be repeated
for each of them."""


class CheckedSchema(NamedTuple):
    """A schema to which answers can be held."""

    text: str
    """As compact JSON, for the engine."""
    unheld: tuple[str, ...] = ()
    """Keywords to which no answer is held, since they constrain nothing here."""


def checked_schema(schema: Json, path: Path) -> CheckedSchema:
    """Returns a schema for the engine, if answers can be held to it.

    Raises:
        BadRequest: it is invalid, too large, or has a keyword that is not supported; names its path, below ``path``.
    """
    try:
        given = _compact(schema)
    except RecursionError:
        raise _refused(path, "is nested too deeply") from None
    if len(given) > MAX_CHARS:
        raise _refused(path, f"may have at most {MAX_CHARS} characters, not {len(given)}")
    reader = _Reader(schema, path)
    text = _compact(reader.read())
    if len(text) > 2 * MAX_CHARS:
        raise _refused(path, f"has {len(text)} characters with its references expanded; at most {2 * MAX_CHARS}")
    return CheckedSchema(text, tuple(reader.unheld))


class _Reader:
    """Checks one schema, and writes it as the engine reads it."""

    def __init__(self, schema: Json, path: Path) -> None:
        self._path = path
        self._references = References(schema)
        self._names: dict[Pointer, str] = {}
        """Names, in the ``$defs`` for the engine, of what references name."""
        self._known_types: dict[int, frozenset[str]] = {}
        """Types of values, by the id of the client's schema that they satisfy."""
        self._read_schemas = 0
        self.unheld: dict[str, None] = {}
        """Keywords that were left out, in order."""

    def read(self) -> Json:
        """Returns the schema for the engine. Its references are names in its ``$defs``: xgrammar follows few others.

        Raises:
            BadRequest: see `checked_schema`.
        """
        top = self._read((), self._references.at(()), 0)
        definitions: Json = {}
        while len(definitions) < len(self._names):
            pointer, name = list(self._names.items())[len(definitions)]
            definitions[name] = self._read(pointer, self._references.at(pointer), 0)
        same = {f"#/$defs/{name}": set(_same(each)) for name, each in definitions.items()} | {"#": set(_same(top))}
        try:
            TopologicalSorter(same).prepare()
        except CycleError as error:
            raise _refused(self._path, f"has a cycle of references, through {error.args[1][0]}") from None
        return top | ({"$defs": definitions} if definitions else {})

    def _read(self, pointer: Pointer, given: Any, depth: int) -> Json:
        path = (*self._path, *pointer)
        if given is True:
            return {}
        if not isinstance(given, dict):
            raise _refused(path, "must be a schema: an object")
        if depth > MAX_DEPTH:
            raise _refused(path, f"is nested in more than {MAX_DEPTH} schemas")
        self._read_schemas += 1
        if self._read_schemas > MAX_SCHEMAS:
            raise _refused(self._path, f"has more than {MAX_SCHEMAS} schemas with its references expanded")
        given = as_one_object(self._with_names(given), pointer, self._references)
        schema, origins, unheld = supported_form(given, pointer)
        self.unheld |= dict.fromkeys(f"format ({given['format']})" if each == "format" else each for each in unheld)
        schema = _with_type(self._without_unknown(path, schema))
        self._check(path, schema, origins)
        below = {keyword: (*pointer, *origins.get(keyword, (keyword,))) for keyword in schema}
        return {
            keyword: self._written(keyword, value, below[keyword], depth)
            for keyword, value in schema.items()
            if keyword not in DEFINITIONS and not (keyword == "type" and schema.keys() & set(COMBINED))
        }

    def _with_names(self, given: Json) -> Json:
        """Returns a schema with the names of its properties in place of a reference to them."""
        match given.get("propertyNames"):
            case {"$ref": str(reference)} if (named := self._references.pointer(reference)) is not None:
                return {**given, "propertyNames": self._references.at(named)}
        return given

    def _written(self, keyword: str, value: Any, pointer: Pointer, depth: int) -> Any:
        """Returns a checked keyword's value as the engine reads it."""
        match keyword:
            case "properties":
                return {name: self._read((*pointer, name), each, depth + 1) for name, each in value.items()}
            case "items" | "additionalProperties" if isinstance(value, dict):
                return self._read(pointer, value, depth + 1)
            case "prefixItems":
                return [self._read((*pointer, index), each, depth + 1) for index, each in enumerate(value)]
            case "anyOf" | "oneOf":
                return [
                    self._read((*pointer, index), each, depth + 1)
                    for index, each in enumerate(value)
                    if not is_never(each)
                ]
            case "allOf":
                read = [self._read((*pointer, index), each, depth + 1) for index, each in enumerate(value)]
                saying = [each for each in read if each.keys() - ANNOTATIONS]
                if len(saying) > 1:
                    raise _refused(
                        (*self._path, *pointer),
                        "must have one schema beside annotations, or objects with different properties",
                    )
                return saying or [{}]
            case "$ref":
                return self._reference(pointer, value)
        return value

    def _reference(self, pointer: Pointer, reference: str) -> str:
        """Returns the reference to the same for the engine. ``pointer``: of the reference.

        Raises:
            BadRequest: it refers to nothing.
        """
        named = self._references.pointer(reference)
        if named is None:
            raise _refused((*self._path, *pointer), "refers to nothing in this schema")
        if not named:
            return "#"
        if named not in self._names:
            name = re.sub(r"[^\w.-]", "_", str(named[-1])) or "_"
            numbered = (f"{name}_{number}" for number in count(2))
            self._names[named] = next(each for each in chain([name], numbered) if each not in self._names.values())
        return f"#/$defs/{self._names[named]}"

    def _without_unknown(self, path: Path, schema: Json) -> Json:
        """Returns a schema without unknown keywords, which mean something to their generator alone.

        Raises:
            BadRequest: a keyword is probably a misspelt one, or there are too many.
        """
        for keyword in schema:
            if keyword in READ or keyword in self.unheld:
                continue
            if not keyword.startswith("x-") and (meant := nearest(keyword, (*KEYWORDS, *UNHELD))):
                raise _refused((*path, keyword), f"is unknown; did you mean {meant}?", "unknown_parameter")
            if len(self.unheld) >= MAX_UNKNOWN:
                raise _refused(
                    path, f"has an unknown keyword, and the whole schema more than {MAX_UNKNOWN}", "unknown_parameter"
                )
            self.unheld[keyword] = None
        return {keyword: value for keyword, value in schema.items() if keyword in READ}

    def _check(self, path: Path, schema: Json, origins: Mapping[str, Pointer]) -> None:
        """Checks the keywords of a schema, without the schemas inside it.

        Raises:
            BadRequest: it is invalid or not supported.
        """
        alone = next((keyword for keyword in ALONE if keyword in schema), None)
        for keyword in sorted(schema.keys() - ANNOTATIONS, key=lambda keyword: (keyword != "type", keyword)):
            where, value, given = (*path, *origins.get(keyword, (keyword,))), KEYWORDS.get(keyword), schema[keyword]
            if value is None:
                raise _refused(where, "is not supported: it could not be enforced", "unsupported_parameter")
            if not value.fits(given):
                raise _refused(where, f"must be {value.allowed}")
            if alone not in (None, keyword) and keyword not in ("type", *DEFINITIONS):
                raise _refused(where, f"cannot be combined with {alone} in one schema")
            if keyword in ("minLength", "maxLength") and "format" in schema:
                raise _refused(where, "cannot be combined with format in one schema")
            if value.types and not any(name in schema.get("type", ()) for name in value.types):
                raise _refused(where, f"is only for type {' or '.join(value.types)}")
        if alone and "type" in schema and not self._types_beside(schema) <= types_of(schema["type"]):
            raise _refused((*path, "type"), f"must include every type that {alone} allows")
        if any(name not in schema.get("properties", ()) for name in schema.get("required", ())):
            raise _refused((*path, "required"), f"must be {KEYWORDS['required'].allowed}")
        if schema.get("minProperties", 0) > 1 and schema.get("additionalProperties", False) is not False:
            raise _refused(
                (*path, "minProperties"),
                "can be above 1 only without additionalProperties: a name could be generated twice",
            )
        for least, most in RANGES:
            if least in schema and most in schema and schema[least] > schema[most]:
                raise _refused((*path, least), f"is above {most}")

    def _types(self, given: Any, depth: int) -> frozenset[str]:
        """Types of the values that satisfy one of the client's schemas, as far as they are plain to see."""
        if not isinstance(given, dict) or depth > MAX_DEPTH:
            return types_of(() if given is False else TYPES)
        if id(given) not in self._known_types:
            self._known_types[id(given)] = types_of(TYPES)  # for a schema inside itself
            own = types_of(given.get("type", TYPES))
            self._known_types[id(given)] = own & self._types_beside(given, depth)
        return self._known_types[id(given)]

    def _types_beside(self, schema: Json, depth: int = 0) -> frozenset[str]:
        """The same of a schema without its own type."""
        found = types_of(TYPES)
        for each in schema.items():
            match each:
                case ("anyOf" | "oneOf", list(parts)):
                    found &= frozenset().union(*(self._types(part, depth + 1) for part in parts))
                case ("allOf", list(parts)):
                    found = found.intersection(*(self._types(part, depth + 1) for part in parts))
                case ("enum", list(values)):
                    found &= types_of_values(values)
                case ("const", value):
                    found &= types_of_values([value])
                case ("$ref", str(name)) if (pointer := self._references.pointer(name)) is not None:
                    found &= self._types(self._references.at(pointer), depth + 1)
        return found


def _with_type(schema: Json) -> Json:
    """Returns a schema with the type for which its keywords are, if it names none: a value of it satisfies them."""
    if "type" in schema or any(keyword in schema for keyword in ALONE):
        return schema
    given = [set(KEYWORDS[keyword].types) for keyword in schema.keys() & KEYWORDS.keys() if KEYWORDS[keyword].types]
    types = set[str]().union(*given).intersection(*given)
    return {"type": next(name for name in TYPES if name in types), **schema} if types else schema


def _same(schema: Json) -> Iterator[str]:
    """Yields the references whose texts are whole texts of a schema. A definition that is among its own has no text:
    the engine would have no token to choose."""
    if "$ref" in schema:
        yield schema["$ref"]
    for keyword in ("anyOf", "oneOf", "allOf"):
        for each in schema.get(keyword, ()):
            yield from _same(each)


def _compact(schema: Json) -> str:
    return json.dumps(schema, separators=(",", ":"))


def _refused(path: Path, why: str, code: str | None = None) -> BadRequest:
    return BadRequest(f"{dotted(path)} {why}", dotted(path), code)
