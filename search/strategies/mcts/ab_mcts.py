"""AB-MCTS: at every node, Thompson sampling between a new child and the existing ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from search.caps import Uncapped, Width
from search.ports import StopCondition
from search.strategies.base import Expansion, Strategy
from search.strategies.mcts.arm_posteriors import MANY, NO_REWARDS, PRIORS, Posterior, Rewards, columns
from search.strategies.mcts.visit_statistics import MAX_ITERATIONS, clear_statistics, upwards
from search.strategies.path_score import path_score
from search.tree import Node, NodeStatus, SearchTree


class ABMCTS(Strategy):
    """At every node, Thompson sampling between a new child and the existing ones.

    Source: Inoue et al. 2025, "Wider or deeper?" (arXiv 2503.04412), its variant A.

    Every node has two arms: generate a new child here, or continue below an existing one. Each child also has an arm
    among its siblings. A path that has ended is not continued. ``paths`` children are chosen at a time, and the next
    ones when all of them are scored.

    In the paper a node is a whole answer. Here one generation writes a path to its end by default, and each of its
    steps is a node below the one before: every generation gives an answer, and the search can return to any step.
    With one step per generation the search would widen at the top and rarely reach an answer within its budget.
    """

    aliases = ("abmcts",)

    name: Literal["ab_mcts"] = "ab_mcts"
    iterations: Uncapped = Field(16, ge=1, le=MAX_ITERATIONS, description="Number of generations.")
    paths: Width = Field(1, description="Generations in parallel.")
    generation: StopCondition = Field(
        StopCondition.SOLUTION,
        strict=False,
        description="What one generation writes: a step, or a whole solution.",
    )
    posterior: Posterior = Field(Posterior.GAUSSIAN, strict=False, description="Model of an arm's rewards.")

    @property
    def branches(self) -> bool:
        return self.iterations > 1

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        if tree.in_flight:
            return []
        done = tree.fold(Arms, self).generations
        wanted: dict[Node, int] = {}
        for index in range(min(self.paths, self.iterations - done)):
            rng = Random(f"arms:{tree.seed}:{done + index}")
            node = chosen_parent(tree.root, self.posterior, rng)
            wanted[node] = wanted.get(node, 0) + 1
        return [Expansion(node, count, self.generation) for node, count in wanted.items()]


@dataclass(eq=False, slots=True)
class ArmRewards:
    """Rewards of the arms of one node."""

    generated: Rewards = NO_REWARDS
    """The arm GEN: generating a child here."""
    continued: Rewards = NO_REWARDS
    """The arm CONT: continuing below a child."""
    own: Rewards = NO_REWARDS
    """The node's own arm among its siblings."""
    column: int = -1
    """Index in ``below`` of the parent; -1 if the node has ended or has not arrived."""
    below: list[Node] = field(default_factory=list)
    """The children that may be continued, in the order in which they were added. A sibling of the same text and a lower
    id may represent a child since (`Node.first`)."""
    table: NDArray[np.float64] | None = None
    """The own arms of ``below`` as `columns`, with spare capacity; None below ``MANY`` children."""

    def add(self, child: Node) -> None:
        """Adds a child that may be continued."""
        rewards_of(child).column = len(self.below)
        self.below.append(child)
        if self.table is None and len(self.below) >= MANY:
            self.table = columns([rewards_of(each.first).own for each in self.below])
        elif self.table is not None:
            if self.table.shape[1] < len(self.below):
                self.table = np.concatenate([self.table, np.zeros_like(self.table)], axis=1)
            self.table[:, len(self.below) - 1] = rewards_of(child).own


class Arms:
    """Rewards of every arm of a tree.

    One generation gives one reward, the score of the path that it completes. The reward goes to the own arm of every
    node on the path, to GEN at the node where the generation began, and to CONT at the nodes above it and at all but
    the last of its steps. A step that repeats a sibling gives its rewards to the sibling's arms.
    """

    def __init__(self, tree: SearchTree, strategy: ABMCTS) -> None:
        clear_statistics(tree)
        self.generations = 0
        self._strategy = strategy
        rewards_of(tree.root)

    @classmethod
    def of(cls, tree: SearchTree, strategy: ABMCTS) -> Self:
        return cls(tree, strategy)

    def take(self, arrived: Sequence[Node]) -> None:
        whole = self._strategy.generation is StopCondition.SOLUTION
        for node in arrived:
            if not (node.is_lookahead or (whole and node.request is None)):
                self.generations += 1
                self._observe(written_with(node) if whole else [node])

    def _observe(self, steps: Sequence[Node]) -> None:
        """Credits the reward of one generation, which wrote ``steps``."""
        for step in steps:
            if step.parent is not None and step.first.status is NodeStatus.OPEN and rewards_of(step.first).column < 0:
                rewards_of(step.parent.first).add(step.first)
        reward = path_score(steps[-1], self._strategy.aggregation)
        if reward is None:
            return
        for step in steps:
            arms = _credit_own_arm(step.first, reward)
            if step is not steps[-1]:
                arms.continued = arms.continued.with_one(reward)
        parent, *above = upwards(steps[0])[1:]
        arms = _credit_own_arm(parent, reward)
        arms.generated = arms.generated.with_one(reward)
        for node in above:
            arms = _credit_own_arm(node, reward)
            arms.continued = arms.continued.with_one(reward)


def _credit_own_arm(node: Node, reward: float) -> ArmRewards:
    """Adds a reward to the node's own arm. Returns all its arms."""
    arms = rewards_of(node)
    arms.own = arms.own.with_one(reward)
    if node.parent is not None and arms.column >= 0 and (table := rewards_of(node.parent.first).table) is not None:
        table[:, arms.column] = arms.own
    return arms


def rewards_of(node: Node) -> ArmRewards:
    if node.statistics is None:
        node.statistics = ArmRewards()
    return node.statistics  # type: ignore[no-any-return]  # Declared as Any: each strategy has its own type.


def written_with(node: Node) -> list[Node]:
    """A step and the later steps of the same generation."""
    steps = [node]
    while (step := steps[-1].children.get(0)) is not None and step.request is None:
        steps.append(step)
    return steps


def chosen_parent(root: Node, posterior: Posterior, rng: Random) -> Node:
    """The node below which the next child is written, drawn by Thompson sampling down from the root."""
    prior = PRIORS[posterior]
    node = root
    while (arms := rewards_of(node)).below:
        generate = prior.after(arms.generated).draw(rng)
        if generate >= prior.after(arms.continued).draw(rng):
            return node
        if arms.table is None:
            draws = [prior.after(rewards_of(child.first).own).draw(rng) for child in arms.below]
            best = draws.index(max(draws))
        else:
            bits = np.random.Generator(np.random.PCG64(rng.getrandbits(64)))
            best = int(prior.draw_many(arms.table[:, : len(arms.below)], bits).argmax())
        node = arms.below[best].first
    return node
