"""Answers that are JSON: of a path that a JSON schema holds, the whole text is the answer."""

import json
from typing import Any

from search.tools.json_number import json_number


def json_answer(text: str) -> str | None:
    """The JSON of a text in canonical form: sorted keys, no spaces, ``5`` for ``5.0``. None if the text is not JSON,
    such as a text that a limit cut off."""
    try:
        value = json.loads(text, parse_float=json_number, parse_constant=_refused)
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
