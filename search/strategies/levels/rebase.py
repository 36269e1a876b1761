"""REBASE: a fixed width, dealt over the frontier in proportion to exponentiated rewards."""

import math
from collections.abc import Mapping, Sequence
from operator import mul
from typing import Literal

from pydantic import Field

from search.caps import Depth, Width
from search.strategies.levels.level_search import LevelSearch, dealt, scored
from search.strategies.path_score import Aggregation, rank_score
from search.tree import Node, SearchTree


class Balanced(LevelSearch):
    """A search whose width is dealt over each level by ``allocate_width``: what REBASE and ETS share."""

    n: Width = Field(16, description="Width: children per level, and solutions in the end.")
    balance_temperature: float = Field(
        0.2, ge=0.001, le=100.0, description="Of the softmax over rewards: lower prefers the best more."
    )
    max_depth: Depth = Field(25, description="Most steps on a path.")

    def left(self, tree: SearchTree, depth: int) -> int:
        """The width that is left for the children of a level."""
        return self.n - tree.ended(depth)

    def allocated(self, paths: Sequence[Node], width: int) -> dict[Node, int]:
        rewards = [rank_score(node, Aggregation.LAST) for node in paths]
        counts = [node.count for node in paths]
        return dict(zip(paths, allocate_width(rewards, width, self.balance_temperature, counts), strict=True))


class Rebase(Balanced):
    """A fixed width, dealt over each level by reward.

    Source: Wu et al. 2024, "Inference scaling laws" (arXiv 2408.00724).

    The root gets ``n`` children. After that each level's paths share what is left of the width: the better the last
    reward, the more children; a path that ends takes one off the width for good.
    """

    name: Literal["rebase"] = "rebase"

    def allocation(self, tree: SearchTree, depth: int) -> Mapping[Node, int]:
        if not depth:
            return {tree.root: self.n}
        return self.allocated(scored(tree, depth), self.left(tree, depth))


def allocate_width(
    rewards: Sequence[float], width: int, temperature: float, counts: Sequence[int] | None = None
) -> list[int]:
    """``width`` children dealt over paths with these rewards, in their order; the sum is ``width`` exactly.

    In proportion to the exponentials of the rewards, and to ``counts``: how many paths each of them stands for, 1 if
    not given.
    """
    if not rewards:
        return []
    best = max(rewards)  # relative to the best, so that nothing overflows
    weights = [math.exp((reward - best) / temperature) for reward in rewards]
    return dealt(width, weights if counts is None else list(map(mul, counts, weights)))
