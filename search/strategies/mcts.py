"""Monte Carlo tree search over steps, guided by their rewards, by rollouts, or by both."""

import math
from collections.abc import Mapping, Sequence, Set
from enum import StrEnum
from typing import Literal

from pydantic import Field

from search.caps import Uncapped, Width
from search.ports import StopCondition
from search.strategies.base import Expansion, Strategy
from search.strategies.path_score import mean_logprob, path_score, rank_score
from search.strategies.visit_statistics import (
    MAX_ITERATIONS,
    VisitStatistics,
    close,
    closed_nodes,
    inner_nodes,
    missing_children,
    visit_statistics,
)
from search.tree import Node, NodeStatus, SearchTree


class Value(StrEnum):
    """What a new node is worth."""

    REWARD = "reward"
    """Its process reward."""
    ROLLOUT = "rollout"
    """The score of a greedy solution from there."""
    BOTH = "both"
    """The mean of the two."""


class Prior(StrEnum):
    """What is expected of a node before anything below it is known."""

    NONE = "none"
    """Nothing: nodes are selected by UCT."""
    REWARD = "reward"
    """Its reward's share among its siblings: nodes are selected by PUCT."""
    LOGPROB = "logprob"
    """The same with the step's probability, its geometric mean over tokens."""


class Decision(StrEnum):
    """How the answer is chosen."""

    VALUE = "value"
    """Down the tree by the highest mean value."""
    VISITS = "visits"
    """Down the tree by the most visits."""
    TERMINAL = "terminal"
    """The solution of the highest score."""
    VOTE = "vote"
    """By ``selection`` among all solutions."""


class MCTS(Strategy):
    """Monte Carlo tree search by UCT or PUCT.

    It writes ``width`` children of the leaf that it comes to, and backs their values up. Sources: Kocsis and
    Szepesvári 2006 (UCT), Silver et al. 2017 (PUCT), Liu et al. 2020 (WU-UCT: what is in flight counts as visited).

    A path that has ended is not visited again: its value is known. Nor is a step that was written twice: a model that
    is sure writes the same step most of the time, and each copy would be explored like a new one.

    ``paths`` leaves are chosen at a time, each as if the ones before were visited already, and the next ones when all
    of them are valued; so one seed gives one tree, and with one path at a time it is the sequential algorithm.
    """

    name: Literal["mcts"] = "mcts"
    iterations: Uncapped = Field(64, ge=1, le=MAX_ITERATIONS, description="Leaves to expand.")
    width: Width = Field(4, description="Children written of a leaf.")
    paths: Width = Field(1, description="Leaves expanded at a time.")
    exploration: float = Field(1.414, ge=0.0, le=100.0, description="The constant c of UCT and PUCT.")
    value: Value = Field(Value.REWARD, strict=False, description="What a new node is worth.")
    prior: Prior = Field(Prior.NONE, strict=False, description="None: UCT. Otherwise PUCT with this prior.")
    decision: Decision = Field(Decision.VALUE, strict=False, description="How the answer is chosen.")
    accept: float | None = Field(
        None, ge=0.0, le=1.0, description="Stop at a solution of this score; a better one may be missed."
    )
    accept_margin: float = Field(
        0.0, ge=0.0, le=1.0, description="How far that solution must be ahead of all with another text."
    )
    reject: float | None = Field(
        None, ge=0.0, le=1.0, description="Stop when no open path scores this; one of them may still have recovered."
    )

    @property
    def needs_logprobs(self) -> bool:
        return self.prior is Prior.LOGPROB

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        if tree.in_flight or self._may_stop(tree):
            return []
        if unfinished := missing_children(tree, self.width) or self._rollouts(tree):
            return unfinished
        left = self.iterations - sum(bool(node.children) for node in inner_nodes(tree))
        leaves = select_leaves(self, tree, min(self.paths, left))
        return [Expansion(leaf, self.width) for leaf in leaves]

    def candidates(self, tree: SearchTree) -> list[Node]:
        solutions = self._solutions(tree)
        match self.decision:
            case Decision.VOTE:
                return solutions
            case Decision.TERMINAL:
                return self._best(solutions)
        statistics = visit_statistics(tree, self.value_of)

        def standing(node: Node) -> float:
            return statistics[node].mean if self.decision is Decision.VALUE else statistics[node].visits

        above = {ancestor for solution in solutions for ancestor in (tree.root, *solution.path)}
        node = tree.root
        while below := [child for child in node.children.values() if child in above]:
            node = min(below, key=lambda child: (-standing(child), child.id))
        if node.status is NodeStatus.TERMINAL:
            return [node]
        return self._best([solution for solution in solutions if solution.id[: node.depth] == node.id])

    def value_of(self, node: Node) -> float:
        """The value of a node that is valued: its own, not that of what is below it."""
        own = path_score(node, self.aggregation) or 0.0
        if self.value is Value.REWARD or not node.lookaheads:
            return own
        rolled = rank_score(node, self.aggregation)
        return rolled if self.value is Value.ROLLOUT else (own + rolled) / 2

    def _solutions(self, tree: SearchTree) -> list[Node]:
        """Everything that ended, rollouts included: they are solutions like any other."""
        return sorted((n for n in tree.nodes if n.status is NodeStatus.TERMINAL), key=lambda node: node.id)

    def _best(self, solutions: Sequence[Node]) -> list[Node]:
        return sorted(solutions, key=lambda node: (-(path_score(node, self.aggregation) or 0.0), node.id))[:1]

    def _rollouts(self, tree: SearchTree) -> list[Expansion]:
        if self.value is Value.REWARD:
            return []
        return [
            Expansion(node, 1, StopCondition.SOLUTION, lookahead=True)
            for node in tree.with_status(NodeStatus.OPEN)
            if not node.lookaheads and not node.children
        ]

    def _may_stop(self, tree: SearchTree) -> bool:
        if self.accept is not None:
            scores = {node.text: path_score(node, self.aggregation) or 0.0 for node in self._solutions(tree)}
            first, second = sorted((0.0, 0.0, *scores.values()), reverse=True)[:2]
            if scores and first >= self.accept and first - second >= self.accept_margin:
                return True
        if self.reject is not None and self._solutions(tree):
            leaves = [node for node in tree.with_status(NodeStatus.OPEN) if not node.children]
            return all((path_score(leaf, self.aggregation) or 0.0) < self.reject for leaf in leaves)
        return False


