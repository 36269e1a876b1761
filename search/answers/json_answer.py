"""Answers that are JSON: of a path that a JSON schema holds, the whole text is the answer."""

import json
from collections.abc import Sequence
from typing import Any


def json_answer(text: str) -> str | None:
    """The JSON of a text in canonical form: sorted keys, no spaces, ``5`` for ``5.0``. None if the text is not JSON,
    such as a text that a limit cut off."""
    try:
        value = json.loads(text, parse_float=_number, parse_constant=_refused)
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None


def same_texts(answers: Sequence[str]) -> list[list[int]]:
    """Indices of ``answers``, grouped by equal texts; groups and members in order of first appearance."""
    groups: dict[str, list[int]] = {}
    for index, answer in enumerate(answers):
        groups.setdefault(answer, []).append(index)
    return list(groups.values())


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 1 << 53 else value


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
