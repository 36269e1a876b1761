"""Paired difference in accuracy of two sides on the same problems, with an interval and a p-value."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy.stats import binomtest, norm

CONFIDENCE = 0.95


class PairedDifference(NamedTuple):
    """Difference in accuracy of two sides on the same problems."""

    problems: int
    won: int
    """Problems that only the second side has right."""
    lost: int
    """Problems that only the first side has right."""
    low: float
    high: float
    """Bounds of the difference in accuracy, second minus first."""
    p: float
    """McNemar's exact test of no difference, two-sided."""

    @property
    def difference(self) -> float:
        return (self.won - self.lost) / self.problems


def paired_difference(first: Sequence[bool], second: Sequence[bool]) -> PairedDifference:
    """Compares two sides problem by problem.

    The 95% interval is Agresti and Min's (2005, "Simple improved confidence intervals for comparing matched
    proportions"): Wald's on the paired differences with half a problem added to each of the four kinds of pairs. It
    holds even where few pairs differ.

    Raises:
        ValueError: there are no problems, or not the same number.
    """
    pairs = list(zip(first, second, strict=True))
    if not pairs:
        raise ValueError("there are no problems to compare")
    won = sum(right and not before for before, right in pairs)
    lost = sum(before and not right for before, right in pairs)
    count, more, less = len(pairs) + 2.0, won + 0.5, lost + 0.5
    difference = (more - less) / count
    spread = math.sqrt(more + less - (more - less) ** 2 / count) / count
    margin = float(norm.ppf(0.5 + CONFIDENCE / 2)) * spread
    p = float(binomtest(won, won + lost).pvalue) if won + lost else 1.0
    return PairedDifference(len(pairs), won, lost, max(-1.0, difference - margin), min(1.0, difference + margin), p)
