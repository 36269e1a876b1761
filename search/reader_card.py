"""The card of a reader: what it is worth that a generator reads its own solutions, as measured.

`cluster.evaluation.reader_check` makes it. Everything that people read about it is made here.
"""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from search.reward_card import Gain, Record
from search.strategies.base import Strategy


class MeasuredReading(Record):
    """Solutions that are read where the vote is contested."""

    contested: float = Field(gt=0, le=1)
    """They are read where the share of the leading answer is below this."""
    problems: int = Field(ge=0)
    """Problems whose vote is contested so."""
    vote: float = Field(ge=0, le=1)
    """Accuracy of the vote over these; 0 without any."""
    read: float = Field(ge=0, le=1)
    """Accuracy of the readers over these."""
    pool: float = Field(ge=0, le=1)
    """Share of these with a right solution: the accuracy of a perfect reader."""
    gain: Gain
    """Over all problems, beside the vote alone."""
    written_tokens: float = Field(ge=0)
    """Tokens that the readers wrote; the mean over all problems."""
    prompt_tokens: float = Field(ge=0)
    """Tokens of the prompts that showed solutions, each once; the mean over all problems."""


class ReaderCard(Record):
    """What it is worth that a generator reads its solutions."""

    version: Literal[1] = 1
    kind: Literal["reader"] = "reader"
    strategy: str
    """Name of the strategy that was measured, such as ``select``."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Its settings, as a request writes them."""
    generator: str | None = None
    """Name under which the generator was served; None if not known."""
    source: str = ""
    """File of the problems."""
    problems: int = Field(ge=1)
    samples: int = Field(ge=1)
    """Solutions of a problem."""
    vote: float = Field(ge=0, le=1)
    """Accuracy of the majority vote over them."""
    pool: float = Field(ge=0, le=1)
    """Share of the problems with a right solution."""
    solution_tokens: float = Field(ge=0)
    """Tokens of a problem's solutions, the mean."""
    abstained: float | None = Field(None, ge=0, le=1)
    """Share of the readers that named no solution that they were shown; None where readers do not choose."""
    readings: tuple[MeasuredReading, ...] = Field(min_length=1)
    """By rising ``contested``; the last one reads wherever two solutions differ."""
    use: int | None = Field(ge=0)
    """Index of the recommended one; None: the vote alone."""

    @model_validator(mode="after")
    def _has_the_reading(self) -> Self:
        if self.use is not None and self.use >= len(self.readings):
            raise ValueError(f"use is {self.use}, but there are {len(self.readings)} readings")
        return self

    @property
    def helps(self) -> bool:
        """Whether reading was better than the vote by more than chance."""
        return self.use is not None

    @property
    def best(self) -> MeasuredReading:
        """The recommended reading; without one, that with the largest gain, the last of equal ones."""
        if self.use is not None:
            return self.readings[self.use]
        return max(reversed(self.readings), key=lambda reading: reading.gain.difference)

    @property
    def verdict(self) -> str:
        """What was measured, and what follows, in a few sentences."""
        best = self.best
        where = "wherever solutions differ" if best.contested == 1 else f"where the share is below {best.contested:g}"
        found = (
            f"the majority of {self.samples} was right in {self.vote:.1%}, {self.strategy} {where} in {best.gain}, on "
            f"{self.problems:,} problems" + (f" with {self.generator}" if self.generator else "")
        )
        picked = (
            f"Of the {best.problems:,} contested ones the vote had {best.vote:.1%} right, the readers {best.read:.1%}, "
            f"and {best.pool:.1%} had a right solution; reading wrote {best.written_tokens:,.0f} tokens a problem, the "
            f"solutions {self.solution_tokens:,.0f}."
        )
        unusable = f" {self.abstained:.1%} of the readers named no solution they were shown." if self.abstained else ""
        return f"{self._outcome}: {found}. {picked}{unusable}"

    @property
    def _outcome(self) -> str:
        return f"{self.strategy} helps with this model" if self.helps else "Not recommended with this model"

    def note(self, strategy: Strategy) -> str | None:
        """The note of a search that uses a reader of no measured worth; None for any other search."""
        if self.helps or strategy.name != self.strategy:
            return None
        return (
            f"{self._outcome}: the majority of {self.samples} was right in {self.vote:.1%}, {self.strategy} in "
            f"{self.best.gain}; strategy self_consistency reads nothing"
        )

    def defaults(self, strategy: type[Strategy], given: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that the card decides for a search with these flat settings: where the vote counts as
        contested."""
        is_measured = strategy.model_fields["name"].default == self.strategy
        if self.use is None or not is_measured or "contested" in given:
            return {}
        return {"contested": self.readings[self.use].contested}
