"""The page /docs, and the request bodies on it.

FastAPI does not know the bodies: handlers parse them, to name the invalid field. Its own page would load scripts from
another host, and they could do with the endpoint whatever the page can. This one loads the files that vLLM ships.
"""

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from starlette.responses import Response

from search.settings import search_schema
from search.strategies.base import Strategy
from search.strategies.catalog import Catalog

FILES = "entrypoints/serve/instrumentator/static"
"""Folder of Swagger UI in the package of vLLM, which is looked up without importing it."""
CONTENT_SECURITY_POLICY = "default-src 'self' 'unsafe-inline' data:"
"""Browsers load nothing of the page from another host."""


def add_page(app: FastAPI) -> None:
    """Adds the page /docs and its files, where vLLM is installed."""
    package = find_spec("vllm")
    if package is None or package.origin is None:
        return
    app.mount("/docs/files", StaticFiles(directory=Path(package.origin).parent / FILES, check_dir=False))

    async def documentation(request: Request) -> Response:
        prefix = request.scope.get("root_path", "").rstrip("/")
        page = get_swagger_ui_html(
            openapi_url=f"{prefix}{app.openapi_url}",
            title=app.title,
            swagger_js_url=f"{prefix}/docs/files/swagger-ui-bundle.js",
            swagger_css_url=f"{prefix}/docs/files/swagger-ui.css",
            swagger_favicon_url="data:,",
            # By default Swagger UI sends the document's address to a validator on another host.
            swagger_ui_parameters={"validatorUrl": None},
        )
        page.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
        return page

    app.add_route("/docs", documentation, include_in_schema=False)


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
