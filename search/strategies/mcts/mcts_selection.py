"""Leaf selection of MCTS, by UCT or PUCT."""

import math
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

from search.strategies.mcts.mcts_visits import Visits
from search.strategies.mcts.visit_statistics import upwards
from search.strategies.path_score import mean_logprob
from search.tree import Node


class Prior(StrEnum):
    """The prior of a node among its siblings."""

    NONE = "none"
    """No prior: nodes are selected by UCT."""
    REWARD = "reward"
    """The reward's share among the siblings: nodes are selected by PUCT."""
    LOGPROB = "logprob"
    """PUCT too, with the share of the step's probability (geometric mean over tokens)."""


class LeafSelection:
    """Selects nodes to expand, one after the other, each as if those before were already visited.

    A repeated step counts as that many copies, and the score uses its visits per copy. With its total visits instead,
    the steps that the generator is surest of would be selected last.

    Selection changes neither the tree nor its statistics.
    """

    def __init__(self, visits: Visits, width: int, exploration: float, prior: Prior) -> None:
        self._visits = visits
        self._width = width
        self._exploration = exploration
        self._prior = prior
        self._chosen: set[Node] = set()
        """Selected nodes, and nodes above them that have nothing else left to expand."""
        self._closed_children: Counter[Node] = Counter()
        """Number of children of each node that are in ``_chosen``."""
        self._in_flight: Counter[Node] = Counter()
        """Expected visits of each node from the selected expansions."""

    def leaves(self, count: int) -> list[Node]:
        """The next nodes to expand, at most ``count``. They are leaves or, if siblings are merged, nodes that may have
        more children."""
        chosen: list[Node] = []
        while len(chosen) < count and not self._closed(self._visits.root):
            node = self._visits.root
            while not self._visits.wants_children(node):
                node = self._best_child(node)
            chosen.append(node)
            self._close(node)
            for passed in upwards(node):
                self._in_flight[passed] += self._width
        return chosen

    def _closed(self, node: Node) -> bool:
        return node in self._chosen or self._visits.closed(node)

    def _close(self, node: Node) -> None:
        self._chosen.add(node)
        while node.parent is not None:
            node = node.parent.first
            self._closed_children[node] += 1
            closed = self._closed_children[node] + self._visits.closed_children(node)
            if self._visits.wants_children(node) or closed < self._visits.statistics(node).open_children:
                return
            self._chosen.add(node)

    def _best_child(self, parent: Node) -> Node:
        siblings = self._visits.arrived_below(parent)
        priors = dict(zip(siblings, _priors(siblings, self._prior), strict=True))
        visits = self._expected_visits(parent)

        def score(child: Node) -> float:
            mean, expected = self._visits.statistics(child).mean, self._expected_visits(child) / child.count
            if self._prior is Prior.NONE:
                return mean + self._exploration * math.sqrt(math.log(visits) / expected)
            return mean + self._exploration * priors[child] * math.sqrt(visits) / (1 + expected)

        return min(
            (child for child in siblings if not self._closed(child)), key=lambda child: (-score(child), child.id)
        )

    def _expected_visits(self, node: Node) -> int:
        """Visits, including those expected from selected expansions."""
        return self._visits.statistics(node).visits + self._in_flight[node]


def _priors(siblings: Sequence[Node], prior: Prior) -> list[float]:
    """The prior of one copy of each sibling; over all copies they sum to 1."""
    match prior:
        case Prior.NONE:
            return [0.0] * len(siblings)
        case Prior.REWARD:
            weights = [node.reward or 0.0 for node in siblings]
        case Prior.LOGPROB:
            weights = [math.exp(mean_logprob(node)) for node in siblings]
    whole = math.fsum(weight * node.count for weight, node in zip(weights, siblings, strict=True))
    copies = sum(node.count for node in siblings)
    return [weight / whole if whole else 1 / copies for weight in weights]
