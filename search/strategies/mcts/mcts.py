"""Monte Carlo tree search over steps, guided by their rewards, by rollouts, or by both."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

from pydantic import Field

from search.caps import Uncapped, Width
from search.strategies.base import Expansion, ExpectedChildren, Strategy
from search.strategies.mcts.mcts_selection import LeafSelection, Prior
from search.strategies.mcts.mcts_visits import Visits
from search.strategies.mcts.visit_statistics import MAX_ITERATIONS
from search.strategies.path_score import path_score, rank_score
from search.tree import Node, NodeStatus, SearchTree


class Value(StrEnum):
    """How the value of a new node is determined."""

    REWARD = "reward"
    """Its path score, from process rewards."""
    ROLLOUT = "rollout"
    """The score of a greedy solution from there."""
    BOTH = "both"
    """The mean of the two."""


class Decision(StrEnum):
    """How the answer is chosen."""

    VALUE = "value"
    """Descent from the root by the highest mean value."""
    VISITS = "visits"
    """Descent from the root by the most visits."""
    TERMINAL = "terminal"
    """The solution of the highest score."""
    VOTE = "vote"
    """By ``selection`` among all solutions."""


class MCTS(Strategy):
    """Monte Carlo tree search by UCT or PUCT.

    It selects a leaf, writes ``width`` children below it, and backs their values up. Sources: Kocsis and Szepesvári
    2006 (UCT), Silver et al. 2017 (PUCT), Liu et al. 2020 (WU-UCT: branches in flight count as visits).

    A path that has ended is not visited again: its value is known. When every open node has its ``width`` children,
    textbook MCTS is over. If siblings are merged, further passes then give each node ``width`` more children: a
    repeated step costs only its tokens, and the vote counts it.

    ``paths`` leaves are selected at a time, each as if those before were already visited. The next ones are selected
    when all of them have values. So one seed gives one tree, and ``paths = 1`` is the sequential algorithm.
    """

    name: Literal["mcts"] = "mcts"
    iterations: Uncapped = Field(64, ge=1, le=MAX_ITERATIONS, description="Number of expansions.")
    width: Width = Field(4, description="Children per expansion.")
    paths: Width = Field(1, description="Leaves expanded in parallel.")
    exploration: float = Field(1.414, ge=0.0, le=100.0, description="Exploration constant c of UCT and PUCT.")
    value: Value = Field(Value.REWARD, strict=False, description="Initial value of a new node.")
    prior: Prior = Field(Prior.NONE, strict=False, description="Prior of PUCT; `none` is UCT.")
    decision: Decision | None = Field(
        None,
        strict=False,
        description="How the answer is chosen. Unset: by vote if siblings are merged, else by value.",
    )
    accept: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="Stop at the first solution with at least this score. A better one might have followed.",
    )
    accept_margin: float = Field(
        0.0, ge=0.0, le=1.0, description="Lead that this solution must have over all solutions with another text."
    )
    reject: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="Stop when every open path scores less than this. One of them might have recovered.",
    )

    @property
    def needs_logprobs(self) -> bool:
        return self.prior is Prior.LOGPROB

    @property
    def expected_children(self) -> ExpectedChildren | None:
        return None if self.rolls_out else ExpectedChildren(self.width, self.width)

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        if tree.in_flight:
            return []
        visits = tree.fold(Visits, self)
        if self._may_stop(visits):
            return []
        if unfinished := visits.expansions.unfinished or visits.unrolled:
            return unfinished
        left = self.iterations - visits.expansions.begun
        leaves = LeafSelection(visits, self.width, self.exploration, self.prior).leaves(min(self.paths, left))
        return [Expansion(leaf, self.width) for leaf in leaves]

    def candidates(self, tree: SearchTree) -> list[Node]:
        visits = tree.fold(Visits, self)
        decision = self.decision or (Decision.VOTE if tree.merges_siblings else Decision.VALUE)
        match decision:
            case Decision.VOTE:
                return visits.solutions
            case Decision.TERMINAL:
                return [visits.best] if visits.best else []

        def rank(node: Node) -> float:
            statistics = visits.statistics(node)
            return statistics.mean if decision is Decision.VALUE else statistics.visits

        node = tree.root
        while below := [child for child in visits.arrived_below(node) if visits.statistics(child).solved]:
            node = min(below, key=lambda child: (-rank(child), child.id))
        end = node.lookahead_end(self.max_depth)
        return [end] if end.status is NodeStatus.TERMINAL else []

    @property
    def rolls_out(self) -> bool:
        """Whether a new node needs a rollout to get its value."""
        return self.value is not Value.REWARD

    def value_of(self, node: Node) -> float:
        """The node's own value, without values backed up from below."""
        own = path_score(node, self.aggregation) or 0.0
        if not (self.rolls_out and node.lookaheads):
            return own
        rolled = rank_score(node, self.aggregation, self.max_depth)
        return rolled if self.value is Value.ROLLOUT else (own + rolled) / 2

    def _may_stop(self, visits: Visits) -> bool:
        if visits.best is None:
            return False
        if self.accept is not None:
            first = path_score(visits.best, self.aggregation) or 0.0
            if first >= self.accept and first - visits.runner_up >= self.accept_margin:
                return True
        return self.reject is not None and not visits.promising_leaves
