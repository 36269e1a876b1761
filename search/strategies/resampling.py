"""Resampling of particles by their weights."""

import math
from collections.abc import Sequence


def softmax(logs: Sequence[float], temperature: float) -> list[float]:
    top = max(logs)
    return shares([math.exp((log - top) / temperature) for log in logs])


def shares(weights: Sequence[float]) -> list[float]:
    """Weights normalized to a sum of 1."""
    whole = math.fsum(weights)
    return [weight / whole for weight in weights]


def effective_sample_size(weights: Sequence[float]) -> float:
    """Effective sample size of weights that sum to 1: their number if all are equal, 1 if one has all the weight."""
    return 1.0 / math.fsum(weight * weight for weight in weights)


def systematic(weights: Sequence[float], start: float, count: int | None = None) -> list[int]:
    """Systematic resampling: draws ``count`` indices from ``weights``, which sum to 1. Without ``count``, as many as
    there are weights.

    The sampling points are evenly spaced, shifted by ``start`` in [0, 1), so each index is drawn its expected number of
    times, rounded up or down."""
    count = len(weights) if count is None else count
    drawn: list[int] = []
    index, passed = 0, weights[0]
    for number in range(count):
        point = (number + start) / count
        while point >= passed and index < len(weights) - 1:
            index += 1
            passed += weights[index]
        drawn.append(index)
    return drawn
