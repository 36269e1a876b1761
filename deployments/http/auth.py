"""API keys: who may come in at all."""

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.http.errors import Unauthorized

ENVIRONMENT = "BANYAN_API_KEYS"
OPEN_PATHS = frozenset({"/health"})
"""What a load balancer asks without a key."""


class ApiKeys:
    """The keys that are accepted, kept as digests; none at all means that no key is wanted.

    Raises:
        ValueError: a key contains what an HTTP header cannot carry.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        plain = set(keys)
        for key in plain:
            if not key.isascii() or not key.isprintable() or " " in key:
                raise ValueError("an API key may contain printable ASCII without spaces only")
        self._digests = tuple(_digest(key) for key in sorted(plain))

    @classmethod
    def load(cls, file: Path | None, environment: Mapping[str, str] = os.environ) -> "ApiKeys":
        """Keys from ``file`` (one a line, ``#`` begins a comment) and from ``BANYAN_API_KEYS``
        (separated by commas).

        Raises:
            OSError: the file cannot be read.
            ValueError: a file or variable is given and holds no key, which would open the endpoint
                to all although keys were asked for.
        """
        keys: list[str] = []
        if file is not None:
            lines = (line.split("#", 1)[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
            keys += [line for line in lines if line]
            if not keys:
                raise ValueError(f"http.api_keys_file {file} holds no key")
        if given := environment.get(ENVIRONMENT):
            named = [key.strip() for key in given.split(",") if key.strip()]
            if not named:
                raise ValueError(f"{ENVIRONMENT} is set and holds no key")
            keys += named
        return cls(keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def __repr__(self) -> str:
        return f"ApiKeys({len(self._digests)} keys)"

    def accepts(self, key: str) -> bool:
        """Whether ``key`` is one of ours; takes the same time for every wrong one."""
        digest = _digest(key)
        # No early exit: which key matched must not show in the time.
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0


class RequireKey:
    """ASGI middleware: answers 401 to every request without a good key, except on `OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._keys.accepts(key.strip()):
            await self._app(scope, receive, send)
            return
        message = "the API key is wrong" if key else "an API key is needed: Authorization: Bearer <key>"
        await Unauthorized(message).response()(scope, receive, send)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
