"""Global frontier search: expands the most promising open node of the whole tree."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal, NamedTuple, Self
from weakref import proxy

from pydantic import Field

from search.caps import Uncapped, Width
from search.strategies.base import Expansion, ExpectedChildren, Strategy
from search.strategies.mcts.backup import credited, gain
from search.strategies.mcts.visit_statistics import MAX_ITERATIONS, Expansions, clear_statistics, upwards
from search.strategies.path_score import mean_logprob, path_score
from search.tree import Node, NodeId, NodeStatus, SearchTree


class Frontier(Strategy):
    """Expands the most promising open node of the whole tree.

    Source: Wu et al. 2025, "DeepSearch" (arXiv 2509.25454).

    It expands the best of all open nodes by the parent's quality, its own quality, entropy and depth. From its children
    the search descends by UCT until it reaches a solution, then it chooses globally again. A node's quality is backed
    up from the solutions below it; without any, it is the path score, scaled to [-1, 1].

    If siblings are merged, a node stays a candidate while it has fewer than ``width`` distinct children. The candidates
    with the fewest expansions go first, and the root again when there is no other, so the search uses its whole budget.
    """

    name: Literal["frontier"] = "frontier"
    iterations: Uncapped = Field(32, ge=1, le=MAX_ITERATIONS, description="Number of nodes to expand.")
    width: Width = Field(8, description="Children per expanded node.")
    parent_weight: float = Field(0.4, ge=0.0, le=100.0, description="Weight of the parent's quality (lambda 1).")
    entropy_weight: float = Field(0.4, ge=0.0, le=100.0, description="Weight of the step's entropy (lambda 2).")
    depth_weight: float = Field(0.01, ge=0.0, le=100.0, description="Weight of the depth (lambda 3).")
    quality_weight: float = Field(0.0, ge=0.0, le=100.0, description="Weight of the node's own quality (lambda 4).")
    exploration: float = Field(2.0, ge=0.0, le=100.0, description="Exploration constant of UCT among siblings.")

    @property
    def needs_logprobs(self) -> bool:
        return self.entropy_weight > 0

    @property
    def expected_children(self) -> ExpectedChildren:
        return ExpectedChildren(self.width, self.width)

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        if tree.in_flight:
            return []
        known = tree.fold(Promises, self)
        if unfinished := known.expansions.unfinished:
            return unfinished
        if known.expansions.begun >= self.iterations:
            return []
        node = known.best_newest() or known.globally_best()
        return [Expansion(node, self.width)] if node is not None else []


@dataclass(eq=False, slots=True)
class FrontierStats:
    """A frontier search's statistics of a node and the subtree below it."""

    visits: int = 0
    """Number of steps written here and below; repeated steps count each time."""
    samples: int = 0
    """Number of children that arrived, repeated ones included, plus children given back."""
    distinct: int = 0
    """Number of children with distinct texts."""
    own_quality: float = 0.0
    """The path score, scaled to [-1, 1]."""
    worth: float | None = None
    """Value backed up from the solutions below; None without any."""

    candidates: list[tuple["Rank", Node]] = field(default_factory=list)
    """Heap of the children that may be expanded, each with its rank at the time of entry."""

    @property
    def quality(self) -> float:
        return self.own_quality if self.worth is None else self.worth


