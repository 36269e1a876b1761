"""Context variables of the current task: the search and the client it works for. Tasks it starts inherit them."""

from contextvars import ContextVar

SEARCH_ID: ContextVar[str | None] = ContextVar("search_id", default=None)
"""Id of the search; part of every log record of the task (`deployments.telemetry.logs`)."""

CLIENT_KEY: ContextVar[str] = ContextVar("client_key", default="none")
"""The first `KEY_DIGITS` digits of the digest of the request's API key; ``none`` where no key is required."""

KEY_DIGITS = 8
