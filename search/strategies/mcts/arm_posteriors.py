"""Posteriors over the rewards of AB-MCTS's arms, and Thompson samples from them."""

import math
from collections.abc import Sequence
from enum import StrEnum
from itertools import chain
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MANY = 64
"""From this number of arms on, draws are vectorized. Fewer arms are drawn one by one, at about 4 us each."""


class Posterior(StrEnum):
    """The model of an arm's rewards."""

    GAUSSIAN = "gaussian"
    """Normal with unknown mean and variance."""
    BETA = "beta"
    """Bernoulli with fractional outcomes, Jeffreys prior."""


class Rewards(NamedTuple):
    """Number, sum and sum of squares of an arm's rewards."""

    number: int = 0
    total: float = 0.0
    squares: float = 0.0

    def with_one(self, reward: float) -> "Rewards":
        return Rewards(self.number + 1, self.total + reward, self.squares + reward * reward)


NO_REWARDS = Rewards()


class Belief(NamedTuple):
    """A normal-inverse-chi-squared distribution over the mean and variance of an arm's rewards."""

    mean: float = 0.0
    kappa: float = 1.0
    nu: float = 1.0
    tau_squared: float = 0.1

    def after(self, rewards: Rewards) -> "Belief":
        """The posterior after these rewards (Murphy 2023, section 3.4.3.3)."""
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
        """Draws a mean: first the variance (inverse gamma), then the mean given it (normal)."""
        variance = self.nu * self.tau_squared / 2 / rng.gammavariate(self.nu / 2, 1.0)
        return rng.gauss(self.mean, math.sqrt(variance / self.kappa))

    def draw_many(self, arms: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
        """A draw for each arm of ``columns``, from its posterior."""
        count, total, squares = arms
        average = total / np.maximum(count, 1.0)
        spread = np.maximum(0.0, squares - count * average**2)
        kappa, nu = self.kappa + count, self.nu + count
        drift = count * self.kappa * (self.mean - average) ** 2 / kappa
        sum_of_squares = self.nu * self.tau_squared + spread + drift  # nu * tau_squared of the posterior
        variance = sum_of_squares / 2 / rng.standard_gamma(nu / 2)
        mean = (self.kappa * self.mean + count * average) / kappa
        draws: NDArray[np.float64] = rng.normal(mean, np.sqrt(variance / kappa))
        return draws


class Odds(NamedTuple):
    """A beta distribution over the probability that an arm's outcome is right."""

    right: float = 0.5
    wrong: float = 0.5

    def after(self, rewards: Rewards) -> "Odds":
        return Odds(self.right + rewards.total, self.wrong + max(0.0, rewards.number - rewards.total))

    def draw(self, rng: Random) -> float:
        return rng.betavariate(self.right, self.wrong)

    def draw_many(self, arms: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
        """A draw for each arm of ``columns``, from its posterior."""
        count, total, _ = arms
        draws: NDArray[np.float64] = rng.beta(self.right + total, self.wrong + np.maximum(0.0, count - total))
        return draws


def columns(arms: Sequence[Rewards]) -> NDArray[np.float64]:
    """The `Rewards` of the arms as an array of shape (3, arms): numbers, totals, squares."""
    return np.fromiter(chain.from_iterable(arms), np.float64, 3 * len(arms)).reshape(-1, 3).T


PRIORS: dict[Posterior, Belief | Odds] = {Posterior.GAUSSIAN: Belief(), Posterior.BETA: Odds()}
