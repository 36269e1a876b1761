"""Visit statistics of an MCTS, updated as the tree grows."""

from bisect import insort
from collections.abc import Sequence
from heapq import merge
from typing import TYPE_CHECKING, Self
from weakref import proxy

from search.ports import StopCondition
from search.strategies.base import Expansion
from search.strategies.mcts.visit_statistics import Expansions, VisitStatistics, clear_statistics, searched, upwards
from search.strategies.path_score import path_score
from search.tree import Node, NodeStatus, SearchTree

if TYPE_CHECKING:
    from search.strategies.mcts.mcts import MCTS


class Visits:
    """The statistics of an MCTS over its tree: visits, values, solutions, leaves without a rollout."""

    def __init__(self, tree: SearchTree, strategy: "MCTS") -> None:
        clear_statistics(tree)
        self.expansions = Expansions(strategy.width)
        self.current_pass = 1
        """The current pass over the tree, counted from 1. In each pass every open node may be expanded once. If
        siblings are merged, the next pass begins when this one is used up; otherwise there is only one pass."""
        self.promising_leaves = 0
        """Number of open nodes that have no children and score at least `MCTS.reject`."""
        self.best: Node | None = None
        """The solution of the highest score."""
        self.runner_up = 0.0
        """The highest score of a solution with another text."""
        self.root = tree.root
        # A weak reference: the tree refers to this fold, and both are freed with the tree's last reference.
        self._tree: SearchTree = proxy(tree)
        self._strategy = strategy
        self._unrolled: dict[Node, None] = {}
        """Leaves that need a rollout."""
        self._rolled: list[Node] = []
        """Terminal nodes of rollouts, ordered by id."""
        self.statistics(tree.root)

    @classmethod
    def of(cls, tree: SearchTree, strategy: "MCTS") -> Self:
        return cls(tree, strategy)

    def take(self, arrived: Sequence[Node]) -> None:
        for node in arrived:
            if node.first.status not in (NodeStatus.OPEN, NodeStatus.TERMINAL):
                continue
            if node.is_lookahead and not self._strategy.rolls_out:
                continue  # No rollout, so it says nothing of the values that were backed up.
            if not node.is_lookahead:
                self._visit(node)
            elif node.parent is not None and not node.parent.is_lookahead:
                self._revalue(node.parent.first)
            if node.status is NodeStatus.TERMINAL:
                self._solve(node)

    @property
    def solutions(self) -> list[Node]:
        """All terminal nodes, rollouts included, ordered by id."""
        return list(merge(self._tree.terminals, self._rolled, key=lambda node: node.id))

    @property
    def unrolled(self) -> list[Expansion]:
        """The rollouts to request for leaves without one."""
        leaves = sorted(self._unrolled, key=lambda node: node.id)
        return [Expansion(leaf, 1, StopCondition.SOLUTION, lookahead=True) for leaf in leaves]

    def arrived_below(self, node: Node) -> list[Node]:
        return [child for child in node.distinct_children if child.statistics is not None]

    def statistics(self, node: Node) -> VisitStatistics:
        """The statistics of a node, which must be the one that represents its text."""
        if node.statistics is None:
            node.statistics = VisitStatistics(since=self.current_pass)
        return node.statistics  # type: ignore[no-any-return]  # Declared as Any: each strategy has its own type.

    def wants_children(self, node: Node) -> bool:
        """Whether the node may get more children in this pass."""
        statistics = self.statistics(node)
        return statistics.samples < (self.current_pass - statistics.since + 1) * self._strategy.width

    def closed(self, node: Node) -> bool:
        """Whether nothing is left to expand below a node in this pass."""
        return node.status is not NodeStatus.OPEN or self.statistics(node).closed_in == self.current_pass

    def closed_children(self, node: Node) -> int:
        """The number of open children that are closed in this pass."""
        in_pass, closed = self.statistics(node).closed_children
        return closed if in_pass == self.current_pass else 0

    def _visit(self, node: Node) -> None:
        """Records a step that was written, for the first time or again."""
        assert node.parent is not None
        first, parent = node.first, node.parent.first
        statistics, above = self.statistics(first), self.statistics(parent)
        if first is node:
            statistics.value = path_score(node, self._strategy.aggregation) or 0.0
            if node.status is NodeStatus.OPEN:
                above.open_children += 1
                self.promising_leaves += self._is_promising(node)
                if self._strategy.rolls_out:
                    self._unrolled[node] = None
        before = above.samples
        if not before:
            self.promising_leaves -= self._is_promising(parent)
            self._unrolled.pop(parent, None)
        above.samples += 1 + node.parent.given_back_after(node.id[-1])
        self.expansions.count(parent, before, above.samples)
        statistics.own_visits += 1
        for passed in upwards(first):
            self.statistics(passed).visits += 1
            self.statistics(passed).total += statistics.value
        self._close(parent)

    def _revalue(self, node: Node) -> None:
        """Updates the value of a node whose rollout has arrived, and the totals above it."""
        statistics = self.statistics(node)
        before, statistics.value = statistics.value, self._strategy.value_of(node)
        for passed in upwards(node):
            self.statistics(passed).total += statistics.own_visits * (statistics.value - before)
        self._unrolled.pop(node, None)

    def _solve(self, node: Node) -> None:
        """Records a path that has ended: marks its nodes as solved, updates the best solution and the runner-up."""
        if node.is_lookahead:
            insort(self._rolled, node, key=lambda member: member.id)
        for passed in upwards(searched(node)):
            if self.statistics(passed).solved:
                break
            self.statistics(passed).solved = True
        first, *others = sorted((self.best or node, node), key=lambda solution: (-self._score(solution), solution.id))
        self.best = first
        if self._strategy.accept is not None and others[0].text != first.text:
            self.runner_up = max(self.runner_up, self._score(others[0]))

    def _score(self, node: Node) -> float:
        return path_score(node, self._strategy.aggregation) or 0.0

    def _is_promising(self, leaf: Node) -> bool:
        reject = self._strategy.reject
        return reject is not None and leaf.parent is not None and self._score(leaf) >= reject

    def _close(self, node: Node) -> None:
        """Closes a node with nothing left to expand in this pass, then the nodes above it for which that is now true.
        When the root closes and siblings are merged, the next pass begins."""
        while not (self.wants_children(node) or self.closed(node)) and (
            self.closed_children(node) == self.statistics(node).open_children
        ):
            self.statistics(node).closed_in = self.current_pass
            if node.parent is None:
                self.current_pass += self._tree.merges_siblings
                return
            node = node.parent.first
            self.statistics(node).closed_children = self.current_pass, self.closed_children(node) + 1
