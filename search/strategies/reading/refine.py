"""Chains of solutions, each an improvement of the one before."""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Literal

from pydantic import Field

from search.caps import Uncapped, Width
from search.strategies.notes import critique_note, joined, known_of
from search.strategies.path_score import path_score
from search.strategies.reading.rounds import MAX_ROUNDS, Grown, ReadingRounds, Solutions
from search.tree import Node, Reading, SearchTree


class Feedback(StrEnum):
    """What a refinement is told of the solution that it reads, beside what its checks showed."""

    REWARDS = "rewards"
    """The rewards of its steps."""
    CRITIQUE = "critique"
    """A critique that the model writes of it first."""
    NONE = "none"
    """Nothing."""


class Refine(ReadingRounds):
    """Chains of solutions: each reads the one before it, and what is known of that, and improves it.

    Sources: Self-Refine (Madaan et al. 2023, arXiv 2303.17651); a step is RSA with one candidate (arXiv 2509.26626).

    A chain goes on from its best solution, the last one where nothing is scored, and answers with it. It ends early at
    a solution with score 1. The checks of programs are told with every feedback.
    """

    name: Literal["refine"] = "refine"
    n: Width = Field(4, description="Number of chains.")
    depth: Uncapped = Field(2, ge=0, le=MAX_ROUNDS, description="Refinements in each chain, after its first solution.")
    feedback: Feedback = Field(
        Feedback.REWARDS,
        strict=False,
        description="What a refinement is told of the solution that it reads: the `rewards` of its steps, a `critique` "
        "that the model writes first, or `none`.",
    )

    @property
    def is_scored(self) -> bool:
        return self.feedback is Feedback.REWARDS or not self.selection.counts_votes

    def unremarked(self, tree: SearchTree) -> Sequence[Node]:
        solutions = self._solutions(self.grown(tree).whole)
        if not solutions or len(solutions) > self.depth:
            return []
        best = dict.fromkeys(self._best(tree, solutions))
        return [node for node in best if node is not None and node.id not in tree.remarks]

    def readings(self, tree: SearchTree, rounds: Sequence[Solutions]) -> Sequence[Reading | None]:
        solutions = self._solutions(rounds)
        if len(solutions) > self.depth:
            return []
        criticizes = self.feedback is Feedback.CRITIQUE and len(rounds) % 2 == 1
        critiques = rounds[-1] if self.feedback is Feedback.CRITIQUE and not criticizes else [None] * len(rounds[0])
        readings: list[Reading | None] = []
        for best, critique in zip(self._best(tree, solutions), critiques, strict=True):
            if best is None or self._score(best) == 1.0:
                readings.append(None)
                continue
            known = known_of(tree, best, rewards=self.feedback is Feedback.REWARDS)
            said = "" if critique is None else critique_note(tree.content_of(critique))
            readings.append(Reading((best,), "critique" if criticizes else "refine", joined(known, said)))
        return readings

    def ballot(self, tree: SearchTree, grown: Grown) -> Mapping[Node, int]:
        best = self._best(tree, self._solutions(grown.rounds))
        return dict(sorted(Counter(filter(None, best)).items(), key=lambda votes: votes[0].id))

    def _solutions(self, rounds: Sequence[Solutions]) -> Sequence[Solutions]:
        """The rounds without those of critiques."""
        return rounds[::2] if self.feedback is Feedback.CRITIQUE else rounds

    def _best(self, tree: SearchTree, rounds: Sequence[Solutions]) -> Solutions:
        """The best solution of each chain; None for a chain without any. A higher score is better, and of equal scores
        the later solution. One that was cut off is worse than any other."""

        def worth(node: Node) -> tuple[bool, float]:
            return tree.is_finished(node), self._score(node)

        chains = ([node for node in chain if node is not None] for chain in zip(*rounds, strict=True))
        return [max(reversed(chain), key=worth, default=None) for chain in chains]

    def _score(self, solution: Node) -> float:
        return path_score(solution, self.aggregation) or 0.0