def select_leaves(settings: MCTS, tree: SearchTree, count: int) -> list[Node]:
    """The next ``count`` leaves to expand, fewer where there are not as many."""
    statistics = visit_statistics(tree, settings.value_of)
    closed = closed_nodes(tree)
    chosen: list[Node] = []
    while len(chosen) < count and tree.root not in closed:
        node = tree.root
        while node.children:
            node = _selected(settings, node, statistics, closed)
        chosen.append(node)
        close(node, closed)
        for above in (tree.root, *node.path):
            statistics[above] = statistics[above]._replace(in_flight=statistics[above].in_flight + settings.width)
    return chosen


def _selected(settings: MCTS, parent: Node, statistics: Mapping[Node, VisitStatistics], closed: Set[Node]) -> Node:
    siblings = [child for child in parent.children.values() if child in statistics]
    priors = dict(zip(siblings, _priors(siblings, settings.prior), strict=True))
    visits = statistics[parent].expected_visits

    def uct_score(child: Node) -> float:
        visited = statistics[child]
        if settings.prior is Prior.NONE:
            return visited.mean + settings.exploration * math.sqrt(math.log(visits) / visited.expected_visits)
        return visited.mean + settings.exploration * priors[child] * math.sqrt(visits) / (1 + visited.expected_visits)

    return min((child for child in siblings if child not in closed), key=lambda child: (-uct_score(child), child.id))


def _priors(siblings: Sequence[Node], prior: Prior) -> list[float]:
    match prior:
        case Prior.NONE:
            return [0.0] * len(siblings)
        case Prior.REWARD:
            weights = [node.reward or 0.0 for node in siblings]
        case Prior.LOGPROB:
            weights = [math.exp(mean_logprob(node)) for node in siblings]
    whole = math.fsum(weights)
    return [weight / whole if whole else 1 / len(weights) for weight in weights]
