"""Which solutions of a population each new one reads, and in which order a prompt shows them."""

import math
from collections import Counter
from collections.abc import Sequence
from random import Random

from search.strategies.resampling import effective_sample_size, shares, systematic

WEIGHT_TEMPERATURE = 0.8
"""The weight of a solution with score s is s ** (1 / 0.8), as in PRISM's published program."""
RESAMPLE_BELOW = 0.5
"""Resampling takes place when the effective sample size is below this fraction of the population, as in PRISM."""
MOST_COPIES = 0.3
"""Largest share of a resampled population that one solution may have, as in PRISM."""
NO_WEIGHT = 1e-6
"""Where no weight is larger, nothing is known of any solution, and none is preferred, as in PRISM."""


def drawn(size: int, number: int, k: int, rng: Random) -> list[list[int]]:
    """For each of ``number`` new solutions the indices of those that it reads: ``k`` of a population of ``size``, drawn
    uniformly without replacement; all of it where it is not larger. The draws are those of the program of RSA
    (arXiv 2509.26626)."""
    return [rng.sample(range(size), min(k, size)) for _ in range(number)]


def score_weight(score: float) -> float:
    """The weight in a resampling of a solution with this score in [0, 1]."""
    return float(score ** (1 / WEIGHT_TEMPERATURE))


def resampled(weights: Sequence[float], rng: Random) -> list[int]:
    """Indices of a population that is resampled by its weights, each at least 0, as PRISM does (arXiv 2603.02479):
    systematically, and only where a few have most of the weight. A solution gets at most ``MOST_COPIES`` of the places;
    one that has more gives them to others at random."""
    size = len(weights)
    if max(weights) < NO_WEIGHT:
        return [*range(size)]
    normalized = shares(weights)
    if effective_sample_size(normalized) >= RESAMPLE_BELOW * size:
        return [*range(size)]
    most = max(1, math.ceil(size * MOST_COPIES))
    copies: Counter[int] = Counter()
    for place in systematic(normalized, rng.random()):
        others = [index for index in range(size) if copies[index] < most]
        copies[place if copies[place] < most else rng.choice(others)] += 1
    return sorted(copies.elements())


def prefix_order(sets: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[list[int]]:
    """The same sets, each in an order by which prompts share long prefixes. An index may be in a set several times.

    The sets become a trie: of all sets that begin alike, those with the solution by which they share the most begin
    with it. ``sizes``: the length of each solution. Of equally good ones the lowest index goes first.
    """
    orders: list[list[int]] = [[] for _ in sets]
    left = [Counter(each) for each in sets]
    groups = [[*range(len(sets))]]
    while groups:
        group = groups.pop()
        uses = Counter(index for number in group for index in left[number])
        if not uses:
            continue
        first = min(uses, key=lambda index: ((1 - uses[index]) * sizes[index], -uses[index], index))
        inside = [number for number in group if first in left[number]]
        groups.append([number for number in group if first not in left[number]])
        for number in inside:
            orders[number].append(first)
            left[number][first] -= 1
            if not left[number][first]:
                del left[number][first]
        groups.append(inside)
    return orders
