"""Global frontier search: the most promising open node of the whole tree is taken up next."""

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from search.caps import Uncapped, Width
from search.strategies.backup import backed_up
from search.strategies.base import Expansion, Strategy
from search.strategies.path_score import mean_logprob, path_score
from search.strategies.visit_statistics import (
    MAX_ITERATIONS,
    VisitStatistics,
    closed_nodes,
    inner_nodes,
    missing_children,
    visit_statistics,
)
from search.tree import Node, NodeStatus, SearchTree


class Frontier(Strategy):
    """The most promising open node of the whole tree is taken up next.

    Source: Wu et al. 2025, "DeepSearch" (arXiv 2509.25454).

    Of all open nodes the best by quality of the parent, quality, entropy and depth is expanded; from its children the
    search goes on downwards by UCT until a solution is reached, then it chooses globally again. The quality of a node
    is backed up from the solutions below it; where there is none yet, it is what the reward model says, from -1 to 1.
    """

    name: Literal["frontier"] = "frontier"
    iterations: Uncapped = Field(32, ge=1, le=MAX_ITERATIONS, description="Nodes to expand.")
    width: Width = Field(8, description="Children of an expanded node.")
    parent_weight: float = Field(0.4, ge=0.0, le=100.0, description="Of the parent's quality (lambda 1).")
    entropy_weight: float = Field(0.4, ge=0.0, le=100.0, description="Of the step's entropy (lambda 2).")
    depth_weight: float = Field(0.01, ge=0.0, le=100.0, description="Of the depth (lambda 3).")
    quality_weight: float = Field(0.0, ge=0.0, le=100.0, description="Of the node's own quality (lambda 4).")
    exploration: float = Field(2.0, ge=0.0, le=100.0, description="The constant of UCT among siblings.")

    @property
    def needs_logprobs(self) -> bool:
        return self.entropy_weight > 0

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        if tree.in_flight:
            return []
        expanded = [node for node in inner_nodes(tree) if node.children]
        if not expanded:
            return [Expansion(tree.root, self.width)]
        if unfinished := missing_children(tree, self.width):
            return unfinished
        if len(expanded) >= self.iterations:
            return []
        quality = qualities(tree, self)
        newest = list(inner_nodes(tree))[-1].parent
        node = self._descended(newest, tree, quality) if newest is not None else None
        node = node or self._globally_best(tree, quality)
        return [Expansion(node, self.width)] if node is not None else []

    def _descended(self, newest: Node, tree: SearchTree, quality: dict[Node, float]) -> Node | None:
        """The best child of the node that was expanded last; None if that one has ended."""
        statistics = visit_statistics(tree, lambda node: 0.0)
        arrived = [child for child in newest.children.values() if child in statistics]
        best = min(arrived, key=lambda child: (-self._uct(child, statistics, quality), child.id), default=None)
        return best if best is not None and best.status is NodeStatus.OPEN and not best.children else None

    def _uct(self, node: Node, statistics: dict[Node, VisitStatistics], quality: dict[Node, float]) -> float:
        assert node.parent is not None
        return quality[node] + self.exploration * math.sqrt(
            math.log(statistics[node.parent].visits) / statistics[node].visits
        )

    def _globally_best(self, tree: SearchTree, quality: dict[Node, float]) -> Node | None:
        closed = closed_nodes(tree)
        candidates = [node for node in tree.with_status(NodeStatus.OPEN) if not node.children and node not in closed]
        return min(candidates, key=lambda node: (-self._promise(node, quality), node.id), default=None)

    def _promise(self, node: Node, quality: dict[Node, float]) -> float:
        entropy = -mean_logprob(node) if self.entropy_weight else 0.0
        return (
            self.parent_weight * math.tanh(quality.get(node.parent, 0.0) if node.parent else 0.0)
            + self.quality_weight * math.tanh(quality[node])
            + self.entropy_weight * entropy
            + self.depth_weight * math.sqrt(node.depth / self.max_depth)
        )


def qualities(tree: SearchTree, strategy: Strategy) -> dict[Node, float]:
    """The quality of every node that has arrived: what the solutions below it are given by backup."""
    backed = backed_up(
        (end.path, _centred(path_score(end, strategy.aggregation)))
        for end in inner_nodes(tree)
        if end.status is NodeStatus.TERMINAL
    )
    return {
        node: backed.get(node, _centred(path_score(node, strategy.aggregation)))
        for node in inner_nodes(tree)
        if node.status in (NodeStatus.OPEN, NodeStatus.TERMINAL)
    }


def _centred(score: float | None) -> float:
    return 0.0 if score is None else 2.0 * score - 1.0
