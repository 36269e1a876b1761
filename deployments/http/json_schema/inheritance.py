"""Objects that ``allOf`` puts together, as generators write inheritance and intersections, as one object.

xgrammar holds a text to one schema of an ``allOf``. Objects that name different properties, and say nothing of others,
together admit what one object with all of the properties admits.
"""

from collections.abc import Iterator
from typing import Any

from deployments.http.json_schema.forms import ANNOTATIONS, Json
from deployments.http.json_schema.keywords import READ
from deployments.http.json_schema.references import Pointer, References, fragment_of

MAX_PARTS = 64
_SAYS = {"type", "properties", "required", "additionalProperties", "unevaluatedProperties"}


def as_one_object(given: Json, pointer: Pointer, references: References) -> Json:
    """Returns one object in place of an ``allOf`` of objects; any other schema as it is. ``pointer``: of the schema."""
    if not isinstance(given.get("allOf"), list):
        return given
    parts: list[tuple[Pointer, Json]] = []
    for part in _parts(given, pointer, references):
        parts.append(part)
        if len(parts) > MAX_PARTS or not _is_open_object(part[1]):
            return given
    places = [(name, place) for place, part in parts for name in part.get("properties", ())]
    if len(parts) < 2 or len(dict(places)) < len(places):
        return given
    return {keyword: value for keyword, value in given.items() if keyword in ANNOTATIONS or keyword not in READ} | {
        "type": "object",
        "properties": {name: {"$ref": fragment_of((*place, "properties", name))} for name, place in places},
        "required": list(dict.fromkeys(name for _, part in parts for name in part.get("required", ()))),
    }


def _parts(given: Any, pointer: Pointer, references: References) -> Iterator[tuple[Pointer, Any]]:
    """Yields the schemas that ``given`` combines, with their pointers: members of ``allOf``, however deep, and what
    references name. A schema that only combines or refers to others is left out."""
    stack = [(pointer, given)]
    seen: set[Pointer] = set()
    while stack:
        place, part = stack.pop()
        if place in seen:
            continue
        seen.add(place)
        if not isinstance(part, dict) or part.keys() & READ - ANNOTATIONS - {"allOf", "$ref", "definitions", "$defs"}:
            yield place, part
        if isinstance(part, dict):
            members = part.get("allOf")
            for index, member in reversed(list(enumerate(members if isinstance(members, list) else ()))):
                stack.append(((*place, "allOf", index), member))
            named = references.pointer(part["$ref"]) if isinstance(part.get("$ref"), str) else None
            if named is not None:
                stack.append((named, references.at(named)))


def _is_open_object(part: Any) -> bool:
    """Whether a schema names properties of objects, and says nothing of others."""
    if not isinstance(part, dict) or part.get("type", "object") != "object":
        return False
    required = part.get("required", [])
    return (
        not part.keys() & READ - ANNOTATIONS - _SAYS - {"allOf", "$ref", "definitions", "$defs"}
        and isinstance(part.get("properties", {}), dict)
        and part.get("additionalProperties", True) in (True, {})
        and isinstance(part.get("unevaluatedProperties", True), bool)
        and isinstance(required, list)
        and all(isinstance(name, str) for name in required)
    )
