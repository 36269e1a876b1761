"""Weights of votes: what the score of a path says for its answer."""

import math

from pydantic import BaseModel, ConfigDict, Field

LEAST = 1e-3
"""Scores are taken to be at least this far from 0 and 1, where their log-odds have no bound."""


class VoteWeights(BaseModel):
    """The weight of a vote by the score of its path: ``offset`` plus ``scale`` times the log-odds of the score, divided
    by the largest magnitude that this can have. So weights are in [-1, 1]; a negative one counts against the answer.

    With calibrated log-odds and an offset for the number of wrong answers that there are, such weights are those of the
    most likely answer (arXiv 2510.13918). ``scale: 0`` is a majority vote.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    offset: float = Field(ge=-100, le=100, description="Weight at a score of 0.5, before it is divided.")
    scale: float = Field(ge=-100, le=100, description="Weight of one unit of log-odds.")

    def weight(self, score: float) -> float:
        """The weight at a score in [0, 1]."""
        most = max(abs(self.raw(LEAST)), abs(self.raw(1 - LEAST)))
        return self.raw(score) / most if most else 0.0

    @property
    def lowest(self) -> float:
        """The lowest weight of any score."""
        return min(self.weight(0.0), self.weight(1.0))

    def raw(self, score: float) -> float:
        """The weight before it is divided."""
        score = min(max(score, LEAST), 1 - LEAST)
        return self.offset + self.scale * (math.log(score) - math.log1p(-score))
