"""OpenAI's ``service_tier``: flex requests have a lower priority."""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import Field

FLEX = "flex"
"""Lower priority: admitted while slots are left, served after all other requests, with the same answer."""
DEFAULT = "default"

ServiceTier = Annotated[
    Literal["auto", "default", "flex", "fast", "priority", "scale", "ultrafast"],
    Field(
        description="flex: low priority, admitted only while enough slots are left. All other tiers count as default."
    ),
]
"""The values that OpenAI's clients may send."""
_FIELD = re.compile(rb'"service_tier"\s*:\s*"flex"')
_ESCAPED_LETTERS = (rb"\u005", rb"\u006", rb"\u007")
"""Beginnings of letters written as escapes (``fl\\u0065x``), in which the field may hide."""


def may_ask_flex(body: bytes) -> bool:
    """Whether a body may be a flex request, so that `asks_flex` has to parse it. Cheap for a body of any length: each
    search looks for a fixed text first."""
    return any(letter in body for letter in _ESCAPED_LETTERS) or _FIELD.search(body) is not None


def asks_flex(body: bytes) -> bool:
    """Whether a request is flex. False for an invalid body, which is refused later, when the request has a slot."""
    return _parsed(body).get("service_tier") == FLEX


def flex_unless_said(body: bytes) -> bytes:
    """Returns a body with ``service_tier`` set to flex if it is missing or null; unchanged if it is no JSON object."""
    given = _parsed(body)
    if not given or given.get("service_tier") is not None:
        return body
    try:
        return json.dumps({**given, "service_tier": FLEX}).encode()
    except RecursionError:  # deeper than any valid body
        return body


def _parsed(body: bytes) -> dict[str, Any]:
    """Returns the body's JSON object; empty if it is none."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}
