"""Beam search over steps, guided by the process reward of each."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from search.caps import Width
from search.ports import StopCondition
from search.strategies.levels.level_search import LevelSearch, dealt, divides_n, scored
from search.strategies.path_score import best_first, rank_score
from search.tree import Node, SearchTree


class BeamSearch(LevelSearch):
    """The best steps of each level go on, ``m`` ways each.

    ``n`` beams of width ``m``, as in search-and-learn (Beeching et al. 2024, "Scaling test-time compute").
    Each iteration writes ``n`` steps below the beams kept, scores them, moves terminal ones to the pool and
    keeps the best ``n // m`` of the rest; the next ``n`` are dealt over those. It ends when ``n`` beams are in
    the pool, no beam is left or ``max_depth`` iterations are done.

    Where siblings of the same text are one, the beams kept differ, and the next ``n`` are dealt over them in proportion
    to what they would weigh in the vote: dealt evenly, most would go to steps that were hardly ever written. Otherwise
    they are dealt in turn, the best first, as in search-and-learn.

    Where search-and-learn goes on after ``n`` beams have completed, returns more than ``n``, or writes the
    last step without a limit, this does not. An iteration is decided when all its steps are in, so one seed
    gives one tree whatever the order of arrival.
    """

    aliases: ClassVar[tuple[str, ...]] = ("beam",)

    name: Literal["beam_search"] = "beam_search"
    n: Width = Field(16, description="Beams; a multiple of m.")
    m: Width = Field(4, validate_default=True, description="Width: steps written per kept beam.")
    finish_to_eos: bool = Field(False, description="Write the last iteration's step to the end of the solution.")

    _divides_n = field_validator("m")(divides_n)

    def allocation(self, tree: SearchTree, depth: int) -> Mapping[Node, int]:
        if not depth:
            return {tree.root: self.n}
        beams = scored(tree, depth)
        kept = best_first(beams, self.aggregation)[: self.n // self.m]
        going_on = set(kept)
        allocation = {node: 0 for node in beams if node not in going_on}
        if kept and tree.ended(depth) < self.n:
            allocation |= dict(zip(kept, self._shares(tree, kept, depth), strict=True))
        return allocation

    def _shares(self, tree: SearchTree, kept: Sequence[Node], depth: int) -> list[int]:
        above = tree.found.get((BeamSearch, depth - 1), {})  # nothing is written there any more
        known = {node: tree.counts_and_samples(node, above) for node in kept}
        tree.found[BeamSearch, depth] = known
        weights = [rank_score(node, self.aggregation) * (counts / samples) for node, (counts, samples) in known.items()]
        if tree.merges_siblings and any(weights):
            return dealt(self.n, weights)
        return [len(range(index, self.n, len(kept))) for index in range(len(kept))]

    def stop_condition_below(self, depth: int) -> StopCondition | None:
        return StopCondition.SOLUTION if self.finish_to_eos and depth == self.max_depth - 1 else None

    def candidates(self, tree: SearchTree) -> list[Node]:
        """The pool: the ``n`` terminal paths that ended in the earliest iterations, of the last of these
        the ones with the highest score; ordered by id. A path counts as often as it was written."""
        pool = sorted(best_first(tree.terminals, self.aggregation), key=lambda node: node.depth)
        before = accumulate((node.count for node in pool), initial=0)
        return sorted((node for node, ended in zip(pool, before, strict=False) if ended < self.n), key=lambda n: n.id)
