"""The endpoint for callers on the cluster, who reach it by a handle: neither HTTP nor a key, and trusted."""

import httpx
from starlette.types import ASGIApp

from deployments.admission.auth import ApiKeys, AsKey
from deployments.admission.errors import Unauthorized

JOBS = ("jobs", 0)
"""Their address: whose requests they are, where clients are told apart."""
Answer = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers and body, whole."""


class Inside:
    """Answers as the endpoint does."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        """``app``: the endpoint that wants no key. ``keys``: those of the one that does."""
        self._app = app
        self._keys = keys

    async def answer(self, method: str, path: str, body: bytes, owner: str | None = None) -> Answer:
        """``owner``: asked as whoever the store calls so, by the limits and with the caches of the key; else as one
        client of their own.

        Raises:
            httpx.InvalidURL: the path is none.
        """
        app = self._app
        try:
            if owner is not None and (record := self._keys.owned_by(owner)) is not None:
                app = AsKey(app, record)
        except Unauthorized as error:
            return error.status, [], bytes(error.response().body)
        transport = httpx.ASGITransport(app, client=JOBS, raise_app_exceptions=False)
        url = httpx.URL("http://controller").join(path)
        headers = {"content-type": "application/json"}
        reply = await transport.handle_async_request(httpx.Request(method, url, content=body, headers=headers))
        return reply.status_code, reply.headers.multi_items(), await reply.aread()