class Promises:
    """A frontier search's statistics of its tree, with a priority queue of the nodes that may be expanded.

    Ranks change, so queue entries may be stale: a node is entered again when its rank changes, and stale entries are
    dropped when they reach the front.
    """

    def __init__(self, tree: SearchTree, strategy: Frontier) -> None:
        clear_statistics(tree)
        self.expansions = Expansions(strategy.width)
        self._strategy = strategy
        # A weak reference: the tree refers to this fold, and both are freed with the tree's last reference.
        self._tree: SearchTree = proxy(tree)
        self._newest = tree.root
        """The node that was expanded last."""
        self._queue: list[tuple[Rank, Node]] = []
        """Heap with the best child candidate of every node, each with its rank at the time of entry."""
        self._changed: dict[Node, None] = {}
        """Nodes whose rank among their siblings may have changed since they were entered."""
        self._moved: dict[Node, None] = {}
        """Nodes whose best child candidate, or its rank, may have changed."""
        promise_of(tree.root)

    @classmethod
    def of(cls, tree: SearchTree, strategy: Frontier) -> Self:
        return cls(tree, strategy)

    def take(self, arrived: Sequence[Node]) -> None:
        for node in arrived:
            if not node.is_lookahead and node.first.status in (NodeStatus.OPEN, NodeStatus.TERMINAL):
                self._visit(node)
        for node in self._changed:  # Once each, however many solutions changed it.
            self._enter(node)
        for node in self._moved:
            self._enter_best_below(node)
        self._changed.clear()
        self._moved.clear()

    def best_newest(self) -> Node | None:
        """The best child by UCT of the node that was expanded last; None if that child has ended or has children."""
        arrived = [child for child in self._newest.distinct_children if child.statistics is not None]
        best = min(arrived, key=lambda child: (-self._uct(child), child.id), default=None)
        return best if best is not None and self._is_candidate(best) and not promise_of(best).samples else None

    def globally_best(self) -> Node | None:
        """The most promising of the candidates with the fewest expansions. Without candidates, the root if it may be
        expanded again, else None."""
        while self._queue:
            rank, node = self._queue[0]
            if self._is_candidate(node) and rank == self._rank(node):
                return node
            heappop(self._queue)
        root = self._tree.root
        return root if self._tree.merges_siblings or not promise_of(root).samples else None

    def _visit(self, node: Node) -> None:
        assert node.parent is not None
        first, parent = node.first, node.parent.first
        promise, above = promise_of(first), promise_of(parent)
        self._newest = parent
        before = above.samples
        above.samples += 1 + node.parent.given_back_after(node.id[-1])
        above.distinct += first is node
        self.expansions.count(parent, before, above.samples)
        promise.own_quality = self._centred(first)
        path = upwards(first)
        for passed in path:
            promise_of(passed).visits += 1
        if first.status is NodeStatus.TERMINAL:
            self._back_up(path[:-1], promise.own_quality)
        if first is node:
            self._changed[node] = None
        if above.samples % self._strategy.width == 0:
            self._changed[parent] = None

    def _back_up(self, path: Sequence[Node], value: float) -> None:
        """Credits the steps of a solution, the last one first, with its value."""
        for node in path:
            promise = promise_of(node)
            before = promise.worth
            promise.worth = credited(before, gain(node.depth, len(path), value))
            if promise.worth == before:  # Ranks depend on nothing else that backup changes.
                continue
            # The ranks of its children change, but not their order among themselves.
            self._moved[node] = None
            if self._strategy.quality_weight:
                self._changed[node] = None

    def _enter(self, node: Node) -> None:
        if node.parent is None:
            return
        parent = node.parent.first
        self._moved[parent] = None
        if self._is_candidate(node):
            heappush(promise_of(parent).candidates, (self._own_rank(node), node))

    def _enter_best_below(self, parent: Node) -> None:
        candidates = promise_of(parent).candidates
        while candidates:
            rank, node = candidates[0]
            if self._is_candidate(node) and rank == self._own_rank(node):
                heappush(self._queue, (self._rank(node), node))
                return
            heappop(candidates)

    def _is_candidate(self, node: Node) -> bool:
        if node.status is not NodeStatus.OPEN or node.parent is None:
            return False
        promise = promise_of(node)
        return promise.distinct < self._strategy.width if self._tree.merges_siblings else not promise.samples

    def _rank(self, node: Node) -> "Rank":
        """The rank of a node among all candidates."""
        strategy, parent = self._strategy, node.parent
        from_above = strategy.parent_weight * math.tanh(promise_of(parent.first).quality if parent else 0.0)
        from_depth = strategy.depth_weight * math.sqrt(node.depth / strategy.max_depth)
        quality, entropy = self._own_promise(node)
        return Rank(self._rounds(node), -(from_above + quality + entropy + from_depth), node.id)

    def _own_rank(self, node: Node) -> "Rank":
        """The rank of a node among its siblings, without depth and parent, which they share."""
        return Rank(self._rounds(node), -sum(self._own_promise(node)), node.id)

    def _rounds(self, node: Node) -> int:
        return promise_of(node).samples // self._strategy.width

    def _own_promise(self, node: Node) -> tuple[float, float]:
        strategy = self._strategy
        quality = strategy.quality_weight * math.tanh(promise_of(node).quality) if strategy.quality_weight else 0.0
        return quality, strategy.entropy_weight * -mean_logprob(node) if strategy.entropy_weight else 0.0

    def _uct(self, node: Node) -> float:
        promise = promise_of(node)
        # A repeated step counts as that many copies; UCT uses the visits per copy.
        visits, per_copy = promise_of(self._newest).visits, promise.visits / node.count
        return promise.quality + self._strategy.exploration * math.sqrt(math.log(visits) / per_copy)

    def _centred(self, node: Node) -> float:
        score = path_score(node, self._strategy.aggregation)
        return 0.0 if score is None else 2.0 * score - 1.0


class Rank(NamedTuple):
    """Sort key of a candidate; the smallest is expanded first."""

    rounds: int
    """Number of expansions of the node."""
    minus_promise: float
    id: NodeId


def promise_of(node: Node) -> FrontierStats:
    if node.statistics is None:
        node.statistics = FrontierStats()
    return node.statistics  # type: ignore[no-any-return]  # Declared as Any: each strategy has its own type.
