"""Authentication by API key; without configured keys every request is accepted."""

import hmac
import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.admission.errors import Forbidden, Unauthorized
from deployments.admission.keys import key_digest, store_owner
from deployments.admission.route_path import route_path
from deployments.config import KeyRecord
from deployments.store import ANONYMOUS
from deployments.telemetry.context import CLIENT_KEY, KEY_DIGITS

OPEN_PATHS = frozenset({"/health"})
"""Paths that a load balancer requests without a key."""
PAGE_PATH = "/"
"""Path of the web page: it loads without a key, and asks for one."""
PAGE_FILES = "/page/"
"""Where the files of the page are."""

FORWARDED = (b"x-forwarded-for", b"forwarded", b"via", b"x-real-ip")
"""Headers that proxies add."""


def key_of(scope: Scope) -> KeyRecord | None:
    """Returns the record of the request's API key; None where no key is required."""
    record: KeyRecord | None = scope.get("state", {}).get("key")
    return record


def check_operator(scope: Scope) -> None:
    """Checks that a request is the operator's: its key says so, or no key is required and it comes from this machine.

    Raises:
        Forbidden: it is not.
    """
    key = key_of(scope)
    host, *_ = scope.get("client") or ("",)
    # What a proxy on this machine passes on comes from elsewhere.
    is_forwarded = any(name in FORWARDED for name, _ in scope["headers"])
    is_local = (is_loopback(host) and not is_forwarded) or is_job(scope)
    if not (is_local if key is None else key.operator):
        raise Forbidden(
            "only the operator may read this: use a key marked as operator; without keys, connect from loopback"
        )


def is_job(scope: Scope) -> bool:
    """Whether a request came by a Serve handle, from a batch or another job on the cluster (`AsJob`)."""
    return bool(scope.get("state", {}).get("job"))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches, or has, the address ``host``."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


class ApiKeys:
    """The API keys accepted now.

    Before the first `replace` no key is accepted. After a `replace` with no keys no key is required;
    `deployments.startup.access` decides whether that is allowed.
    """

    def __init__(self, records: Iterable[KeyRecord] | None = None) -> None:
        self._known: dict[bytes, KeyRecord] | None = None
        if records is not None:
            self.replace(records)

    def replace(self, records: Iterable[KeyRecord]) -> None:
        """Accepts these keys only, from now on; requests already admitted continue."""
        self._known = {record.digest.encode("ascii"): record for record in records}

    def __repr__(self) -> str:
        return f"ApiKeys({'not set yet' if self._known is None else f'{len(self._known)} keys'})"

    @property
    def told(self) -> bool:
        """Whether `replace` was called."""
        return self._known is not None

    @property
    def wanted(self) -> bool:
        """Whether a request without a key is refused."""
        return self._known is None or bool(self._known)

    def record(self, key: str) -> KeyRecord | None:
        """Returns the record of ``key``; None for an unknown key. Every unknown key takes the same time."""
        digest = key_digest(key).encode("ascii")
        found = None
        # No early exit: the response time must not reveal which key matched.
        for known, record in (self._known or {}).items():
            if hmac.compare_digest(digest, known):
                found = record
        return found

    def owned_by(self, owner: str) -> KeyRecord | None:
        """Returns the key record of a store owner; None for the anonymous owner where no key is required.

        Raises:
            Unauthorized: the owner's key is no longer accepted.
        """
        if owner == ANONYMOUS and not self.wanted:
            return None
        for record in (self._known or {}).values():
            if store_owner(record) == owner:
                return record
        raise Unauthorized("the API key of this batch is no longer accepted")


class AsJob:
    """ASGI application: runs ``app`` with every request trusted as a job's, and authenticated by a key if there is one.

    The mark is in the state of the scope, which nothing that a client sends can reach.
    """

    def __init__(self, app: ASGIApp, record: KeyRecord | None) -> None:
        self._app = app
        self._record = record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["job"] = True
        if self._record is not None:
            _set_key(scope, self._record)
        await self._app(scope, receive, send)


class RequireKey:
    """ASGI middleware: answers 401 to requests without a valid key, except on `OPEN_PATHS` and those of the page."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys.wanted or _is_open(route_path(scope)):
            await self._app(scope, receive, send)
            return
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and (record := self._keys.record(key.strip())) is not None:
            _set_key(scope, record)
            await self._app(scope, receive, send)
            return
        message = "the API key is not valid" if key else "an API key is required: send Authorization: Bearer <key>"
        await Unauthorized(message).response()(scope, receive, send)


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path == PAGE_PATH or path.startswith(PAGE_FILES)


def _set_key(scope: Scope, record: KeyRecord) -> None:
    """Stores the key's record in the request's scope and the start of its digest in `CLIENT_KEY`."""
    scope.setdefault("state", {})["key"] = record
    CLIENT_KEY.set(record.digest[:KEY_DIGITS])
