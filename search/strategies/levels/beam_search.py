"""Beam search over steps, guided by the process reward of each."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from search.answers.voting import SelectionRule
from search.caps import Width
from search.ports import StopCondition
from search.strategies.levels.level_search import ROUNDING, LevelSearch, dealt, divides_n, scored
from search.strategies.path_score import best_first, path_score, rank_score
from search.tree import Node, NodeStatus, SearchTree

REPETITIONS, LONGEST_PERIOD = 3, 4
"""A path repeats itself if it ends with ``REPETITIONS`` times the same 1 to ``LONGEST_PERIOD`` steps."""


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
    patience: float | None = Field(
        None,
        ge=1.0,
        le=100.0,
        description="End paths that wander: that wrote the same steps three times in a row, or have more than this "
        "many times the tokens of the longest finished path. And end the search once no unfinished path can change its "
        "answer. Unset: neither.",
    )
    finish_to_eos: bool = Field(
        False, description="In the last iteration, write to the end of the solution instead of to the end of the step."
    )

    _divides_n = field_validator("m")(divides_n)

    def allocation(self, tree: SearchTree, depth: int) -> Mapping[Node, int]:
        if not depth:
            return {tree.root: self.n}
        wandering = self._wandering(tree, depth)
        beams = [node for node in scored(tree, depth) if node not in wandering]
        kept = best_first(beams, self.aggregation, self.lookahead)[: self.n // self.m]
        going_on = set(kept)
        allocation = {node: 0 for node in beams if node not in going_on}
        if kept and tree.ended(depth) < self.n and not self._is_decided(tree, kept, depth):
            allocation |= dict(zip(kept, self._shares(tree, kept, depth), strict=True))
        return allocation

    def observe(self, tree: SearchTree, arrived: Sequence[Node]) -> None:
        super().observe(tree, arrived)
        if self.patience is not None and not tree.in_flight and self._is_complete(tree, tree.deepest):
            for node in self._wandering(tree, tree.deepest):
                if node.status is NodeStatus.OPEN:
                    tree.end_wandering(node)

    def _wandering(self, tree: SearchTree, depth: int) -> frozenset[Node]:
        """The paths that end at a complete level because they wander."""
        if self.patience is None or not depth:
            return frozenset()
        if (BeamSearch._wandering, depth) not in tree.strategy_cache:
            ended = [node for node in tree.terminals if node.depth <= depth]
            longest = max((_solution_tokens(node) for node in ended if tree.is_finished(node)), default=0)
            most = self.patience * longest if longest else math.inf
            found = (node for node in scored(tree, depth) if _solution_tokens(node) > most or repeats_itself(node))
            tree.strategy_cache[BeamSearch._wandering, depth] = frozenset(found)
        return tree.strategy_cache[BeamSearch._wandering, depth]  # type: ignore[no-any-return]

    def _is_decided(self, tree: SearchTree, kept: Sequence[Node], depth: int) -> bool:
        """Whether the answer that leads wins the vote whatever the paths below ``kept`` will say: they have at most the
        votes of ``kept``, each with score 1. All other answers count as one, since the vote may find them equal."""
        if self.patience is None or self.selection is SelectionRule.NAIVE:
            return False
        by_count = self.selection.counts_votes
        weights: defaultdict[str, float] = defaultdict(float)
        for node in tree.terminals:
            if node.depth <= depth and (spelling := tree.spelling_of(node)) is not None:
                score = None if by_count else path_score(node, self.aggregation)
                weights[spelling] += float(tree.multiplicity(node)) * (1.0 if score is None else score)
        missing = sum(map(tree.multiplicity, kept)) if tree.merges_siblings else self.n - tree.ended(depth)
        return bool(weights) and 2 * max(weights.values()) - sum(weights.values()) > missing + ROUNDING

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


def repeats_itself(node: Node) -> bool:
    """Whether the path to ``node`` ends with the same steps again and again."""
    above: Node | None = node
    texts: list[str] = []
    for _ in range(REPETITIONS * LONGEST_PERIOD):
        if above is None or above.step is None:
            break
        texts.append(above.step.solution.strip())
        above = above.parent
    return any(
        len(texts) >= REPETITIONS * period and texts[: REPETITIONS * period] == REPETITIONS * texts[:period]
        for period in range(1, LONGEST_PERIOD + 1)
    )


def _solution_tokens(node: Node) -> int:
    return node.path_tokens - node.thought_tokens
