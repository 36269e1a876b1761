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

    Each solution is its steps, first step first, and its value, from -1 to 1. It gives the step at place d of L,
    counted from 0, ``max((d + 1) / L, 0.1)`` of its value, and a step has the sum of what it is given; except that
    what is positive stays so whatever wrong solution follows, and a right one overrides what was negative. So a step
    below which a right solution lies has the sum of what right ones give it, any other the sum of what wrong ones do.
    """
    worth: dict[Place, float] = {}
    for path, value in solutions:
        for number, step in enumerate(path, start=1):
            gain = max(number / len(path), MIN_BACKUP_WEIGHT) * value
            known = worth.get(step)
            if known is None or (known < 0 < gain):
                worth[step] = gain
            elif not (known > 0 > gain):
                worth[step] = known + gain
    return worth
