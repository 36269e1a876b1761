"""Serves the page (`deployments.http.page`) at ``/``, and its files below ``/page/``."""

import hashlib
import os

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from deployments.admission.auth import ApiKeys
from deployments.http.page import FOLDER, POLICY, document

HEADERS = {
    "Cache-Control": "no-cache",  # browsers keep the files, and ask whether they are still the same
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
"""Media types of the files. No other file is served, and none depends on the machine's own list of types."""


class _Files(StaticFiles):
    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        kind = TYPES.get(os.path.splitext(full_path)[1])
        if kind is None:
            raise HTTPException(404)
        response.headers.update(HEADERS)
        if "content-type" in response.headers:
            response.headers["content-type"] = f"{kind}; charset=utf-8"
        return response


def add_page(app: FastAPI, keys: ApiKeys | None, keeps: bool) -> None:
    """Adds the page. ``keys``: those that requests need. ``keeps``: whether searches can be stored."""
    app.mount("/page", _Files(directory=FOLDER))

    async def page(request: Request) -> Response:
        prefix = request.scope.get("root_path", "").rstrip("/")
        content = document(f"{prefix}/", keys is not None and keys.wanted, keeps)
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {**HEADERS, "ETag": tag}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type="text/html")

    app.add_route("/", page, methods=["GET"], include_in_schema=False)
