"""What Monte Carlo searches know of the nodes of a tree: visits, values, and where nothing is left to do.

It is kept on the nodes (`Node.statistics`), on the one that stands for a text, and changes along a path when something
arrives there: no decision looks at the whole tree.
"""

from dataclasses import dataclass

from search.strategies.base import Expansion
from search.tree import Node, SearchTree

MAX_ITERATIONS = 100_000
"""Of any such search: as many as a budget may have nodes."""


@dataclass(eq=False, slots=True)
class VisitStatistics:
    """What is known of a node and all below it."""

    visits: int = 0
    """Values that came from here: a step that was written again is another one."""
    total: float = 0.0
    """Their sum."""
    value: float = 0.0
    """The node's own."""
    own_visits: int = 0
    """How often its own value is in the sum."""
    samples: int = 0
    """Children that have arrived, each as often as it was written, and those that were given back."""
    open_children: int = 0
    """Distinct ones below which something may be written."""
    since: int = 1
    """The pass in which it arrived."""
    closed_in: int = 0
    """The last pass in which all that it allows was written here and below; 0: in none."""
    closed_children: tuple[int, int] = (0, 0)
    """A pass, and how many of the open children are closed in it."""
    solved: bool = False
    """Whether a path through here has ended, a rollout too."""

    @property
    def mean(self) -> float:
        return self.total / self.visits if self.visits else 0.0


def clear_statistics(tree: SearchTree) -> None:
    """Forgets what another fold knew of the nodes."""
    tree.root.statistics = None
    for node in tree.nodes:
        node.statistics = None


def upwards(node: Node) -> list[Node]:
    """The nodes that stand for the texts of a path, from ``node`` up to the root."""
    nodes = [node.first]
    while nodes[-1].parent is not None:
        nodes.append(nodes[-1].parent.first)
    return nodes


def searched(node: Node) -> Node:
    """The node itself, or the one from which it looks ahead."""
    while node.is_lookahead and node.parent is not None:
        node = node.parent
    return node


class Expansions:
    """The expansions of a search that writes ``width`` children at a time."""

    def __init__(self, width: int) -> None:
        self.begun = 0
        self._width = width
        self._unfinished: dict[Node, int] = {}

    def count(self, parent: Node, before: int, samples: int) -> None:
        """``samples`` children have been written below ``parent`` or given back; ``before`` of them were counted."""
        self.begun += -(-samples // self._width) - -(-before // self._width)
        if missing := -samples % self._width:
            self._unfinished[parent] = missing
        else:
            self._unfinished.pop(parent, None)

    @property
    def unfinished(self) -> list[Expansion]:
        """What is left of expansions of which a tight budget granted fewer than ``width`` children. To be asked for
        before anything else: else each budget's last part would go into a single path."""
        return [
            Expansion(node, missing)
            for node, missing in sorted(self._unfinished.items(), key=lambda item: item[0].serial)
        ]
