"""Ratio of the two sides of a benchmark over several rounds, with its confidence interval."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import sem, t

CONFIDENCE = 0.95


class Ratio(NamedTuple):
    """Geometric mean of the rounds' ratios, with its 95% interval."""

    ratio: float
    low: float
    high: float

    @property
    def as_json(self) -> dict[str, Any]:
        return {"ratio": round(self.ratio, 3), "interval": [round(self.low, 3), round(self.high, 3)]}

    def __str__(self) -> str:
        return f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f})"


def ratio_with_interval(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Ratio of the first number of a pair to the second, one pair per round.

    The interval is Student's t on the logarithms of the ratios, which takes the rounds as independent.

    Raises:
        ValueError: there are fewer than two pairs, or a number is not positive.
    """
    if len(pairs) < 2:
        raise ValueError("the interval of a ratio needs at least two rounds")
    if min(map(min, pairs)) <= 0:
        raise ValueError("a ratio needs positive numbers")
    logs = np.log([first / second for first, second in pairs])
    mean = float(logs.mean())
    margin = float(t.ppf(0.5 + CONFIDENCE / 2, len(pairs) - 1)) * float(sem(logs))
    return Ratio(*(float(np.exp(bound)) for bound in (mean, mean - margin, mean + margin)))
