"""A reward that needs no model: what `prm.function` names in the SmolLM2 test."""

from collections.abc import Sequence


def reward(question: str, steps: Sequence[str]) -> float:
    """Higher for a step that writes more of its own digits than of the question's; no judge of arithmetic."""
    digits = sum(letter.isdigit() for letter in steps[-1])
    return (1 + digits) / (2 + digits + len(steps[-1].split()))
