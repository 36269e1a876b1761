"""What clients were found to send, as it is kept for a test of every commit."""

import json
from collections.abc import Iterable
from typing import Any

from tests.clients.commands import ROOT

FILE = ROOT / "tests" / "unit" / "http" / "client_bodies.json"
"""By client, pairs of path and body."""


def assert_recorded(client: str, asked: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """What a client asked, by path and body, is what the file has of it."""
    sent = _distinct([[path, _normal(body)] for path, body in asked])
    assert sent == json.loads(FILE.read_text()).get(client), f"for {FILE}: {json.dumps(sent)}"


def _distinct(members: list[Any]) -> list[Any]:
    """Each once, in an order that says nothing of when it came."""
    once = {json.dumps(member, sort_keys=True): member for member in members}
    return [once[key] for key in sorted(once)]


def _normal(body: dict[str, Any]) -> Any:
    """A body as it is kept: without what an earlier reply has put into it."""

    def without(part: Any) -> Any:
        if isinstance(part, list):
            return [without(member) for member in part]
        if not isinstance(part, dict):
            return part
        turn = {name: without(value) for name, value in part.items()}
        if turn.get("role") == "assistant":
            turn |= {"content": "42"} if isinstance(turn["content"], str) else {}
            turn |= {"id": "msg_1"} if "id" in turn else {}
        if turn.get("type") == "output_text":
            turn["text"] = "42"
        return turn

    return without({**body, "model": "m"})
