"""Request bodies for the OpenAPI page. FastAPI does not know them: handlers parse bodies, to name the invalid field."""

from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from search.settings import search_schema
from search.strategies.base import Strategy
from search.strategies.catalog import Catalog


def search_body(model: type[BaseModel], strategies: Catalog) -> dict[str, Any]:
    """Returns a request body whose ``search`` field has one alternative per strategy. Cached: do not modify it."""
    return _search_body(model, tuple(strategies.items()))


@lru_cache(maxsize=16)  # the schemas of all strategies take tens of milliseconds, and several routes need them
def _search_body(model: type[BaseModel], strategies: tuple[tuple[str, type[Strategy]], ...]) -> dict[str, Any]:
    schema = model.model_json_schema()
    search = search_schema(dict(strategies))
    schema["$defs"] = {**schema.get("$defs", {}), **search.pop("$defs")}
    schema["properties"]["search"] = search
    return _body(schema)


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    return _body(model.model_json_schema())


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _inlined(schema)}}}}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Replaces references by their definitions: OpenAPI looks for these at the document's root, where they are not."""
    definitions = schema.get("$defs", {})

    def resolved(part: Any) -> Any:
        if isinstance(part, dict):
            if name := str(part.get("$ref", "")).removeprefix("#/$defs/"):
                return resolved(definitions[name])
            return {key: resolved(value) for key, value in part.items() if key not in ("$defs", "discriminator")}
        return [resolved(member) for member in part] if isinstance(part, list) else part

    inlined = resolved(schema)
    assert isinstance(inlined, dict)
    return inlined
