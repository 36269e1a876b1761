"""AB-MCTS: at every node, Thompson sampling between a new child and those that are there."""

import math
from collections.abc import Sequence
from enum import StrEnum
from random import Random
from typing import Literal, NamedTuple

from pydantic import Field

from search.ports import Extent
from search.strategies.mcts import MOST_ITERATIONS
from search.strategy import MOST_SAMPLES, Growth, Strategy
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
    next ones when all of them are judged.

    In the paper a node is a whole answer. Here one generation by default writes a path to its end, and each of its
    steps is a node below the last: so every generation gives an answer, and any step of it can be gone back to.
    """

    aliases = ("abmcts",)

    name: Literal["ab_mcts"] = "ab_mcts"
    iterations: int = Field(16, ge=1, le=MOST_ITERATIONS, description="Generations.")
    paths: int = Field(1, ge=1, le=MOST_SAMPLES, description="Generations at a time.")
    generation: Extent = Field(
        Extent.SOLUTION, strict=False, description="How far one generation writes: a step, or to the solution's end."
    )
    posterior: Posterior = Field(Posterior.GAUSSIAN, strict=False, description="What is believed of an arm.")

    def select(self, tree: SearchTree) -> Sequence[Growth]:
        if tree.in_flight:
            return []
        wanted: dict[Node, int] = {}
        done = sum(node.order is not None for node in tree.nodes)
        for place in range(min(self.paths, self.iterations - done)):
            die = Random(f"arms:{tree.seed}:{done + place}")
            node = chosen_parent(tree, self.posterior, die)
            wanted[node] = wanted.get(node, 0) + 1
        return [Growth(node, count, self.generation) for node, count in wanted.items()]


class Belief(NamedTuple):
    """A normal-inverse-chi-squared distribution over the mean and variance of an arm's rewards."""

    mean: float = 0.0
    kappa: float = 1.0
    nu: float = 1.0
    tau_squared: float = 0.1

    def after(self, rewards: Sequence[float]) -> "Belief":
        """The posterior (Murphy 2023, section 3.4.3.3)."""
        count = len(rewards)
        if not count:
            return self
        average = math.fsum(rewards) / count
        spread = math.fsum((reward - average) ** 2 for reward in rewards)
        kappa, nu = self.kappa + count, self.nu + count
        drift = count * self.kappa * (self.mean - average) ** 2 / kappa
        return Belief(
            mean=(self.kappa * self.mean + count * average) / kappa,
            kappa=kappa,
            nu=nu,
            tau_squared=(self.nu * self.tau_squared + spread + drift) / nu,
        )

    def draw(self, die: Random) -> float:
        """A mean: the variance is drawn first, inverse gamma, then the mean, normal."""
        variance = self.nu * self.tau_squared / 2 / die.gammavariate(self.nu / 2, 1.0)
        return die.gauss(self.mean, math.sqrt(variance / self.kappa))


class Odds(NamedTuple):
    """A beta distribution over the chance that an arm's outcome is right."""

    right: float = 0.5
    wrong: float = 0.5

    def after(self, rewards: Sequence[float]) -> "Odds":
        return Odds(self.right + math.fsum(rewards), self.wrong + math.fsum(1 - reward for reward in rewards))

    def draw(self, die: Random) -> float:
        return die.betavariate(self.right, self.wrong)


PRIORS: dict[Posterior, Belief | Odds] = {Posterior.GAUSSIAN: Belief(), Posterior.BETA: Odds()}


def chosen_parent(tree: SearchTree, posterior: Posterior, die: Random) -> Node:
    """Where the next child is written: at any open node one more is possible."""
    prior = PRIORS[posterior]
    node = tree.root
    while below := [child for child in node.children.values() if child.status is NodeStatus.OPEN]:
        generate = prior.after(rewards_of_children(node)).draw(die)
        if generate >= prior.after(rewards_of_continuing(node)).draw(die):
            return node
        draws = {child: prior.after(rewards_below(child)).draw(die) for child in below}
        node = max(below, key=lambda child: draws[child])
    return node


def rewards_of_children(node: Node) -> list[float]:
    """What generating here gave: the arm GEN."""
    return [child.reward for child in node.children.values() if child.reward is not None]


def rewards_of_continuing(node: Node) -> list[float]:
    """What continuing below the children gave: the arm CONT."""
    return [reward for child in node.children.values() for reward in rewards_below(child)[1:]]


def rewards_below(node: Node) -> list[float]:
    """The rewards of a node, first, and all below it: a child's own arm."""
    found: list[float] = []
    stack = [node]
    while stack:
        member = stack.pop()
        if member.reward is not None:
            found.append(member.reward)
        stack.extend(member.children.values())
    return found
