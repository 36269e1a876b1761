"""AB-MCTS: at every node, Thompson sampling between a new child and the existing ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from random import Random
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from search.caps import Uncapped, Width
from search.ports import StopCondition
from search.strategies.base import Expansion, Strategy
from search.strategies.mcts.arm_posteriors import MANY, NO_REWARDS, PRIORS, Posterior, Rewards, columns
from search.strategies.mcts.visit_statistics import MAX_ITERATIONS, clear_statistics
from search.strategies.notes import known_of
from search.strategies.path_score import path_score
from search.tree import ContextNode, Node, NodeStatus, Reading, SearchTree


class Generation(StrEnum):
    """What one generation of AB-MCTS writes."""

    STEP = "step"
    """One step below the chosen one."""
    SOLUTION = "solution"
    """The rest of a solution from the chosen step on."""
    REFINE = "refine"
    """A whole solution, as in the paper: a new one, or an improvement of the chosen one, which the model reads."""


class ABMCTS(Strategy):
    """At every node, Thompson sampling between a new child and the existing ones.

    Source: Inoue et al. 2025, "Wider or deeper?" (arXiv 2503.04412), its variant A.

    Every node has two arms: generate a new child here, or continue below an existing one. Each child also has an arm
    among its siblings. A path that has ended is not continued. ``paths`` children are chosen at a time, and the next
    ones when all of them are scored.

    In the paper a node is a whole answer. Here one generation writes a path to its end by default, and each of its
    steps is a node below the one before: every generation gives an answer, and the search can return to any step.
    With one step per generation the search would widen at the top and rarely reach an answer within its budget. With
    ``generation: refine`` a node is a whole solution, as in the paper: a new child of the root is a new solution, and a
    new child of a solution is written by a model that reads it, its rewards, and what its checks showed.
    """

    aliases = ("abmcts",)

    name: Literal["ab_mcts"] = "ab_mcts"
    iterations: Uncapped = Field(16, ge=1, le=MAX_ITERATIONS, description="Number of generations.")
    paths: Width = Field(1, description="Generations in parallel.")
    generation: Generation = Field(
        Generation.SOLUTION,
        strict=False,
        description="What one generation writes: a `step`, a whole `solution` from a step on, or with `refine` a new "
        "solution or an improvement of one.",
    )
    posterior: Posterior = Field(Posterior.GAUSSIAN, strict=False, description="Model of an arm's rewards.")

    @property
    def branches(self) -> bool:
        return self.iterations > 1

    @property
    def starts_contexts(self) -> bool:
        return self.generation is Generation.REFINE

    def unremarked(self, tree: SearchTree) -> Sequence[Node]:
        return [node for node in tree.terminals if self.starts_contexts and node.id not in tree.remarks]

    def votes(self, tree: SearchTree, node: Node) -> Fraction:
        """With ``generation: refine`` the number of times that the solution was written."""
        votes = super().votes(tree, node)
        return votes * (node.context or tree.root).samples if self.starts_contexts else votes

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        if tree.in_flight:
            return []
        arms = tree.fold(Arms, self)
        done = arms.generations
        wanted: dict[Node, int] = {}
        for index in range(min(self.paths, self.iterations - done)):
            rng = Random(f"arms:{tree.seed}:{done + index}")
            node = chosen_parent(tree.root, self.posterior, rng)
            wanted[node] = wanted.get(node, 0) + 1
        if not self.starts_contexts:
            end = StopCondition.STEP if self.generation is Generation.STEP else StopCondition.SOLUTION
            return [Expansion(node, count, end) for node, count in wanted.items()]
        return [self._refinement(tree, arms, node)._replace(count=count) for node, count in wanted.items()]

    def _refinement(self, tree: SearchTree, arms: "Arms", solution: Node) -> Expansion:
        """The expansion of one more improvement of a solution; of a new solution for the root."""
        if solution is tree.root or solution in arms.contexts:
            return Expansion(arms.contexts.get(solution, tree.root), 1, StopCondition.SOLUTION)
        reading = Reading((solution,), "refine", known_of(tree, solution))
        return Expansion.reading(reading, 1, stop_condition=StopCondition.SOLUTION)


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

    With ``generation: refine`` only the last node of each solution has arms, and the node above it is the last one of
    the solution that it improves, or the root.
    """

    def __init__(self, tree: SearchTree, strategy: ABMCTS) -> None:
        clear_statistics(tree)
        self.generations = 0
        self.contexts: dict[Node, ContextNode] = {}
        """The contexts in which solutions are improved, by the last nodes of these solutions."""
        self._root = tree.root
        self._refines = strategy.starts_contexts
        self._strategy = strategy
        rewards_of(tree.root)

    @classmethod
    def of(cls, tree: SearchTree, strategy: ABMCTS) -> Self:
        return cls(tree, strategy)

    def take(self, arrived: Sequence[Node]) -> None:
        whole = self._strategy.generation is not Generation.STEP
        for node in arrived:
            if not (node.is_lookahead or (whole and node.request is None)):
                self.generations += 1
                steps = written_with(node) if whole else [node]
                self._observe(steps[-1:] if self._refines else steps)
                if node.context is not None:
                    self.contexts[_improved(node.context)] = node.context

    def _observe(self, steps: Sequence[Node]) -> None:
        """Credits the reward of one generation, which wrote ``steps``."""
        for step in steps:
            above = self._above(step.first)
            if above is not None and self._may_go_on(step.first) and rewards_of(step.first).column < 0:
                rewards_of(above).add(step.first)
        reward = path_score(steps[-1], self._strategy.aggregation)
        if reward is None:
            return
        for step in steps:
            arms = self._credit_own_arm(step.first, reward)
            if step is not steps[-1]:
                arms.continued = arms.continued.with_one(reward)
        node, began_here = self._above(steps[0].first), True
        while node is not None:
            arms = self._credit_own_arm(node, reward)
            if began_here:
                arms.generated = arms.generated.with_one(reward)
            else:
                arms.continued = arms.continued.with_one(reward)
            node, began_here = self._above(node), False

    def _credit_own_arm(self, node: Node, reward: float) -> ArmRewards:
        """Adds a reward to the node's own arm. Returns all its arms."""
        arms = rewards_of(node)
        arms.own = arms.own.with_one(reward)
        above = self._above(node) if arms.column >= 0 else None
        if above is not None and (table := rewards_of(above).table) is not None:
            table[:, arms.column] = arms.own
        return arms

    def _above(self, node: Node) -> Node | None:
        """The node of which this one is an arm; None for the root."""
        if node.parent is None or not self._refines:
            return node.parent and node.parent.first
        return self._root if node.context is None else _improved(node.context)

    def _may_go_on(self, node: Node) -> bool:
        """Whether generations may begin at a node."""
        if not self._refines:
            return node.status is NodeStatus.OPEN
        return node.status is NodeStatus.TERMINAL and any(step.solution for step in node.steps)


def _improved(context: ContextNode) -> Node:
    """The last node of the solution that a context shows."""
    return context.reading.sources[0].first


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
