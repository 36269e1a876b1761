"""AB-MCTS: at every node, Thompson sampling between a new child and those that are there."""

import math
from collections.abc import Sequence
from enum import StrEnum
from random import Random
from typing import Literal, NamedTuple

from pydantic import Field

from search.caps import Uncapped, Width
from search.ports import StopCondition
from search.strategies.base import Expansion, Strategy
from search.strategies.visit_statistics import MAX_ITERATIONS
from search.tree import Node, NodeStatus, SearchTree


class Posterior(StrEnum):
    """What is believed of the rewards behind an arm."""

    GAUSSIAN = "gaussian"
    """Normal with unknown mean and variance."""
    BETA = "beta"
    """Bernoulli with fractional outcomes, Jeffreys prior."""


class ABMCTS(Strategy):
    """At every node, Thompson sampling between a new child and those that are there.

    Source: Inoue et al. 2025, "Wider or deeper?" (arXiv 2503.04412), its variant A.

    Every node has two arms: to generate a new child here, or to continue below one that is there, and each child has
    an arm among its siblings. A path that has ended is not continued. ``paths`` children are chosen at a time, and the
    next ones when all of them are scored.

    In the paper a node is a whole answer. Here one generation by default writes a path to its end, and each of its
    steps is a node below the last: so every generation gives an answer, and any step of it can be gone back to.
    """

    aliases = ("abmcts",)

    name: Literal["ab_mcts"] = "ab_mcts"
    iterations: Uncapped = Field(16, ge=1, le=MAX_ITERATIONS, description="Generations.")
    paths: Width = Field(1, description="Generations at a time.")
    generation: StopCondition = Field(
        StopCondition.SOLUTION,
        strict=False,
        description="How far one generation writes: a step, or to the solution's end.",
    )
    posterior: Posterior = Field(Posterior.GAUSSIAN, strict=False, description="What is believed of an arm.")

    @property
    def branches(self) -> bool:
        return self.iterations > 1

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        if tree.in_flight:
            return []
        arms = Arms(tree)
        wanted: dict[Node, int] = {}
        done = sum(node.request is not None for node in tree.nodes)
        for index in range(min(self.paths, self.iterations - done)):
            rng = Random(f"arms:{tree.seed}:{done + index}")
            node = chosen_parent(tree, arms, self.posterior, rng)
            wanted[node] = wanted.get(node, 0) + 1
        return [Expansion(node, count, self.generation) for node, count in wanted.items()]


class Rewards(NamedTuple):
    """What an arm gave so far."""

    number: int = 0
    total: float = 0.0
    squares: float = 0.0

    def __add__(self, other: "Rewards") -> "Rewards":  # type: ignore[override]  # over tuple concatenation
        return Rewards(self.number + other.number, self.total + other.total, self.squares + other.squares)

    def __sub__(self, other: "Rewards") -> "Rewards":
        return Rewards(self.number - other.number, self.total - other.total, self.squares - other.squares)

    @classmethod
    def of(cls, *rewards: float) -> "Rewards":
        return cls(len(rewards), math.fsum(rewards), math.fsum(reward * reward for reward in rewards))


class Belief(NamedTuple):
    """A normal-inverse-chi-squared distribution over the mean and variance of an arm's rewards."""

    mean: float = 0.0
    kappa: float = 1.0
    nu: float = 1.0
    tau_squared: float = 0.1

    def after(self, rewards: Rewards) -> "Belief":
        """The posterior (Murphy 2023, section 3.4.3.3)."""
        count = rewards.number
        if not count:
            return self
        average = rewards.total / count
        spread = max(0.0, rewards.squares - count * average**2)
        kappa, nu = self.kappa + count, self.nu + count
        drift = count * self.kappa * (self.mean - average) ** 2 / kappa
        return Belief(
            mean=(self.kappa * self.mean + count * average) / kappa,
            kappa=kappa,
            nu=nu,
            tau_squared=(self.nu * self.tau_squared + spread + drift) / nu,
        )

    def draw(self, rng: Random) -> float:
        """A mean: the variance is drawn first, inverse gamma, then the mean, normal."""
        variance = self.nu * self.tau_squared / 2 / rng.gammavariate(self.nu / 2, 1.0)
        return rng.gauss(self.mean, math.sqrt(variance / self.kappa))


class Odds(NamedTuple):
    """A beta distribution over the chance that an arm's outcome is right."""

    right: float = 0.5
    wrong: float = 0.5

    def after(self, rewards: Rewards) -> "Odds":
        return Odds(self.right + rewards.total, self.wrong + max(0.0, rewards.number - rewards.total))

    def draw(self, rng: Random) -> float:
        return rng.betavariate(self.right, self.wrong)


PRIORS: dict[Posterior, Belief | Odds] = {Posterior.GAUSSIAN: Belief(), Posterior.BETA: Odds()}


class Arms:
    """What every arm of a tree gave so far."""

    def __init__(self, tree: SearchTree) -> None:
        self._below: dict[Node, Rewards] = {}
        """Of a node and all below it."""
        self._children: dict[Node, Rewards] = {}
        for node in reversed([node for node in tree.nodes if not node.is_lookahead]):  # children before their parents
            assert node.parent is not None
            own = Rewards() if node.reward is None else Rewards.of(node.reward)
            self._below[node] = own + self._below.get(node, Rewards())
            for sums, more in ((self._children, own), (self._below, self._below[node])):
                sums[node.parent] = sums.get(node.parent, Rewards()) + more

    def generating(self, node: Node) -> Rewards:
        """Generating here, the arm GEN: the rewards of its children."""
        return self._children.get(node, Rewards())

    def continuing(self, node: Node) -> Rewards:
        """Continuing below the children, the arm CONT: the rewards of all that is deeper."""
        deeper = self._below.get(node, Rewards()) - self.generating(node)
        return deeper if node.reward is None else deeper - Rewards.of(node.reward)

    def of_child(self, node: Node) -> Rewards:
        """A child's own arm: its reward and those of all below it."""
        return self._below.get(node, Rewards())


def chosen_parent(tree: SearchTree, arms: Arms, posterior: Posterior, rng: Random) -> Node:
    """Where the next child is written: at any open node one more is possible."""
    prior = PRIORS[posterior]
    node = tree.root
    while below := [child for child in node.children.values() if child.status is NodeStatus.OPEN]:
        generate = prior.after(arms.generating(node)).draw(rng)
        if generate >= prior.after(arms.continuing(node)).draw(rng):
            return node
        draws = {child: prior.after(arms.of_child(child)).draw(rng) for child in below}
        node = max(below, key=lambda child: draws[child])
    return node
