"""Request bodies recorded from clients, for a test that runs with every commit."""

import json
import re
from collections.abc import Iterable
from typing import Any

from tests.clients.commands import ROOT

_IDS = re.compile(r"\b(call_)[0-9a-f]{24}|\b((?:fc|msg|resp|rs)_)[0-9a-f]{32}")
"""Those of Banyan, up to the number of a call in its message."""
FILE = ROOT / "tests" / "unit" / "http" / "client_bodies.json"
"""Pairs of path and body, by client."""


def assert_recorded(client: str, requests: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """Checks that the requests of a client (path and body) are those in the file."""
    sent = _distinct([[path, _normal(body)] for path, body in requests])
    assert sent == json.loads(FILE.read_text()).get(client), f"for {FILE}: {json.dumps(sent)}"


def _distinct(members: list[Any]) -> list[Any]:
    """Distinct values, in an order that does not depend on arrival."""
    once = {json.dumps(member, sort_keys=True): member for member in members}
    return [once[key] for key in sorted(once)]


def _normal(body: dict[str, Any]) -> Any:
    """A body as it is recorded: without values from earlier replies."""

    def without(part: Any) -> Any:
        if isinstance(part, list):
            return [without(member) for member in part]
        if not isinstance(part, dict):
            return part
        turn = {name: without(value) for name, value in part.items()}
        if turn.get("role") == "assistant":
            turn |= {"content": "42"} if isinstance(turn.get("content"), str) else {}
            turn |= {"id": "msg_1"} if "id" in turn else {}
        if turn.get("type") == "output_text":
            turn["text"] = "42"
        return turn

    return json.loads(_IDS.sub(r"\1\2", json.dumps(without({**body, "model": "m"}))))
