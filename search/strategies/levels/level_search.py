"""Searches that grow a tree level by level: what they have in common.

A level is decided when all of it has been written and scored, so one seed gives one tree whatever the order
of arrival.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate

from pydantic import Field, ValidationInfo
from pydantic_core import PydanticCustomError

from search.caps import Uncapped
from search.ports import StopCondition
from search.strategies.base import Expansion, Strategy
from search.tree import Node, NodeStatus, SearchTree

MAX_LOOKAHEAD = 16
ROUNDING = 1e-9
"""What a share may exceed a whole number by and still be that number."""


class LevelSearch(Strategy):
    """A strategy that decides, level by level, how many children each path gets."""

    lookahead: Uncapped = Field(
        0, ge=0, le=MAX_LOOKAHEAD, description="Greedy steps written and scored ahead of each step to rank it."
    )

    @abstractmethod
    def allocation(self, tree: SearchTree, depth: int) -> Mapping[Node, int]:
        """How many children the open paths of a level get: 0 gives one up, a path that is not named stays.

        It depends on what was written and scored down to that level, and on nothing below it.
        """

    def stop_condition_below(self, depth: int) -> StopCondition | None:
        """How far the children of a level are written, where it is not the usual stop condition."""
        return None

    def least(self, share: int) -> int:
        """How many of the children of a path that gets so many are needed, where not all can be had."""
        return 1

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        if tree.in_flight:
            return []
        depth = tree.deepest
        # A tight budget granted less than a whole level: go on with the same one while it can.
        missing = self._missing(tree, depth - 1) if depth else []
        return missing or self._ahead(tree, depth) or self._missing(tree, depth)

    def prepare(self, tree: SearchTree) -> None:
        if self._is_complete(tree, tree.deepest):
            self._decided(tree, tree.deepest)

    def observe(self, tree: SearchTree, arrived: Sequence[Node]) -> None:
        if tree.in_flight or not self._is_complete(tree, tree.deepest):
            return
        for node, share in self._decided(tree, tree.deepest).items():
            if share == 0 and node.status is NodeStatus.OPEN:
                tree.prune(node)

    def _is_complete(self, tree: SearchTree, depth: int) -> bool:
        """Whether all of a level and ahead of it is there."""
        return not ((depth and self._missing(tree, depth - 1)) or self._ahead(tree, depth))

    def _decided(self, tree: SearchTree, depth: int) -> Mapping[Node, int]:
        """The allocation of a level that is complete."""
        if (LevelSearch, depth) not in tree.found:
            tree.found[LevelSearch, depth] = self.allocation(tree, depth)
        return tree.found[LevelSearch, depth]  # type: ignore[no-any-return]

    def _missing(self, tree: SearchTree, depth: int) -> list[Expansion]:
        return [
            Expansion(
                node,
                share - node.asked,
                self.stop_condition_below(depth),
                least=max(1, self.least(share) - len(node.children)),
            )
            for node, share in self._decided(tree, depth).items()
            if node.status is NodeStatus.OPEN and share > node.asked
        ]

    def _ahead(self, tree: SearchTree, depth: int) -> list[Expansion]:
        """The next greedy steps of every lookahead that is not long enough yet."""
        if not self.lookahead or not depth:
            return []
        return [
            Expansion(end, 1, lookahead=True)
            for end in (node.lookahead_end for node in tree.level(depth))
            if end.status is NodeStatus.OPEN and end.depth - depth < self.lookahead
        ]


def scored(tree: SearchTree, depth: int) -> list[Node]:
    """The paths of a level that could go on, those given up since included; ordered by id."""
    return [
        node
        for node in tree.level(depth)
        if node.status is NodeStatus.OPEN or (node.status is NodeStatus.PRUNED and node.reward is not None)
    ]


def dealt(width: int, weights: Sequence[float]) -> list[int]:
    """``width`` children dealt in proportion to these weights (none negative), in their order; the sum is ``width``
    exactly.

    The heaviest first, each gets its share of what is left, rounded up, so that the heaviest are served and the
    lightest go without; of equal ones the first.
    """
    order = sorted(range(len(weights)), key=lambda index: -weights[index])
    # Sums from the lightest up: subtracting would lose digits.
    sums = list(accumulate(weights[index] for index in reversed(order)))[::-1]
    shares = [0] * len(weights)
    for index, rest in zip(order, sums, strict=True):
        if width <= 0:
            break
        shares[index] = min(width, math.ceil(width * weights[index] / rest - ROUNDING)) if rest else width
        width -= shares[index]
    return shares


def divides_n(m: int, info: ValidationInfo) -> int:
    """For strategies whose ``n`` must be a multiple of their ``m``."""
    n = info.data.get("n")
    if n is not None and n % m:
        raise PydanticCustomError("multiple_of", "n = {n} is not a multiple of m = {m}", {"n": n, "m": m})
    return m
