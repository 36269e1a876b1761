"""Whether a vote is decided before all its samples are in.

The samples that are missing come from the distribution of the generator's answers, which is not known. Its posterior is
a Dirichlet: each sample seen counts one for its answer, and one more counts for all answers not seen yet, which are
taken for one single answer: the strongest rival that they could be. So the numbers of missing samples per answer follow
a Dirichlet-multinomial distribution, from which the probability that the leader wins is computed exactly. It is a
probability over all questions: where two answers are equally frequent, more votes change.

Others stop by the posterior of the distribution's own mode, that is, of a vote over infinitely many samples
(Adaptive-Consistency, arXiv 2305.11860, and its_hub's votes by a Beta distribution), or when all samples of a window
agree (ESC, arXiv 2401.10480). Here the reference is the vote over ``n`` samples, so that ``risk`` is the probability of
another answer than that of all ``n``.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Polynomial: TypeAlias = NDArray[np.floating]
"""Its coefficients, that of the power 0 first."""
_ONE: Polynomial = np.ones(1)
UNSEEN = 1
"""Prior count of the answers that no sample has given yet."""
ROUNDING = 1e-9
"""Sums of weights that differ by less are a tie, which counts as lost."""


class Standing(NamedTuple):
    """One answer in a vote of which samples are missing."""

    samples: int
    """Number of samples with this answer."""
    weight: float
    """Sum of the weights of these samples, each in [0, 1]; in a vote by count, ``samples``."""


class Rival(NamedTuple):
    """An answer that could overtake the leading one."""

    samples: int
    """As in `Standing`."""
    lead: int
    """Number of missing samples that it may get without overtaking a leader that gets none."""


def is_decided(standings: Sequence[Standing], unread: int, missing: int, risk: float, weighted: bool) -> bool:
    """Whether the leading answer wins the vote with probability 1 - ``risk`` at least.

    Args:
        standings: the answers in the order of their first samples: the first one wins a tie.
        unread: number of samples without an answer.
        missing: number of samples still to come.
        risk: 0: nothing that the missing samples could say may change the winner. All other answers are then taken
            together: they may turn out to be the same answer in another spelling.
        weighted: whether samples have weights. The missing ones of the leader are then expected to have weight 0, and
            all others weight 1.
    """
    if not standings:
        return False
    first = max(range(len(standings)), key=lambda index: standings[index].weight)
    leader, others = standings[first], [*standings[:first], *standings[first + 1 :]]
    if leader.weight - sum(other.weight for other in others) > missing + ROUNDING:
        return True
    if not risk:
        return False
    rivals = []
    for index, other in enumerate(others):
        wins_tie = ROUNDING if weighted else int(index < first)
        rivals.append(Rival(other.samples, math.floor(leader.weight - other.weight - wins_tie)))
    unseen = Rival(UNSEEN, math.floor(leader.weight - ROUNDING * weighted))
    left, won = 1.0, 0.0
    for chance, wins in outcomes(leader.samples, [*rivals, unseen], unread, missing, gains=not weighted):
        won, left = won + wins, left - chance
        if won >= 1 - risk or won + left < 1 - risk:
            break
    return won >= 1 - risk


def outcomes(
    leader: int, rivals: Sequence[Rival], unread: int, missing: int, gains: bool
) -> Iterator[tuple[float, float]]:
    """Yields, for each number of missing samples that the leader may get, the most likely first, the probability of
    this number, and the probability that it is this number and no rival overtakes the leader.

    Args:
        leader: number of samples of the leading answer.
        rivals: all other answers, with one for those not seen yet.
        unread: number of samples without an answer.
        missing: number of samples still to come.
        gains: whether each missing sample of the leader gives every rival room for one more.

    Under a Dirichlet with the parameters a_i, the numbers x_i of the missing samples have a probability proportional
    to the product of C(a_i + x_i - 1, x_i). So the sum over all outcomes in which the leader wins is a coefficient of a
    product of polynomials, one for each answer, those of rivals cut off at the most they may get.
    """
    others = unread + sum(rival.samples for rival in rivals)
    leader_ways = _ways(leader, missing) / _ways(leader + others, missing)[missing]
    chances = leader_ways * _ways(others, missing)[::-1]
    for gained in np.argsort(-chances, kind="stable"):
        wins = _win_ways(rivals, gained if gains else 0, unread, missing - gained)
        yield float(chances[gained]), float(leader_ways[gained] * wins)


def _win_ways(rivals: Sequence[Rival], room: int, unread: int, left: int) -> float:
    """The coefficient of the power ``left`` where each rival may get ``room`` more than its lead allows."""
    free, product = unread, _ONE
    for (samples, lead), number in Counter(rivals).items():
        most = lead + room
        if most < 0:
            return 0.0
        if most >= left:  # The product of the uncut polynomials of several answers is that of their sum.
            free += samples * number
        else:
            product = _times(product, _power(_ways(samples, most), number, left), left)
    return float(product @ _ways(free, left)[::-1][: len(product)])


def _ways(samples: int, most: int) -> Polynomial:
    """C(samples + x - 1, x) for x from 0 to ``most``."""
    x = np.arange(1, most + 1)
    return np.concatenate([np.ones(1), np.cumprod((samples + x - 1) / x)])


def _times(one: Polynomial, other: Polynomial, most: int) -> Polynomial:
    """The product of two polynomials up to the power ``most``."""
    product: Polynomial = np.convolve(one, other)
    return product[: most + 1]


def _power(base: Polynomial, exponent: int, most: int) -> Polynomial:
    """A power of a polynomial up to the power ``most``."""
    result = _ONE
    while exponent:
        if exponent & 1:
            result = _times(result, base, most)
        base, exponent = _times(base, base, most), exponent >> 1
    return result
