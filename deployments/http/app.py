"""The HTTP endpoint as one ASGI application: the routes of all features behind the same checks."""

import re
from copy import copy
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import Route
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from deployments.admission.auth import ApiKeys, RequireKey
from deployments.admission.middleware import Admission
from deployments.admission.normalize import Normalize
from deployments.admission.origins import CheckOrigin
from deployments.admission.proxy import WORK
from deployments.admission.refusals import CountRefusals
from deployments.http import documentation, errors, status_routes
from deployments.http.chat import routes as chat
from deployments.http.chat.schema import ChatRequest
from deployments.http.documentation import search_body
from deployments.http.endpoint import Endpoint
from deployments.http.files_and_batches import batches, files
from deployments.http.page import routes as page
from deployments.http.responses import routes as responses
from deployments.http.responses.schema import ResponsesRequest
from deployments.http.searches import routes as searches
from deployments.http.searches import stored_searches

FEATURES = (chat, searches, stored_searches, responses, files, batches, status_routes)
"""Modules whose handlers are routes of the endpoint."""


def create_app(endpoint: Endpoint, keys: ApiKeys | None) -> FastAPI:
    """Returns the endpoint as an ASGI application. Without ``keys`` it checks none, for trusted callers."""
    app = FastAPI(title="Banyan", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.endpoint = endpoint
    documentation.add_page(app)
    page.add_page(app, keys, keeps=endpoint.kept is not None)
    # Copies of finished routes: `include_router` would build each route again, which takes longer than many requests.
    for each in FEATURES:
        app.router.routes += map(copy, each.router.routes)
    admission = Admission(endpoint.searches.slots, endpoint.quotas, endpoint.loop_delay, endpoint.live)
    bodies: dict[Any, type[BaseModel]] = {
        chat.chat_completions: ChatRequest,
        searches.search: ChatRequest,
        responses.create_response: ResponsesRequest,
    }
    for route in app.routes:
        if isinstance(route, Route):
            # Starlette's pattern ends with $, which also matches before a newline: all else compares whole paths.
            route.path_regex = re.compile(route.path_regex.pattern.removesuffix("$") + r"\Z")
        if isinstance(route, APIRoute) and route.path in WORK:
            route.app = admission.guard(route.app)
        if isinstance(route, APIRoute) and route.endpoint in bodies:
            route.openapi_extra = search_body(bodies[route.endpoint], endpoint.strategies)
    errors.install(app)
    # The middleware added last runs first: normalize, count refusals, find the client's address, check the origin and
    # the key.
    if keys is not None:
        app.add_middleware(RequireKey, keys=keys)
        app.add_middleware(CheckOrigin, keys=keys, allowed=endpoint.allowed_origins, host=endpoint.host)
        if endpoint.trusted_proxies:
            app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(endpoint.trusted_proxies))
    app.add_middleware(CountRefusals, refused=endpoint.refused)
    app.add_middleware(Normalize)
    return app
