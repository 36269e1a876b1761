"""What the programs of all clients ask, and how they tell what they were answered."""

import json
from pathlib import Path

QUESTION = "Start with 41. Multiply by 3. Add 229. Subtract 39. What is the result?"
SEED = 7


def tell(said: dict[str, str], file: str) -> None:
    """``said``: each text by the way in which it was asked for."""
    Path(file).write_text(json.dumps(said))
