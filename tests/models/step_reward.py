"""A reward that needs no model; the SmolLM2 test names it in `prm.function`."""

from collections.abc import Sequence


def reward(question: str, steps: Sequence[str]) -> float:
    """Higher for a step with more digits of its own than of the question's; it does not check arithmetic."""
    digits = sum(letter.isdigit() for letter in steps[-1])
    return (1 + digits) / (2 + digits + len(steps[-1].split()))
