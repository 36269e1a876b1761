"""Beam search over steps, guided by the process reward of each."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import ceil
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from search.caps import Width
from search.ports import StopCondition
from search.strategies.base import Expansion
from search.strategies.levels.level_search import ROUNDING, LevelSearch, dealt, divides_n, scored
from search.strategies.path_score import best_first, rank_score
from search.tree import IN_FLIGHT, Node, NodeStatus, SearchTree


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
    whatever the order of arrival. What no missing step or reward can change goes on before: the children that a beam
    gets in any case, once they are at least three quarters of the next iteration.
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
        above = tree.strategy_cache.get((BeamSearch, depth - 1), {})  # That level is complete, so its counts are final.
        known = {node: tree.counts_and_samples(node, above) for node in kept}
        tree.strategy_cache[BeamSearch, depth] = known
        weights = [rank_score(node, self.aggregation) * (counts / samples) for node, (counts, samples) in known.items()]
        if tree.merges_siblings and any(weights):
            return dealt(self.n, weights)
        return [len(range(index, self.n, len(kept))) for index in range(len(kept))]

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        if self.lookahead or not tree.in_flight:
            return super().select(tree)
        depth = min(node.depth for node in tree.live)
        return self._missing(tree, depth - 1) or self._out_of_turn(tree, depth)

    def observe(self, tree: SearchTree, arrived: Sequence[Node]) -> None:
        if self.lookahead or not tree.in_flight:
            super().observe(tree, arrived)
            return
        # An iteration is decided when nothing of it is in flight, though beams that went on before may be.
        for node, share in self._decided(tree, min(node.depth for node in tree.live) - 1).items():
            if share == 0 and node.status is NodeStatus.OPEN:
                tree.prune(node)

    def _out_of_turn(self, tree: SearchTree, depth: int) -> list[Expansion]:
        """The children to request below an iteration in flight, all steps of which are requested."""
        certain = self._certain(tree, depth)
        if self.stop_condition_below(depth) is not None or 4 * sum(certain.values()) < 3 * self.n:
            return []
        return [
            Expansion(node, share - node.asked, room=self.n) for node, share in certain.items() if share > node.asked
        ]

    def _certain(self, tree: SearchTree, depth: int) -> dict[Node, int]:
        """The least number of children of the beams of an iteration, whatever its missing steps and rewards are."""
        level = tree.level(depth)
        missing = [node for node in level if node.status in IN_FLIGHT]
        if tree.ended(depth) + sum(node.count for node in missing) >= self.n:
            return {}  # The pool may be full.
        survivors = self.n // self.m
        best = best_first([node for node in level if node.status is NodeStatus.OPEN], self.aggregation)[:survivors]
        kept = best[: max(0, survivors - len(missing))]
        if not tree.merges_siblings:
            return dict.fromkeys(kept, self.m)
        above = tree.strategy_cache.get((BeamSearch, depth - 1), {})
        weights = {node: rank_score(node, self.aggregation) * _share(tree, node, above) for node in best}
        unknown = sum(_share(tree, node, above) for node in missing)  # at most: all their rewards are 1
        certain: dict[Node, int] = {}
        for node in kept:
            assert node.parent is not None
            if any(each.parent is node.parent and each.id < node.id for each in missing):
                continue  # A sibling of the same text and a lower id would represent the text.
            least = weights[node] * node.parent.samples / len(node.parent.children)
            others = [weight for each, weight in weights.items() if each is not node]
            heavier = sum(weight + unknown >= least for weight in others) + len(missing) * (unknown >= least)
            # `dealt` rounds the shares of heavier beams up, each at the expense of those after it.
            lost = sum(1 / (1 + number) for number in range(min(heavier, survivors - 1)))
            certain[node] = ceil(self.n * least / (least + sum(others) + unknown) - lost - ROUNDING) if least else 0
        return {node: share for node, share in certain.items() if share > 0}

    def stop_condition_below(self, depth: int) -> StopCondition | None:
        return StopCondition.SOLUTION if self.finish_to_eos and depth == self.max_depth - 1 else None

    def candidates(self, tree: SearchTree) -> list[Node]:
        """The pool, ordered by id: the ``n`` paths that ended in the earliest iterations. In the last of these
        iterations, the highest scores go first. A path counts as often as it was written."""
        pool = sorted(best_first(tree.terminals, self.aggregation), key=lambda node: node.depth)
        before = accumulate((node.count for node in pool), initial=0)
        return sorted((node for node, ended in zip(pool, before, strict=False) if ended < self.n), key=lambda n: n.id)


def _share(tree: SearchTree, node: Node, above: Mapping[Node, tuple[int, int]]) -> float:
    """The multiplicity of a node among the samples so far; of a pending node, the most that it can add to another's."""
    assert node.parent is not None
    if node.status is NodeStatus.PENDING:
        counts, samples = tree.counts_and_samples(node.parent, above)
        return counts / (samples * len(node.parent.children))
    counts, samples = tree.counts_and_samples(node, above)
    return counts / samples
