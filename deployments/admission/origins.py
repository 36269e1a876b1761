"""Refuses requests from web pages that are not allowed to use the endpoint; answers CORS requests of allowed ones.

A page that a user opens runs on the user's machine, so without API keys it reaches what that machine reaches: by
cross-site requests, whose replies it cannot read, and by DNS rebinding, after which the endpoint is of its own origin.
A key stops both, because a page does not have it.
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.admission.auth import OPEN_PATHS, PAGE_PATH, ApiKeys
from deployments.admission.errors import Forbidden
from deployments.admission.route_path import route_path

EVERY_ORIGIN = "*"
METHODS = ("GET", "POST", "DELETE")
READABLE_HEADERS = ("Retry-After", "X-Request-Id")
"""Reply headers that OpenAI's clients read, and that a browser hides from a page unless told otherwise."""


class CheckOrigin:
    """ASGI middleware before the check of the API key: browsers send none with the preflight of a request.

    Without API keys it refuses requests by their ``Host`` and for pages of other origins. Addresses are accepted as
    ``Host``, because DNS rebinding needs a name. With keys it refuses nothing.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys, allowed: Collection[str] = (), host: str | None = None) -> None:
        """``allowed``: origins whose pages may use the endpoint. ``host``: the host at which the endpoint listens."""
        self._app = app
        self._keys = keys
        self._allowed = frozenset(allowed)
        self._names = {"localhost", (host or "localhost").lower(), *(urlsplit(each).hostname for each in allowed)}
        self._for_pages = CORSMiddleware(
            app,
            allow_origins=self._allowed,
            allow_methods=METHODS,
            allow_headers=["*"],
            allow_private_network=True,
            expose_headers=READABLE_HEADERS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        is_allowed = EVERY_ORIGIN in self._allowed or origin in self._allowed
        if not is_allowed and not self._keys.wanted and (refusal := self._refusal(scope, headers)):
            await refusal.response()(scope, receive, send)
            return
        await (self._for_pages if is_allowed else self._app)(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> Forbidden | None:
        if route_path(scope) not in OPEN_PATHS:
            for host in headers.getlist("host"):
                if not self._is_ours(host):
                    message = f"this endpoint has no API keys, so it does not answer to the host name {host[:100]!r}"
                    return Forbidden(
                        f"{message}; to allow the name, add its origin to http.allowed_origins", code="host_not_allowed"
                    )
        origin = headers.get("origin")
        host = headers.get("host", "").lower()
        # The scheme may differ: a proxy in front may add TLS.
        is_own = origin in (None, f"http://{host}", f"https://{host}")
        is_cross_site = headers.get("sec-fetch-site") == "cross-site"
        # A link on any page may lead to ours: that page sees nothing of it.
        is_link = route_path(scope) == PAGE_PATH and headers.get("sec-fetch-mode") == "navigate"
        if not is_own or (is_cross_site and not is_link):
            page = "this page" if origin is None else f"a page of {origin[:100]!r}"
            message = f"this endpoint has no API keys, so {page} may not use it"
            return Forbidden(
                f"{message}; to allow it, add its origin to http.allowed_origins", code="origin_not_allowed"
            )
        return None

    def _is_ours(self, host: str) -> bool:
        """Whether a ``Host`` header is an address or one of our names."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name not in self._names:
                ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
