"""Rewards that need no model; tests name them in `prm.function`."""

from collections.abc import Sequence


def reward(question: str, steps: Sequence[str]) -> float:
    """Higher for a step with more digits of its own than of the question's; it does not check arithmetic."""
    digits = sum(letter.isdigit() for letter in steps[-1])
    return (1 + digits) / (2 + digits + len(steps[-1].split()))


def solution_reward(question: str, steps: Sequence[str]) -> float:
    """The same for `small_thinker`.

    Raises:
        ValueError: a step has a word of its thinking, or a mark.
    """
    if any(word in step for step in steps for word in ("think>", "Six", "{x")):
        raise ValueError(f"the steps have thinking: {steps}")
    return reward(question, steps)
