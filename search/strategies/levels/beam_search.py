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
    """Keeps the best steps of each level and continues each of them ``m`` times.

    ``n`` beams of width ``m``, as in search-and-learn (Beeching et al. 2024, "Scaling test-time compute").
    Each iteration writes ``n`` steps below the kept beams, scores them, moves terminal ones to the pool and keeps the
    best ``n // m`` of the rest; the next ``n`` are allocated to those. The search ends when ``n`` beams are in the
    pool, no beam is left or ``max_depth`` iterations are done.

    If siblings of the same text are merged, the kept beams all differ, and the next ``n`` are allocated in proportion
    to their weights in the vote. An even allocation would give most of them to steps that were hardly ever written.
    Without merging they are allocated round-robin, the best beam first, as in search-and-learn.

    Unlike search-and-learn, it does not continue after ``n`` beams have completed, return more than ``n``, or write the
    last step without a limit. An iteration is decided when all its steps are scored, so one seed gives one tree
    whatever the order of arrival.
    """

    aliases: ClassVar[tuple[str, ...]] = ("beam",)

    name: Literal["beam_search"] = "beam_search"
    n: Width = Field(16, description="Number of beams; a multiple of m.")
    m: Width = Field(4, validate_default=True, description="Children per kept beam.")
    finish_to_eos: bool = Field(
        False, description="In the last iteration, write to the end of the solution instead of to the end of the step."
    )

    _divides_n = field_validator("m")(divides_n)

    def allocation(self, tree: SearchTree, depth: int) -> Mapping[Node, int]:
        if not depth:
            return {tree.root: self.n}
        beams = scored(tree, depth)
        kept = best_first(beams, self.aggregation, self.lookahead)[: self.n // self.m]
        going_on = set(kept)
        allocation = {node: 0 for node in beams if node not in going_on}
        if kept and tree.ended(depth) < self.n:
            allocation |= dict(zip(kept, self._shares(tree, kept, depth), strict=True))
        return allocation

    def _shares(self, tree: SearchTree, kept: Sequence[Node], depth: int) -> list[int]:
        above = tree.strategy_cache.get((BeamSearch, depth - 1), {})  # That level is complete, so its counts are final.
        known = {node: tree.counts_and_samples(node, above) for node in kept}
        tree.strategy_cache[BeamSearch, depth] = known
        weights = [
            rank_score(node, self.aggregation, self.lookahead) * (counts / samples)
            for node, (counts, samples) in known.items()
        ]
        if tree.merges_siblings and any(weights):
            return dealt(self.n, weights)
        return [len(range(index, self.n, len(kept))) for index in range(len(kept))]

    def stop_condition_below(self, depth: int) -> StopCondition | None:
        return StopCondition.SOLUTION if self.finish_to_eos and depth == self.max_depth - 1 else None

    def candidates(self, tree: SearchTree) -> list[Node]:
        """The pool, ordered by id: the ``n`` paths that ended in the earliest iterations. In the last of these
        iterations, the highest scores go first. A path counts as often as it was written, one that the step hook ended
        not at all."""
        pool = sorted(best_first(tree.terminals, self.aggregation), key=lambda node: node.depth)
        before = accumulate((0 if node.ended_by_hook else node.count for node in pool), initial=0)
        return sorted((node for node, ended in zip(pool, before, strict=False) if ended < self.n), key=lambda n: n.id)
