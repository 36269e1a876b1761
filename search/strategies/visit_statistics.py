"""What Monte Carlo searches know of the nodes of a tree: visits, values, and where nothing is left to do."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from search.strategies.base import Expansion
from search.tree import ENDED, Node, NodeStatus, SearchTree

MAX_ITERATIONS = 2_000
"""Of any such search: each looks at the whole tree."""


class VisitStatistics(NamedTuple):
    """What is known of a node and all below it."""

    visits: int = 0
    """Values that came from here."""
    total: float = 0.0
    """Their sum."""
    in_flight: int = 0
    """Values that are on their way."""

    @property
    def mean(self) -> float:
        return self.total / self.visits if self.visits else 0.0

    @property
    def expected_visits(self) -> int:
        """Visits, those under way included."""
        return self.visits + self.in_flight


def visit_statistics(tree: SearchTree, value_of: Callable[[Node], float]) -> dict[Node, VisitStatistics]:
    """The mark of the root and of every node that has arrived: its value counts for itself and all above it."""
    statistics: dict[Node, VisitStatistics] = {}
    for node in reversed(list(inner_nodes(tree))):  # children come before their parents
        below = statistics.get(node, VisitStatistics())
        if node.parent is None:
            statistics[node] = below
        elif node.status in (NodeStatus.OPEN, NodeStatus.TERMINAL):
            own = statistics[node] = VisitStatistics(below.visits + 1, below.total + value_of(node))
            above = statistics.get(node.parent, VisitStatistics())
            statistics[node.parent] = VisitStatistics(above.visits + own.visits, above.total + own.total)
    return statistics


def missing_children(tree: SearchTree, width: int) -> list[Expansion]:
    """What is left of expansions of which a tight budget granted fewer than ``width`` children. To be asked for before
    anything else: else each budget's last part would go into a single path."""
    return [
        Expansion(node, width - len(node.children))
        for node in inner_nodes(tree)
        if 0 < len(node.children) < width and node.status not in ENDED
    ]


def closed_nodes(tree: SearchTree) -> set[Node]:
    """Nodes below which nothing is left to expand."""
    closed: set[Node] = set()
    for node in sorted(inner_nodes(tree), key=lambda node: -node.depth):
        if node.status in ENDED or (node.children and closed.issuperset(node.children.values())):
            closed.add(node)
    return closed


def close(node: Node, closed: set[Node]) -> None:
    """Adds a node to ``closed``, and those above it below which nothing is left then."""
    above: Node | None = node
    while above is not None and (above is node or closed.issuperset(above.children.values())):
        closed.add(above)
        above = above.parent


def inner_nodes(tree: SearchTree) -> Iterator[Node]:
    """The root and every node that is no lookahead, in the order in which they were asked for."""
    yield tree.root
    yield from (node for node in tree.nodes if not node.is_lookahead)
