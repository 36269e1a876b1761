"""The question that all clients send, and how their programs report the texts of the replies."""

import json
from pathlib import Path

QUESTION = "Start with 41. Multiply by 3. Add 229. Subtract 39. What is the result?"
SEED = 7


def report(texts: dict[str, str], file: str) -> None:
    """Writes the texts of the replies, by route, to ``file``."""
    Path(file).write_text(json.dumps(texts))
