"""The card of a reward model: what its rewards are worth in a vote over one generator's solutions, as measured on
problems with answers, and how a vote should use them.

`cluster.evaluation.card_fit` makes it. Everything that people read about it is made here.
"""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from search.answers.voting import SelectionRule
from search.strategies.base import Strategy
from search.strategies.path_score import Aggregation
from search.strategies.vote_weights import VoteWeights

USES = ("aggregation", "selection", "vote_weights")
"""The settings of a strategy that a card decides."""


class Record(BaseModel):
    """A part of a card."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Gain(Record):
    """Accuracy of a vote, and its difference to the majority vote over the same solutions, paired by problem."""

    accuracy: float = Field(ge=0, le=1)
    difference: float = Field(ge=-1, le=1)
    low: float = Field(ge=-1, le=1)
    """Bounds of the 95% interval of ``difference``."""
    high: float = Field(ge=-1, le=1)

    def __str__(self) -> str:
        return (
            f"{self.accuracy:.1%} (difference {100 * self.difference:+.1f} points, 95% interval {100 * self.low:+.1f} "
            f"to {100 * self.high:+.1f})"
        )


class MeasuredVote(Record):
    """A vote by rewards."""

    selection: Literal[SelectionRule.NAIVE, SelectionRule.WEIGHTED]
    aggregation: Aggregation
    vote_weights: VoteWeights | None = None
    """As fitted on all problems. None: the scores themselves."""
    gain: Gain
    """With weights that were fitted on other problems than those that they are judged on."""

    def __str__(self) -> str:
        if self.selection is SelectionRule.NAIVE:
            return f"the solution with the highest {self.aggregation} reward"
        return f"a vote weighted by the {'calibrated ' if self.vote_weights else ''}{self.aggregation} reward"


class RewardAUC(Record):
    """Probability that a right solution scores above a wrong one; None where there are no such pairs."""

    aggregation: Aggregation
    all_problems: float | None
    """Of any two problems."""
    same_problem: float | None
    """Of one problem; the mean over problems."""
    frequent_wrong: float | None
    """The wrong one has the most frequent wrong answer of its problem: the only one to which a majority is lost."""
    rare_wrong: float | None
    """The wrong one has another answer."""
    no_answer: float | None
    """The wrong one has no answer."""


class RewardCard(Record):
    """What a reward model is worth to a generator."""

    version: Literal[1] = 1
    generator: str | None = None
    """Name under which the generator was served; None if not known."""
    source: str = ""
    """File of the solutions."""
    problems: int = Field(ge=1)
    samples: int = Field(ge=1)
    """Solutions of a problem: the median."""
    majority: float = Field(ge=0, le=1)
    """Accuracy of the majority vote."""
    votes: tuple[MeasuredVote, ...] = Field(min_length=1)
    use: int | None = Field(ge=0)
    """Index of the recommended vote in ``votes``; None: the majority, which needs no rewards."""
    knows: RewardAUC

    @model_validator(mode="after")
    def _has_the_vote(self) -> Self:
        if self.use is not None and self.use >= len(self.votes):
            raise ValueError(f"use is {self.use}, but there are {len(self.votes)} votes")
        if self.use is not None and self.votes[self.use].selection is not SelectionRule.WEIGHTED:
            raise ValueError("use must be a weighted vote")
        return self

    @property
    def helps(self) -> bool:
        """Whether a vote with the rewards was better than the majority by more than chance."""
        return self.use is not None

    @property
    def best(self) -> MeasuredVote:
        """The recommended vote; without one, the weighted vote with the highest accuracy, if there is any."""
        if self.use is not None:
            return self.votes[self.use]
        return max(self.votes, key=lambda vote: (vote.selection is SelectionRule.WEIGHTED, vote.gain.accuracy))

    @property
    def verdict(self) -> str:
        """What was measured, and what follows, in one or two sentences."""
        best = self.best
        found = f"the majority of {self.samples} was right in {self.majority:.1%}, {best} in {best.gain}, {self._on}"
        if self.helps:
            return f"The reward model helps a vote: {found}."
        return f"{_fault(best.gain)}: {found}. Strategy self_consistency needs no rewards."

    @property
    def _on(self) -> str:
        return f"on {self.problems:,} problems" + (f" with {self.generator}" if self.generator else "")

    def note(self, strategy: Strategy) -> str | None:
        """The note of a search that uses a reward model of no measured worth; None for any other search."""
        if self.helps or not strategy.is_scored:
            return None
        of_strategy = (strategy.selection, strategy.aggregation, strategy.vote_weights)
        asked = [vote for vote in self.votes if (vote.selection, vote.aggregation, vote.vote_weights) == of_strategy]
        vote = asked[0] if asked else self.best
        return (
            f"{_fault(vote.gain)}: the majority of {self.samples} was right in {self.majority:.1%}, {vote} in "
            f"{vote.gain}, {self._on}; strategy self_consistency needs no rewards"
        )

    def defaults(self, strategy: type[Strategy], given: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that the card decides for a search with these flat settings; empty where ``given`` decides one
        of them, or where the card has measured nothing.

        It has measured votes over whole solutions that were written independently of each other. The steps of a search
        are chosen by their rewards, so neither weights nor aggregation can be taken over.
        """
        if not strategy.needs_rewards or not strategy.answers_at_once or {*USES} & given.keys():
            return {}
        if self.use is None:
            return {"selection": SelectionRule.MAJORITY}
        vote = self.votes[self.use]
        if given.get("risk") is not None and vote.vote_weights is not None and vote.vote_weights.lowest < 0:
            return {}  # With negative weights the vote would be open until the last sample.
        return vote.model_dump(mode="json", include={*USES}, exclude_none=True)


def _fault(gain: Gain) -> str:
    return "The reward model costs accuracy here" if gain.high < 0 else "The reward model has no measured gain here"
