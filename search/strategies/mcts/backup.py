"""Backup: credits the values of solutions to the steps on their paths.

Source: Wu et al. 2025, "DeepSearch" (arXiv 2509.25454).
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

MIN_BACKUP_WEIGHT = 0.1
"""Lowest share of a solution's value that backup credits to a step on its path."""

StepKey = TypeVar("StepKey", bound=Hashable)


def backed_up(solutions: Iterable[tuple[Sequence[StepKey], float]]) -> dict[StepKey, float]:
    """The backed-up value of every step on the paths of ``solutions``.

    Each solution is its steps, first step first, and its value in [-1, 1]. A step gets the ``gain`` of each solution
    below it, accumulated by ``credited``.
    """
    worth: dict[StepKey, float] = {}
    for path, value in solutions:
        for depth, step in enumerate(path, start=1):
            worth[step] = credited(worth.get(step), gain(depth, len(path), value))
    return worth


def gain(depth: int, length: int, value: float) -> float:
    """The credit that a solution of ``length`` steps gives to its step number ``depth``, counted from 1:
    ``max(depth / length, 0.1) * value``."""
    return max(depth / length, MIN_BACKUP_WEIGHT) * value


def credited(worth: float | None, more: float) -> float:
    """The new value of a step whose value was ``worth`` (None: no credit yet), after a credit of ``more``.

    Credits add up, with two exceptions: a positive value ignores negative credits, and a positive credit replaces a
    negative value. So a step above a right solution has the sum of the positive credits, and any other step the sum of
    the negative ones.
    """
    if worth is None or worth < 0 < more:
        return more
    return worth if worth > 0 > more else worth + more
