"""Paired bootstrap: the difference of two strategies on the same problems."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000
CONFIDENCE = 0.95


class Difference(NamedTuple):
    """Mean difference over problems, second minus first, with a percentile interval (95% by default)."""

    problems: int
    mean: float
    low: float
    high: float


def paired_bootstrap(
    first: Mapping[str, float], second: Mapping[str, float], seed: int = 0, confidence: float = CONFIDENCE
) -> Difference:
    """Compares two strategies on the problems that both have. Problems are resampled, each with both of its values.

    Source: Efron and Tibshirani 1993, "An introduction to the bootstrap", percentile intervals.

    Raises:
        ValueError: there is no problem that both have.
    """
    both = sorted(first.keys() & second.keys())
    if not both:
        raise ValueError("there is no problem that both strategies have")
    differences = np.array([second[problem] - first[problem] for problem in both])
    # Problems of equal difference are interchangeable: drawing their number is drawing them.
    values, counts = np.unique(differences, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(both), counts / len(both), size=RESAMPLES)
    means = drawn @ values / len(both)
    low, high = np.quantile(means, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return Difference(len(both), float(differences.mean()), float(low), float(high))
