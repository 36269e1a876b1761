"""What a reward may be: a number in [0, 1]. The one place that says so, for scorers, replicas and trees alike."""

import reprlib
from collections.abc import Sequence
from numbers import Real
from typing import Any

from search.errors import ScorerError


def is_reward(value: object) -> bool:
    """Whether this is a number in [0, 1]. A NaN is not: it is within no bounds."""
    return isinstance(value, Real) and bool(0 <= value <= 1)  # type: ignore[operator]  # typeshed: int and Real


def check_rewards(rewards: Any, wanted: Sequence[int], source: str) -> list[list[float]]:
    """``rewards`` as floats, once they are known to be a row for each path and as many numbers in [0, 1] as wanted.

    Args:
        rewards: whatever ``source`` gave.
        wanted: for each path, how many steps want a reward.
        source: what to call the giver in an error.

    Raises:
        ScorerError: they are not, and how; fit for a log line whatever was given.
    """
    try:
        rows = [list(row) for row in rewards]
    except TypeError:
        raise ScorerError(f"{source} gave {reprlib.repr(rewards)} for rewards") from None
    if len(rows) != len(wanted):
        raise ScorerError(f"{source} gave rewards for {len(rows)} of {len(wanted)} paths")
    for row, steps in zip(rows, wanted, strict=True):
        if len(row) != steps:
            raise ScorerError(f"{source} gave {len(row)} rewards for {steps} steps")
        if all(type(reward) is float and 0.0 <= reward <= 1.0 for reward in row):
            continue  # as nearly always, and several times as fast
        for reward in row:
            if not is_reward(reward):
                raise ScorerError(f"{source} gave a reward of {reprlib.repr(reward)}, which is no number in [0, 1]")
    return [[float(reward) for reward in row] for row in rows]
