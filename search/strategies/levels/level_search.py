"""Base of the strategies that grow a tree level by level.

A level is decided when all of it has been written and scored, so one seed gives one tree whatever the order of arrival.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate

from pydantic import Field, ValidationInfo
from pydantic_core import PydanticCustomError

from search.caps import Uncapped, Width
from search.ports import StopCondition
from search.strategies.base import Expansion, ExpectedChildren, Strategy
from search.tree import GIVEN_UP, Node, NodeStatus, SearchTree

MAX_LOOKAHEAD = 16
ROUNDING = 1e-9
"""Tolerance for floating-point error when a share is rounded up."""


class LevelSearch(Strategy):
    """A strategy that decides, level by level, how many children each path gets."""

    lookahead: Uncapped = Field(
        0, ge=0, le=MAX_LOOKAHEAD, description="Greedy steps to write and score after each step before it is ranked."
    )

    n: Width = Field(16, description="Children per level.")

    @property
    def expected_children(self) -> ExpectedChildren | None:
        """One for each sample: a level has about as many as the one above it."""
        return None if self.lookahead else ExpectedChildren(1, self.n)

    @abstractmethod
    def allocation(self, tree: SearchTree, depth: int) -> Mapping[Node, int]:
        """The number of children for each open path of a level. 0 prunes a path; a path without an entry stays as it
        is.

        It depends only on nodes at that level and above.
        """

    def stop_condition_below(self, depth: int) -> StopCondition | None:
        """The stop condition of the children of a level; None: the strategy's own."""
        return None

    def least(self, share: int) -> int:
        """The number of required children of a path with ``share`` children. The generator may give back the rest."""
        return 1

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        if tree.in_flight:
            return []
        depth = tree.deepest
        # If a tight budget granted only part of a level, continue that level while the budget lasts.
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
        """Whether a level has all its nodes and their lookaheads."""
        return not ((depth and self._missing(tree, depth - 1)) or self._ahead(tree, depth))

    def _decided(self, tree: SearchTree, depth: int) -> Mapping[Node, int]:
        """The allocation of a complete level, cached in the tree."""
        if (LevelSearch, depth) not in tree.strategy_cache:
            tree.strategy_cache[LevelSearch, depth] = self.allocation(tree, depth)
        return tree.strategy_cache[LevelSearch, depth]  # type: ignore[no-any-return]

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
        """The next greedy step of every lookahead that is shorter than ``lookahead`` steps."""
        if not self.lookahead or not depth:
            return []
        return [
            Expansion(end, 1, lookahead=True)
            for end in (node.lookahead_end(self.lookahead) for node in tree.level(depth))
            if end.status is NodeStatus.OPEN and end.depth - depth < self.lookahead
        ]


def scored(tree: SearchTree, depth: int) -> list[Node]:
    """The nodes of a level that were open when it was complete, also those given up since; ordered by id."""
    return [
        node
        for node in tree.level(depth)
        if node.status is NodeStatus.OPEN or (node.status in GIVEN_UP and node.reward is not None)
    ]


def dealt(width: int, weights: Sequence[float]) -> list[int]:
    """Allocates ``width`` children in proportion to non-negative weights. Returns counts in the order of the weights;
    their sum is exactly ``width``.

    From the heaviest weight to the lightest, each gets its share of the remaining width, rounded up, so that only the
    lightest may get none. On a tie the first goes first.
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
    """Validator for strategies whose ``n`` must be a multiple of their ``m``."""
    n = info.data.get("n")
    if n is not None and n % m:
        raise PydanticCustomError("multiple_of", "n = {n} is not a multiple of m = {m}", {"n": n, "m": m})
    return m
