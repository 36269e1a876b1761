"""Particle filtering: solutions as particles that are resampled by their rewards."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from random import Random
from typing import Literal

from pydantic import Field

from search.caps import Width
from search.strategies.levels.level_search import LevelSearch, scored
from search.strategies.path_score import Aggregation, rank_score
from search.tree import Node, NodeStatus, SearchTree

MIN_ODDS = 1e-6
"""Rewards nearer to 0 or 1 than this count as being this near."""


class ParticleFilter(LevelSearch):
    """Solutions as particles, drawn anew by their rewards.

    Source: Puri et al. 2025, "A probabilistic inference approach to inference-time scaling" (arXiv 2502.01618).

    ``n`` particles each write a step at a time. A particle's log-weight is the log-odds of its newest reward. When
    few of them carry most of the weight, all are drawn anew, in proportion to it. Ended particles stay among them.
    Where the generator gave some back, as many as there were are drawn from the others, which weigh for those too.
    """

    name: Literal["particle_filter"] = "particle_filter"
    n: Width = Field(16, description="Particles.")
    weight_temperature: float = Field(1.0, ge=0.01, le=100.0, description="Of the softmax over log-weights.")
    resample_below: float = Field(
        0.5, ge=0.0, le=1.0, description="Resample when the effective sample size is under this share of n."
    )

    def allocation(self, tree: SearchTree, depth: int) -> Mapping[Node, int]:
        if not depth:
            return {tree.root: self.n}
        particles = self._resampled(tree, depth)
        allocation = dict.fromkeys(scored(tree, depth), 0)
        return allocation | {node: count for node, count in particles.items() if node in allocation}

    def candidates(self, tree: SearchTree) -> list[Node]:
        """Every ended particle, as often as it was drawn; ordered by id. Where none was drawn, because a limit ended
        the search, those that were there."""
        for particles in (self._resampled(tree, tree.deepest), self._arrived(tree, tree.deepest)):
            ended = {node: count for node, count in particles.items() if node.status is NodeStatus.TERMINAL}
            if ended:
                break
        return [node for node in sorted(ended, key=lambda node: node.id) for _ in range(ended[node])]

    def votes(self, tree: SearchTree, node: Node) -> Fraction:
        """One for each particle: they are as many as they were written and drawn."""
        return Fraction(1)

    def _arrived(self, tree: SearchTree, depth: int) -> dict[Node, int]:
        """The particles of a level and how often each is there, before they are resampled."""
        if not depth:
            return {tree.root: self.n}
        above = self._resampled(tree, depth - 1)
        stayed = {node: count for node, count in above.items() if node.status is NodeStatus.TERMINAL}
        new = {node: node.count for node in tree.level(depth) if node.count and node.reward is not None}
        return stayed | new

    def _resampled(self, tree: SearchTree, depth: int) -> dict[Node, int]:
        """The particles that go on from a level, and those that have ended, with how many they are."""
        if (ParticleFilter, depth) not in tree.found:
            particles = self._drawn(tree, depth)
            if depth >= tree.deepest:  # more may come
                return particles
            tree.found[ParticleFilter, depth] = particles
        return tree.found[ParticleFilter, depth]  # type: ignore[no-any-return]

    def _drawn(self, tree: SearchTree, depth: int) -> dict[Node, int]:
        particles = self._arrived(tree, depth)
        if not depth or all(node.status is NodeStatus.TERMINAL for node in particles):
            return particles
        each = [node for node, count in particles.items() for _ in range(count)]
        odds = {node: _log_odds(node) for node in particles}
        weights = softmax([odds[node] for node in each], self.weight_temperature)
        given_back = sum(len(node.given_back) for node in self._resampled(tree, depth - 1))
        if given_back:
            # What was written stands for what was not, beside the same step.
            weights = shares([weight * _stands_for(node, depth) for weight, node in zip(weights, each, strict=True)])
        elif effective_sample_size(weights) >= self.resample_below * len(each):
            return particles
        start = Random(f"particles:{tree.seed}:{depth}").random()
        drawn: dict[Node, int] = {}
        for index in systematic(weights, start, len(each) + given_back):
            drawn[each[index]] = drawn.get(each[index], 0) + 1
        return drawn


def softmax(logs: Sequence[float], temperature: float) -> list[float]:
    top = max(logs)
    return shares([math.exp((log - top) / temperature) for log in logs])


def shares(weights: Sequence[float]) -> list[float]:
    """Of their sum."""
    whole = math.fsum(weights)
    return [weight / whole for weight in weights]


def effective_sample_size(weights: Sequence[float]) -> float:
    """Of weights that sum to 1: their number where all are equal, 1 where one has all."""
    return 1.0 / math.fsum(weight * weight for weight in weights)


def systematic(weights: Sequence[float], start: float, count: int | None = None) -> list[int]:
    """``count`` places, as many as there are weights if not given, evenly spaced over these (which sum to 1) from
    ``start`` in [0, 1): each is drawn its expected number of times, rounded up or down."""
    count = len(weights) if count is None else count
    drawn: list[int] = []
    index, passed = 0, weights[0]
    for tooth in range(count):
        at = (tooth + start) / count
        while at >= passed and index < len(weights) - 1:
            index += 1
            passed += weights[index]
        drawn.append(index)
    return drawn


def _stands_for(node: Node, depth: int) -> float:
    """How many of the particles that were to be written at that depth each copy of a node is there for."""
    return node.parent.asked / len(node.parent.children) if node.parent and node.depth == depth else 1.0


def _log_odds(node: Node) -> float:
    reward = min(max(rank_score(node, Aggregation.LAST), MIN_ODDS), 1.0 - MIN_ODDS)
    return math.log(reward / (1.0 - reward))
