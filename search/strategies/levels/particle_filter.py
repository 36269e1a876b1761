"""Particle filtering: solutions as particles that are resampled by their rewards."""

import math
from collections.abc import Mapping
from fractions import Fraction
from random import Random
from typing import Literal

from pydantic import Field

from search.caps import Width
from search.strategies.levels.level_search import LevelSearch, scored
from search.strategies.path_score import Aggregation, rank_score
from search.strategies.resampling import effective_sample_size, shares, softmax, systematic
from search.tree import Node, NodeStatus, SearchTree

MIN_ODDS = 1e-6
"""Rewards are clipped to this distance from 0 and 1, so that log-odds stay finite."""


class ParticleFilter(LevelSearch):
    """Treats solutions as particles and resamples them by their rewards.

    Source: Puri et al. 2025, "A probabilistic inference approach to inference-time scaling" (arXiv 2502.01618).

    ``n`` particles each write one step at a time. A particle's log-weight is the log-odds of its newest reward. When a
    few particles carry most of the weight, all are resampled in proportion to their weights, ended particles included.
    If the generator gave some back, the full number is resampled from the others, which also carry the weight of the
    missing ones.
    """

    name: Literal["particle_filter"] = "particle_filter"
    n: Width = Field(16, description="Number of particles.")
    weight_temperature: float = Field(
        1.0, ge=0.01, le=100.0, description="Temperature of the softmax over log-weights."
    )
    resample_below: float = Field(
        0.5, ge=0.0, le=1.0, description="Resample when the effective sample size falls below this fraction of n."
    )

    def allocation(self, tree: SearchTree, depth: int) -> Mapping[Node, int]:
        if not depth:
            return {tree.root: self.n}
        particles = self._resampled(tree, depth)
        allocation = dict.fromkeys(scored(tree, depth), 0)
        return allocation | {node: count for node, count in particles.items() if node in allocation}

    def candidates(self, tree: SearchTree) -> list[Node]:
        """Every ended particle, as often as it was drawn; ordered by id. If none was drawn because a limit ended the
        search, the ended particles from before the resampling."""
        for particles in (self._resampled(tree, tree.deepest), self._arrived(tree, tree.deepest)):
            ended = {node: count for node, count in particles.items() if node.status is NodeStatus.TERMINAL}
            if ended:
                break
        return [node for node in sorted(ended, key=lambda node: node.id) for _ in range(ended[node])]

    def votes(self, tree: SearchTree, node: Node) -> Fraction:
        """One per particle: a path that was written or drawn several times is that many particles."""
        return Fraction(1)

    def _arrived(self, tree: SearchTree, depth: int) -> dict[Node, int]:
        """The particles of a level with their counts, before resampling."""
        if not depth:
            return {tree.root: self.n}
        above = self._resampled(tree, depth - 1)
        stayed = {node: count for node, count in above.items() if node.status is NodeStatus.TERMINAL}
        new = {node: node.count for node in tree.level(depth) if node.count and node.reward is not None}
        return stayed | new

    def _resampled(self, tree: SearchTree, depth: int) -> dict[Node, int]:
        """The particles of a level with their counts, after resampling, ended ones included."""
        if (ParticleFilter, depth) not in tree.strategy_cache:
            particles = self._drawn(tree, depth)
            if depth >= tree.deepest:  # The level may still grow, so it is not cached.
                return particles
            tree.strategy_cache[ParticleFilter, depth] = particles
        return tree.strategy_cache[ParticleFilter, depth]  # type: ignore[no-any-return]

    def _drawn(self, tree: SearchTree, depth: int) -> dict[Node, int]:
        particles = self._arrived(tree, depth)
        if not depth or all(node.status is NodeStatus.TERMINAL for node in particles):
            return particles
        each = [node for node, count in particles.items() for _ in range(count)]
        odds = {node: _log_odds(node, self.lookahead) for node in particles}
        weights = softmax([odds[node] for node in each], self.weight_temperature)
        given_back = sum(len(node.given_back) for node in self._resampled(tree, depth - 1))
        if given_back:
            # Written children also carry the weight of the siblings that were given back.
            weights = shares([weight * _stands_for(node, depth) for weight, node in zip(weights, each, strict=True)])
        elif effective_sample_size(weights) >= self.resample_below * len(each):
            return particles
        start = Random(f"particles:{tree.seed}:{depth}").random()
        drawn: dict[Node, int] = {}
        for index in systematic(weights, start, len(each) + given_back):
            drawn[each[index]] = drawn.get(each[index], 0) + 1
        return drawn


def _stands_for(node: Node, depth: int) -> float:
    """The number of requested particles per written one below a node's parent: above 1 if some were given back."""
    return node.parent.asked / len(node.parent.children) if node.parent and node.depth == depth else 1.0


def _log_odds(node: Node, lookahead: int) -> float:
    reward = min(max(rank_score(node, Aggregation.LAST, lookahead), MIN_ODDS), 1.0 - MIN_ODDS)
    return math.log(reward / (1.0 - reward))
