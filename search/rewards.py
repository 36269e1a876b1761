"""Validation of rewards, shared by scorers, replicas and trees: a reward is a number in [0, 1]."""

import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from search.errors import ScorerError, ScorerRefused


@dataclass(frozen=True)
class ScoringCost:
    """What the rewards of a call cost the reward model. `search.run.report.SearchCost` has the sums of a search."""

    prompt_tokens: int = 0
    """Tokens of the prompts that it read, cached ones included."""
    cached_tokens: int = 0
    """Number of ``prompt_tokens`` whose KV came from its prefix cache."""
    recomputed_tokens: int = 0
    """Tokens of the paths, in whole blocks, that were computed for earlier steps and were in no cache."""
    generated_tokens: int = 0
    """Tokens of the critiques that it wrote."""
    critiques: int = 0
    """Number of critiques, whole or cut off."""
    cut_critiques: int = 0
    """Number of critiques that the budget of tokens, the context or the deadline cut off."""

    @classmethod
    def total(cls, costs: Iterable["ScoringCost"]) -> "ScoringCost":
        """The sum of each figure."""
        rows = [vars(cost) for cost in costs]
        return cls(**{name: sum(row[name] for row in rows) for name in cls.__dataclass_fields__})


class RewardRows(list[list[float]]):
    """For each path its new rewards, and what they cost the reward model."""

    cost = ScoringCost()
    unsure: frozenset[int] = frozenset()
    """Indices of the paths whose rewards another attempt may change, such as those of programs that ran into their time
    limit. The search that gets them is degraded."""


def is_reward(value: object) -> bool:
    """Whether ``value`` is a number in [0, 1]. NaN is not."""
    return isinstance(value, Real) and bool(0 <= value <= 1)  # type: ignore[operator]  # typeshed: int and Real


def check_rewards(rewards: Any, wanted: Sequence[int], source: str) -> RewardRows:
    """Checks that ``rewards`` has one row per path, each with the wanted number of rewards in [0, 1]; returns floats.

    Args:
        rewards: the raw value that ``source`` returned.
        wanted: for each path, the number of steps that need a reward.
        source: name of the scorer in error messages.

    Raises:
        ScorerError: a check failed. The message is short enough for a log line, whatever was returned.
    """
    try:
        rows = [list(row) for row in rewards]
    except TypeError:
        raise ScorerError(f"{source} returned {reprlib.repr(rewards)} instead of rewards") from None
    if len(rows) != len(wanted):
        raise ScorerError(f"{source} returned rewards for {len(rows)} of {len(wanted)} paths")
    for row, steps in zip(rows, wanted, strict=True):
        if len(row) != steps:
            raise ScorerError(f"{source} returned {len(row)} rewards for {steps} steps")
        if all(type(reward) is float and 0.0 <= reward <= 1.0 for reward in row):
            continue  # The common case, and several times faster.
        for reward in row:
            if not is_reward(reward):
                raise ScorerError(
                    f"{source} returned the reward {reprlib.repr(reward)}, which is not a number in [0, 1]"
                )
    checked = RewardRows([float(reward) for reward in row] for row in rows)
    checked.cost = getattr(rewards, "cost", checked.cost)
    checked.unsure = getattr(rewards, "unsure", checked.unsure)
    return checked


class NoScorer:
    """`search.ports.StepScorer` where there is no reward model."""

    async def score(self, request: object) -> RewardRows:
        """Raises ScorerRefused."""
        raise ScorerRefused("there is no reward model")
