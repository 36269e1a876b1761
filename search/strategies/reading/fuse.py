"""RSA and PaCoRe: a population of solutions, and rounds of new ones that are written from some of the earlier."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from random import Random
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from search.answers.voting import SelectionRule
from search.caps import MAX_SAMPLES, Uncapped, Width
from search.strategies.base import refused
from search.strategies.path_score import path_score
from search.strategies.reading.candidates import answers_of, candidates_of
from search.strategies.reading.draws import drawn, prefix_order, resampled, score_weight
from search.strategies.reading.rounds import MAX_ROUNDS, ReadingRounds, Solutions
from search.tree import Node, Reading, SearchTree

ROUNDS, READ = 2, 4
"""Defaults of ``rounds`` and ``k``; 4 is that of RSA's program."""


class Weights(StrEnum):
    """By what a population is resampled before its solutions are drawn."""

    UNIFORM = "uniform"
    """Not at all, as in RSA."""
    VOTES = "votes"
    """The number of solutions with the same answer."""
    REWARDS = "rewards"
    """The scores of the solutions, as in PRISM."""


class Fuse(ReadingRounds):
    """Rounds of solutions, each written from some solutions of the round before. The last round votes.

    Sources: RSA (Venkatraman et al. 2025, arXiv 2509.26626); with ``schedule`` PaCoRe (2026, arXiv 2601.05593), whose
    rounds become smaller and read all of the round before; with ``weights: rewards`` the resampling of PRISM (Sharma et
    al. 2026, arXiv 2603.02479). Every round has its own draws. The order of the solutions in a prompt is not drawn: it
    lets prompts share prefixes.
    """

    name: Literal["fuse"] = "fuse"
    n: Width = Field(8, description="Number of solutions of every round, unless `schedule` says it.")
    rounds: Annotated[Uncapped, Field(ge=0, le=MAX_ROUNDS)] | None = Field(
        None, description=f"Number of rounds after the first. Unset: {ROUNDS}. Not with `schedule`."
    )
    k: Annotated[Uncapped, Field(ge=1, le=MAX_SAMPLES)] | None = Field(
        None,
        description="Number of solutions that each new one reads, at most all of the round before. Unset: "
        f"{READ}, under `schedule` all.",
    )
    schedule: Annotated[tuple[Width, ...], Field(strict=False, max_length=MAX_ROUNDS)] = Field(
        (), description="Number of solutions of each round, such as `[32, 4, 1]`, in place of `n` and `rounds`."
    )
    weights: Weights = Field(
        Weights.UNIFORM,
        strict=False,
        description="`votes`, `rewards`: before they are drawn, the solutions are resampled by the votes for their "
        "answers, or by their scores. `uniform`: all are as likely.",
    )
    contested: float = Field(
        1.0, ge=0.0, le=1.0, description="The rounds end once the share of the leading answer is not below this."
    )
    selection: SelectionRule = Field(
        SelectionRule.MAJORITY,
        strict=False,
        description="How the answer is chosen in the last round. `weighted` and `naive` have all solutions scored.",
    )

    @model_validator(mode="after")
    def _says_its_rounds_once(self) -> Self:
        if self.schedule and self.rounds is not None:
            raise refused(self.name, "rounds", self.rounds, "not with `schedule`, which says all rounds")
        return self

    @property
    def is_scored(self) -> bool:
        return self.weights is Weights.REWARDS or not self.selection.counts_votes

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of solutions of each round."""
        return self.schedule or (self.n,) * (1 + (ROUNDS if self.rounds is None else self.rounds))

    @property
    def most_shown(self) -> int:
        return max((min(self._read_of(size), size) for size in self.sizes[:-1]), default=0)

    @property
    def first_round(self) -> int:
        return self.sizes[0]

    def readings(self, tree: SearchTree, rounds: Sequence[Solutions]) -> Sequence[Reading]:
        number = len(rounds)
        population = [node for node in rounds[-1] if node is not None and not tree.ends_in_thought(node)]
        if number == len(self.sizes) or not population or self._agrees(tree, population):
            return []
        rng = Random(f"fuse:{tree.seed}:{number}")
        places = self._resampled(tree, population, rng)
        k = self._read_of(len(places))
        sets = [[places[index] for index in draw] for draw in drawn(len(places), self.sizes[number], k, rng)]
        sizes = [len(tree.content_of(node)) for node in population]
        shown = (tuple(population[index] for index in order) for order in prefix_order(sets, sizes))
        return [Reading(nodes, "fuse" if len(nodes) > 1 else "refine") for nodes in shown]

    def _read_of(self, size: int) -> int:
        """Number of solutions that each new one reads of a round of this size."""
        return self.k or (size if self.schedule else READ)

    def _agrees(self, tree: SearchTree, population: Sequence[Node]) -> bool:
        return candidates_of(tree, population)[0].count >= self.contested * len(population)

    def _resampled(self, tree: SearchTree, population: Sequence[Node], rng: Random) -> list[int]:
        """Indices of the population from which solutions are drawn."""
        if self.weights is Weights.UNIFORM:
            return [*range(len(population))]
        if self.weights is Weights.REWARDS:
            scores = (path_score(node, self.aggregation) or 0.0 for node in population)
            return resampled([score_weight(score) for score in scores], rng)
        answers = answers_of(tree, population)
        counts = Counter(answers)
        return resampled([0.0 if answer is None else float(counts[answer]) for answer in answers], rng)
