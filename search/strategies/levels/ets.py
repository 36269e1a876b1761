"""ETS: REBASE over a subset of leaves, chosen by reward, diversity and the KV memory of their paths."""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from search.problem import Problem
from search.strategies.levels.level_search import scored
from search.strategies.levels.rebase import Balanced
from search.strategies.levels.retention import Retention, kept_leaves
from search.tree import Node, SearchTree


class ETS(Balanced):
    """REBASE over the paths that are worth the KV memory they hold.

    Source: Hooper et al. 2025, "ETS: efficient tree search" (arXiv 2502.13575).

    At each level it keeps the set of leaves with the best trade-off between REBASE weight, KV held by their paths, and
    diversity of their steps. The width is then allocated to these leaves as in REBASE.
    """

    name: Literal["ets"] = "ets"
    node_weight: float = Field(1.0, ge=0.0, le=100.0, description="Weight of the KV cost (lambda_b).")
    diversity_weight: float | None = Field(
        None,
        ge=0.0,
        le=100.0,
        description="Weight of covering another cluster of steps (lambda_d). Unset: chosen by width.",
    )
    node_cost: Literal["nodes", "tokens"] = Field(
        "nodes", description="Cost of keeping a node: 1, or the tokens of its KV."
    )

    def allocation(self, tree: SearchTree, depth: int) -> Mapping[Node, int]:
        if not depth:
            return {tree.root: self.n}
        leaves, width = scored(tree, depth), self.left(tree, depth)
        if width <= 0 or len(leaves) < 2:
            return self.allocated(leaves, width)
        kept = [leaves[index] for index in self._which_to_keep(leaves, width).solution(tree)]
        return dict.fromkeys(leaves, 0) | self.allocated(kept, width)

    def problem(self, tree: SearchTree) -> Problem | None:
        """The problem which leaves of the deepest level to keep; None until that level is complete."""
        depth = tree.deepest
        if not depth or self._missing(tree, depth - 1) or self._ahead(tree, depth):
            return None
        leaves, width = scored(tree, depth), self.left(tree, depth)
        if width <= 0 or len(leaves) < 2:
            return None
        problem = self._which_to_keep(leaves, width)
        return None if problem in tree.strategy_cache else problem

    def _which_to_keep(self, leaves: Sequence[Node], width: int) -> Problem:
        # Without a solution all leaves are kept, as in REBASE.
        return Problem(kept_leaves, self._retention(leaves, width), fallback=tuple(range(len(leaves))))

    def _retention(self, leaves: Sequence[Node], width: int) -> Retention:
        counts = self.allocated(leaves, width)
        nodes = list(leaves)
        index = {leaf: number for number, leaf in enumerate(leaves)}
        for node in nodes:  # The list grows by all nodes above the leaves.
            if node.parent is not None and node.parent not in index:
                index[node.parent] = len(nodes)
                nodes.append(node.parent)
        return Retention(
            values=tuple(counts[leaf] / width for leaf in leaves),
            texts=tuple(leaf.step.solution if leaf.step else "" for leaf in leaves),
            costs=tuple(map(self._cost, nodes)),
            parents=tuple(-1 if node.parent is None else index[node.parent] for node in nodes),
            node_weight=self.node_weight,
            diversity_weight=self._diversity,
        )

    def _cost(self, node: Node) -> int:
        if self.node_cost == "nodes":
            return 1
        return node.step.size if node.step else 0  # The root is free: the prompt's KV is held in any case.

    @property
    def _diversity(self) -> float:
        """The diversity weight: the setting, or the paper's values for widths of 16, 64 and 256."""
        if self.diversity_weight is not None:
            return self.diversity_weight
        return 1.5 if self.n <= 32 else 1.4 if self.n <= 128 else 1.45
