"""How the values of solutions are credited to the steps on their paths.

Source: Wu et al. 2025, "DeepSearch" (arXiv 2509.25454).
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

MIN_BACKUP_WEIGHT = 0.1
"""The least share of a solution's value that a step on its path is given by backup."""

Place = TypeVar("Place", bound=Hashable)


def backed_up(solutions: Iterable[tuple[Sequence[Place], float]]) -> dict[Place, float]:
    """What every step on the paths of ``solutions`` is worth.

    Each solution is its steps, first step first, and its value, from -1 to 1. It gives each step what ``gain`` says,
    and a step has what ``credited`` makes of it.
    """
    worth: dict[Place, float] = {}
    for path, value in solutions:
        for depth, step in enumerate(path, start=1):
            worth[step] = credited(worth.get(step), gain(depth, len(path), value))
    return worth


def gain(depth: int, length: int, value: float) -> float:
    """What a solution of ``length`` steps gives its step number ``depth``, counted from 1: ``max(depth / length, 0.1)``
    of its value."""
    return max(depth / length, MIN_BACKUP_WEIGHT) * value


def credited(worth: float | None, more: float) -> float:
    """What a step is worth (None: nothing yet) after a solution below it has given it ``more``.

    It is the sum of what it was given; except that what is positive stays so whatever wrong solution follows, and a
    right one overrides what was negative. So a step below which a right solution lies has the sum of what right ones
    give it, any other the sum of what wrong ones do.
    """
    if worth is None or worth < 0 < more:
        return more
    return worth if worth > 0 > more else worth + more
