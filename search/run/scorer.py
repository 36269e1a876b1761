"""Rewards for steps: one call for all that arrived together, checked, with a fallback where there are none."""

from collections.abc import Sequence

from search.errors import ScorerError
from search.ports import ScoreItem, ScoreRequest, StepScorer
from search.run.environment import Fallback

NEUTRAL_REWARD = 0.5


class Judge:
    """The scorer as one search sees it."""

    def __init__(self, scorer: StepScorer, fallback: Fallback) -> None:
        self._scorer = scorer
        self._fallback = fallback
        self.calls = 0
        self.degraded = False

    async def rewards(self, request: ScoreRequest) -> list[list[float]]:
        """For each item its ``unscored`` rewards in [0, 1].

        Raises:
            ScorerError: the scorer gave no usable rewards and the fallback is to fail.
        """
        self.calls += 1
        try:
            rewards = await self._scorer.score(request)
            try:
                check_rewards(rewards, request.items, source_of(self._scorer))
            except TypeError as error:
                raise ScorerError(f"{source_of(self._scorer)} gave something that is no rewards: {error}") from error
            return [[float(reward) for reward in row] for row in rewards]
        except ScorerError:
            if self._fallback is Fallback.FAIL:
                raise
            self.degraded = True
            return [[NEUTRAL_REWARD] * item.unscored for item in request.items]


def check_rewards(rewards: Sequence[Sequence[float]], items: Sequence[ScoreItem], source: str) -> None:
    """Refuses rewards that are too many, too few, NaN or outside [0, 1].

    Raises:
        ScorerError: and says which, and that ``source`` gave them.
    """
    if len(rewards) != len(items):
        raise ScorerError(f"{source} gave rewards for {len(rewards)} of {len(items)} paths")
    for row, item in zip(rewards, items, strict=True):
        if len(row) != item.unscored:
            raise ScorerError(f"{source} gave {len(row)} rewards for {item.unscored} steps")
        for reward in row:
            # A NaN is not within any bounds.
            if not 0.0 <= reward <= 1.0:
                raise ScorerError(f"{source} gave a reward of {reward!r}, which is not in [0, 1]")


def source_of(scorer: StepScorer) -> str:
    """What to call a scorer in an error: its ``name``, or else its class."""
    return str(getattr(scorer, "name", type(scorer).__name__))
