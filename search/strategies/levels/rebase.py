"""REBASE: a fixed width, allocated to the paths of each level by a softmax over their rewards."""

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
    """Base of REBASE and ETS: the width is allocated at each level by ``allocate_width``."""

    n: Width = Field(16, description="Width: children per level, and number of solutions.")
    balance_temperature: float = Field(
        0.2,
        ge=0.001,
        le=100.0,
        description="Temperature of the softmax over rewards; lower values give the best nodes more children.",
    )
    max_depth: Depth = Field(25, description="Maximum steps of a path.")

    def left(self, tree: SearchTree, depth: int) -> int:
        """The width left for the children of a level: ``n`` minus the paths that have ended."""
        return self.n - tree.ended(depth)

    def allocated(self, paths: Sequence[Node], width: int) -> dict[Node, int]:
        """The width allocated to these paths by their last rewards."""
        rewards = [rank_score(node, Aggregation.LAST, self.lookahead) for node in paths]
        counts = [node.count for node in paths]
        return dict(zip(paths, allocate_width(rewards, width, self.balance_temperature, counts), strict=True))


class Rebase(Balanced):
    """Allocates a fixed width at each level, by reward.

    Source: Wu et al. 2024, "Inference scaling laws" (arXiv 2408.00724).

    The root gets ``n`` children. At each later level the open paths share the remaining width: the higher the last
    reward, the more children. Each path that ends reduces the width by one for good.
    """

    name: Literal["rebase"] = "rebase"

    def allocation(self, tree: SearchTree, depth: int) -> Mapping[Node, int]:
        if not depth:
            return {tree.root: self.n}
        return self.allocated(scored(tree, depth), self.left(tree, depth))


def allocate_width(
    rewards: Sequence[float], width: int, temperature: float, counts: Sequence[int] | None = None
) -> list[int]:
    """Allocates ``width`` children to paths with these rewards. Returns counts in the order of the paths; their sum is
    exactly ``width``.

    The weight of a path is ``count * exp(reward / temperature)``; ``counts`` says how many paths each entry represents,
    1 if not given.
    """
    if not rewards:
        return []
    best = max(rewards)  # Relative to the best, so that exp does not overflow.
    weights = [math.exp((reward - best) / temperature) for reward in rewards]
    return dealt(width, weights if counts is None else list(map(mul, counts, weights)))
