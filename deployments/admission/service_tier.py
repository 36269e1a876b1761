"""OpenAI's ``service_tier``: whose requests yield to those of others."""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import Field

FLEX = "flex"
"""Of lower priority: let in where places are left, served behind all others, with the same answer."""
DEFAULT = "default"

ServiceTier = Annotated[
    Literal["auto", "default", "flex", "fast", "priority", "scale", "ultrafast"],
    Field(description="flex: of lower priority, let in where places are left. All others of OpenAI's are default."),
]
"""The words that OpenAI's clients know."""
_MAY_SAY_FLEX = re.compile(rb'"service_tier"\s*:\s*"flex"')


def may_ask_flex(body: bytes) -> bool:
    """Whether a request has to be parsed to know: costs next to nothing, however long it is."""
    return _MAY_SAY_FLEX.search(body) is not None


def asks_flex(body: bytes) -> bool:
    """Whether a request is flex, told before it has a place. What is no request is refused when it has one."""
    return _parsed(body).get("service_tier") == FLEX


def flex_unless_said(body: bytes) -> bytes:
    """A request that is flex where it names no tier of its own; null is none. What is no JSON object stays as it is."""
    given = _parsed(body)
    if not given or given.get("service_tier") is not None:
        return body
    return json.dumps({**given, "service_tier": FLEX}).encode()


def _parsed(body: bytes) -> dict[str, Any]:
    """Empty where it is no JSON object."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}
