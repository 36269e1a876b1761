"""Visit statistics of Monte Carlo searches: visits, values, and which nodes are closed.

They are kept on the nodes that represent their texts (`Node.statistics`) and updated along a path when a step arrives
there, so no decision visits the whole tree.
"""

from dataclasses import dataclass

from search.strategies.base import Expansion
from search.tree import Node, SearchTree

MAX_ITERATIONS = 100_000
"""Maximum number of iterations of any such search; equals the largest node budget."""


@dataclass(eq=False, slots=True)
class VisitStatistics:
    """Statistics of a node and the subtree below it."""

    visits: int = 0
    """Number of values backed up through the node, its own included; a repeated step counts each time."""
    total: float = 0.0
    """Sum of these values."""
    value: float = 0.0
    """The node's own value."""
    own_visits: int = 0
    """How often its own value is in ``total``."""
    samples: int = 0
    """Number of children that arrived, repeated ones included, plus children given back."""
    open_children: int = 0
    """Number of distinct children that are open."""
    since: int = 1
    """The pass in which the node arrived."""
    closed_in: int = 0
    """The last pass that left nothing to expand here and below; 0: none yet."""
    closed_children: tuple[int, int] = (0, 0)
    """A pass, and the number of open children that are closed in it."""
    solved: bool = False
    """Whether a path through this node has ended, rollouts included."""

    @property
    def mean(self) -> float:
        return self.total / self.visits if self.visits else 0.0


def clear_statistics(tree: SearchTree) -> None:
    """Clears the statistics that another fold left on the nodes."""
    tree.root.statistics = None
    for node in tree.nodes:
        node.statistics = None


def upwards(node: Node) -> list[Node]:
    """The nodes that represent the texts of a path, from ``node`` up to the root."""
    nodes = [node.first]
    while nodes[-1].parent is not None:
        nodes.append(nodes[-1].parent.first)
    return nodes


def searched(node: Node) -> Node:
    """The node itself; for a lookahead, the node from which it looks ahead."""
    while node.is_lookahead and node.parent is not None:
        node = node.parent
    return node


class Expansions:
    """Counts the expansions of a search that writes ``width`` children at a time."""

    def __init__(self, width: int) -> None:
        self.begun = 0
        self._width = width
        self._unfinished: dict[Node, int] = {}

    def count(self, parent: Node, before: int, samples: int) -> None:
        """Updates the counts for ``parent``. ``samples``: children written or given back below it; ``before``: the same
        at the last call."""
        self.begun += -(-samples // self._width) - -(-before // self._width)
        if missing := -samples % self._width:
            self._unfinished[parent] = missing
        else:
            self._unfinished.pop(parent, None)

    @property
    def unfinished(self) -> list[Expansion]:
        """The missing children of expansions for which a tight budget granted fewer than ``width``. Request them first:
        otherwise the rest of every budget would go into a single path."""
        return [
            Expansion(node, missing)
            for node, missing in sorted(self._unfinished.items(), key=lambda item: item[0].serial)
        ]
