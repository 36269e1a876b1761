"""Rewards for steps: one call for all that arrived together, checked, with a fallback where there are none."""

from typing import NamedTuple

from search.errors import ScorerError
from search.ports import ScoreRequest, StepScorer
from search.rewards import check_rewards
from search.run.environment import Fallback
from search.run.report import SearchCost

NEUTRAL_REWARD = 0.5


class Rewards(NamedTuple):
    """For each item of a request its ``unscored`` rewards in [0, 1]."""

    rows: list[list[float]]
    neutral: bool
    """Whether they only stand in for what the scorer did not give."""


class SearchScorer:
    """The scorer as one search sees it."""

    def __init__(self, scorer: StepScorer, fallback: Fallback, cost: SearchCost) -> None:
        self._scorer = scorer
        self._fallback = fallback
        self._cost = cost

    async def rewards(self, request: ScoreRequest) -> Rewards:
        """
        Raises:
            ScorerError: the scorer gave no usable rewards and the fallback is to fail.
        """
        self._cost.prm_calls += 1
        try:
            rewards = await self._scorer.score(request)
            rows = check_rewards(rewards, [item.unscored for item in request.items], source_of(self._scorer))
            return Rewards(rows, neutral=False)
        except ScorerError:
            if self._fallback is Fallback.FAIL:
                raise
            return Rewards([[NEUTRAL_REWARD] * item.unscored for item in request.items], neutral=True)


def source_of(scorer: StepScorer) -> str:
    """What to call a scorer in an error: its ``name``, or else its class."""
    return str(getattr(scorer, "name", type(scorer).__name__))
