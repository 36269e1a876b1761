"""Diverse verifier tree search: independent subtrees, the best step of each kept."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pydantic import Field, field_validator

from search.caps import Width
from search.strategies.level_search import LevelSearch, divides_n
from search.strategies.path_score import best_first
from search.tree import Node, NodeStatus, SearchTree


class DVTS(LevelSearch):
    """Independent subtrees, the best step of each kept.

    ``n // m`` subtrees of width ``m``, as in search-and-learn (Beeching et al. 2024).
    Each step writes ``m`` continuations in every subtree and keeps the best one; a subtree ends when that one is
    terminal. The last ``m`` of each subtree are the answers, ``n`` in all.
    """

    name: Literal["dvts"] = "dvts"
    n: Width = Field(16, description="Answers in the end; a multiple of m.")
    m: Width = Field(4, validate_default=True, description="Width: steps written per subtree.")

    _divides_n = field_validator("m")(divides_n)

    def allocation(self, tree: SearchTree, depth: int) -> Mapping[Node, int]:
        if not depth:
            return {tree.root: self.n}
        allocation: dict[Node, int] = {}
        for group in self._subtrees(tree.level(depth)):
            best, *others = best_first(group, self.aggregation)
            if best.status is not NodeStatus.TERMINAL:
                allocation |= {best: self.m} | dict.fromkeys(others, 0)
        return allocation

    def candidates(self, tree: SearchTree) -> list[Node]:
        """The last steps of every subtree, finished or not; ordered by id."""
        nodes = (node for node in tree.nodes if not node.is_lookahead)
        alive = [node for node in nodes if node.status in (NodeStatus.OPEN, NodeStatus.TERMINAL)]
        last: list[Node] = []
        for group in self._subtrees(alive):
            deepest = max(node.depth for node in group)
            last += [node for node in group if node.depth == deepest]
        return sorted(last, key=lambda node: node.id)

    def _subtrees(self, nodes: Sequence[Node]) -> Iterator[list[Node]]:
        """``nodes`` by subtree: each begins with ``m`` children of the root."""
        groups: dict[int, list[Node]] = {}
        for node in nodes:
            if node.status not in (NodeStatus.PENDING, NodeStatus.WRITTEN, NodeStatus.FAILED):
                groups.setdefault(node.id[0] // self.m, []).append(node)
        return iter(groups.values())
