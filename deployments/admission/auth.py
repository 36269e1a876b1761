"""Who may come in at all: requests with a key that is known, or everybody where none is wanted."""

import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.admission.errors import Unauthorized
from deployments.admission.keys import key_digest, store_owner
from deployments.admission.route_path import route_path
from deployments.config import KeyRecord
from deployments.store import ANONYMOUS
from deployments.telemetry.context import CLIENT_KEY, KEY_DIGITS

OPEN_PATHS = frozenset({"/health"})
"""What a load balancer asks without a key."""


def key_of(scope: Scope) -> KeyRecord | None:
    """The record of the key that a request came with; None where none is wanted."""
    record: KeyRecord | None = scope.get("state", {}).get("key")
    return record


class ApiKeys:
    """The keys that are accepted at the moment.

    Until it was told which, it accepts none. Told that there are none, it wants none: whether that is
    allowed is decided before it is told (`deployments.startup.access`).
    """

    def __init__(self, records: Iterable[KeyRecord] | None = None) -> None:
        self._known: dict[bytes, KeyRecord] | None = None
        if records is not None:
            self.replace(records)

    def replace(self, records: Iterable[KeyRecord]) -> None:
        """From now on these keys and no others; requests that were let in go on."""
        self._known = {record.digest.encode("ascii"): record for record in records}

    def __repr__(self) -> str:
        return f"ApiKeys({'not told yet' if self._known is None else f'{len(self._known)} keys'})"

    @property
    def told(self) -> bool:
        return self._known is not None

    @property
    def wanted(self) -> bool:
        """Whether a request without a key is refused."""
        return self._known is None or bool(self._known)

    def record(self, key: str) -> KeyRecord | None:
        """What is known of ``key``; None when it is none of ours. Takes the same time for every wrong one."""
        digest = key_digest(key).encode("ascii")
        found = None
        # No early exit: which key matched must not show in the time.
        for known, record in (self._known or {}).items():
            if hmac.compare_digest(digest, known):
                found = record
        return found

    def owned_by(self, owner: str) -> KeyRecord | None:
        """The key of what the store says is that owner's; None where no key is wanted.

        Raises:
            Unauthorized: it is none of ours any more.
        """
        if owner == ANONYMOUS and not self.wanted:
            return None
        for record in (self._known or {}).values():
            if store_owner(record) == owner:
                return record
        raise Unauthorized("the API key of this batch is not accepted any more")


class AsKey:
    """ASGI application: ``app``, asked by who has that key."""

    def __init__(self, app: ASGIApp, record: KeyRecord) -> None:
        self._app = app
        self._record = record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _note(scope, self._record)
        await self._app(scope, receive, send)


class RequireKey:
    """ASGI middleware: answers 401 to every request without a good key, except on `OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys.wanted or route_path(scope) in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and (record := self._keys.record(key.strip())) is not None:
            _note(scope, record)
            await self._app(scope, receive, send)
            return
        message = "the API key is wrong" if key else "an API key is needed: Authorization: Bearer <key>"
        await Unauthorized(message).response()(scope, receive, send)


def _note(scope: Scope, record: KeyRecord) -> None:
    """From here on it is known whose request it is."""
    scope.setdefault("state", {})["key"] = record
    CLIENT_KEY.set(record.digest[:KEY_DIGITS])
