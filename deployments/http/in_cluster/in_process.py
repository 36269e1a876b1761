"""The endpoint for trusted callers inside the cluster: by a Serve handle, without HTTP and without an API key."""

import httpx
from starlette.types import ASGIApp

from deployments.admission.auth import ApiKeys, AsJob
from deployments.admission.errors import Unauthorized
from deployments.http.chat.cached_search import NO_STORE

Reply = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers and complete body."""


class InProcessEndpoint:
    """Answers requests as the HTTP endpoint does, but without the answer cache: a job may ask one question many times
    for many answers, and a long one would leave no entry of others."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        """``app``: the endpoint without a key check. ``keys``: the API keys of the HTTP endpoint."""
        self._app = app
        self._keys = keys

    async def answer(self, method: str, path: str, body: bytes, owner: str | None = None) -> Reply:
        """Answers one request.

        Args:
            owner: A store owner, whose key's limits and cache salt apply. All requests without one count as one
                client.

        Raises:
            httpx.InvalidURL: the path is malformed.
        """
        try:
            app = AsJob(self._app, None if owner is None else self._keys.owned_by(owner))
        except Unauthorized as error:
            return error.status, [], bytes(error.response().body)
        transport = httpx.ASGITransport(app, client=("", 0), raise_app_exceptions=False)
        url = httpx.URL("http://controller").join(path)
        headers = {"content-type": "application/json", "cache-control": NO_STORE}
        reply = await transport.handle_async_request(httpx.Request(method, url, content=body, headers=headers))
        return reply.status_code, reply.headers.multi_items(), await reply.aread()
