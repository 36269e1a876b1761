"""Calls the scorer, checks its rewards, and falls back to neutral rewards if it fails."""

from typing import NamedTuple

from search.errors import ScorerError
from search.ports import ScoreRequest, StepScorer
from search.rewards import RewardRows, check_rewards
from search.run.environment import Fallback
from search.run.report import SearchCost

NEUTRAL_REWARD = 0.5


class Rewards(NamedTuple):
    """For each item of a request its ``unscored`` rewards in [0, 1]."""

    rows: RewardRows
    neutral: bool
    """Whether they are neutral rewards."""


class SearchScorer:
    """The scorer of one search, with its fallback and its cost."""

    def __init__(self, scorer: StepScorer, fallback: Fallback, cost: SearchCost) -> None:
        self._scorer = scorer
        self._fallback = fallback
        self._cost = cost

    async def rewards(self, request: ScoreRequest) -> Rewards:
        """The rewards of one scorer call, or neutral ones.

        Raises:
            ScorerError: the scorer gave no usable rewards and the fallback is ``fail``.
        """
        self._cost.prm_calls += 1
        try:
            rewards = await self._scorer.score(request)
            rows = check_rewards(rewards, [item.unscored for item in request.items], source_of(self._scorer))
            self._cost.add_scoring(rows.cost)
            return Rewards(rows, neutral=False)
        except ScorerError:
            if self._fallback is Fallback.FAIL:
                raise
            neutral = RewardRows([NEUTRAL_REWARD] * item.unscored for item in request.items)
            return Rewards(neutral, neutral=True)


def source_of(scorer: StepScorer) -> str:
    """The name of a scorer in error messages: its ``name``, or else its class."""
    return str(getattr(scorer, "name", type(scorer).__name__))
