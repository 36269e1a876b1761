"""Which search and whose request the current task works for. Set where it is known
in a task; all that is started from there inherits it."""

from contextvars import ContextVar

SEARCH_ID: ContextVar[str | None] = ContextVar("search_id", default=None)
"""Appears in every warning that is logged meanwhile (`deployments.telemetry.logs`)."""

CLIENT_KEY: ContextVar[str] = ContextVar("client_key", default="none")
"""The first `KEY_DIGITS` digits of the digest of the request's API key; ``none`` where no key is wanted."""

KEY_DIGITS = 8
