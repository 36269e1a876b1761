"""Which solutions are read together: the draws are the published ones, the order within a prompt is ours."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from search.strategies.reading.candidates import Candidate, orders, ranked, windows
from search.strategies.reading.draws import drawn, prefix_order, resampled, score_weight
from search.tree import Node


def of_counts(*counts: int) -> list[Candidate]:
    return [Candidate(Node((index,), None), count) for index, count in enumerate(counts)]


@pytest.mark.parametrize(("population", "k"), [(16, 4), (8, 2), (4, 4), (7, 1)])
def test_the_draws_are_those_of_the_program_of_rsa(population: int, k: int) -> None:
    """Its ``generate_candidates``: ``[random.sample(A, R) for _ in range(M)]``."""
    solutions = [f"solution {index}" for index in range(population)]
    published = random.Random(5)
    expected = [published.sample(solutions, k) for _ in range(population)]
    draws = drawn(population, population, k, random.Random(5))
    assert [[solutions[index] for index in draw] for draw in draws] == expected


def test_a_population_that_is_smaller_than_k_is_read_whole() -> None:
    assert [sorted(draw) for draw in drawn(3, 2, 4, random.Random(1))] == [[0, 1, 2]] * 2


def published_resampling(weights: Sequence[float], rng: random.Random) -> list[int]:
    """``systematic_resample`` of PRISM's program with the largest share of copies, for a sum of weights above 0."""
    size = len(weights)
    cumulated = [sum(weights[: end + 1]) / sum(weights) for end in range(size)]
    start, most = rng.random() / size, -(-3 * size // 10)
    copies: Counter[int] = Counter()
    for number in range(size):
        place = next((index for index in range(size) if cumulated[index] >= start + number / size), size - 1)
        if copies[place] >= most:
            place = rng.choice([index for index in range(size) if copies[index] < most])
        copies[place] += 1
    return sorted(copies.elements())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=12), st.integers(0, 99))
def test_resampling_is_that_of_prism(scores: list[int], seed: int) -> None:
    weights = [score_weight(score / 20) for score in scores]
    size, whole = len(scores), sum(weights)
    effective = whole**2 / sum(weight**2 for weight in weights) if whole else size
    assume(abs(effective - 0.5 * size) > 1e-6)
    keeps = effective > 0.5 * size
    expected = [*range(size)] if keeps else published_resampling(weights, random.Random(seed))
    assert resampled(weights, random.Random(seed)) == expected


def test_a_dominant_solution_gets_a_third_of_the_places_at_most() -> None:
    places = Counter(resampled([score_weight(score) for score in (0.9, *[0.01] * 9)], random.Random(1)))
    assert places[0] == 3
    assert sum(places.values()) == 10


def test_solutions_of_which_nothing_is_known_are_all_kept() -> None:
    assert resampled([0.0, 0.0, 0.0], random.Random(1)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("sets", "sizes", "ordered"),
    [
        ([[2, 1], [1, 0]], [5, 5, 5], [[1, 2], [1, 0]]),
        ([[3, 0, 2], [2, 3, 1], [0, 1, 2]], [5] * 4, [[2, 0, 3], [2, 1, 3], [2, 0, 1]]),
        # 0 is in as many sets as 1, and 1 has more tokens to share.
        ([[0, 1], [0, 2], [1, 3]], [2, 9, 5, 5], [[1, 0], [0, 2], [1, 3]]),
        ([[1, 1, 0], [1, 0, 1]], [5, 5], [[0, 1, 1], [0, 1, 1]]),
        ([[2], [1], []], [5] * 3, [[2], [1], []]),
    ],
)
def test_orders_by_hand(sets: list[list[int]], sizes: list[int], ordered: list[list[int]]) -> None:
    assert prefix_order(sets, sizes) == ordered


def prefixes(orders: Sequence[Sequence[int]]) -> int:
    """The number of solutions that are read, with those of common prefixes counted once."""
    return len({tuple(order[: end + 1]) for order in orders for end in range(len(order))})


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 999))
def test_the_order_keeps_the_sets_and_shares_no_less(size: int, k: int, seed: int) -> None:
    draws = drawn(size, size, k, random.Random(seed))
    ordered = prefix_order(draws, [1] * size)
    assert [sorted(order) for order in ordered] == [sorted(draw) for draw in draws]
    assert prefixes(ordered) <= prefixes(draws)


def test_of_16_prompts_with_4_of_16_solutions_a_third_is_shared() -> None:
    """With the drawn order it is a tenth."""
    draws = [drawn(16, 16, 4, random.Random(seed)) for seed in range(50)]
    assert sum(map(prefixes, draws)) / (50 * 64) > 0.88
    assert sum(prefixes(prefix_order(each, [1] * 16)) for each in draws) / (50 * 64) < 0.70


@pytest.mark.parametrize(
    ("candidates", "size", "sizes"), [(1, 8, [1]), (8, 8, [8]), (9, 8, [5, 4]), (24, 8, [8, 8, 8]), (3, 2, [2, 1])]
)
def test_windows_are_as_few_and_as_even_as_they_can_be(candidates: int, size: int, sizes: list[int]) -> None:
    dealt = windows(of_counts(*range(candidates, 0, -1)), size)
    assert [len(window) for window in dealt] == sizes
    assert sorted(each.node.id for window in dealt for each in window) == [(i,) for i in range(candidates)]
    # The most frequent answers are the first of their windows.
    assert [window[0].count for window in dealt] == [candidates - index for index in range(len(dealt))]


def test_candidates_stand_in_each_place_equally_often_in_an_order_of_the_seed() -> None:
    window = of_counts(5, 4, 3, 2)
    first = orders(window, 8, random.Random("a"))
    assert all({*order} == {*window} for order in first)
    assert all(Counter(column) == dict.fromkeys(window, 2) for column in zip(*first, strict=True))
    assert first == orders(window, 8, random.Random("a")) != orders(window, 8, random.Random("b"))


@pytest.mark.parametrize(
    ("chosen", "order"),
    [({}, [0, 1, 2]), ({2: 1}, [2, 0, 1]), ({1: 2, 2: 2}, [1, 2, 0]), ({0: 1, 1: 1, 2: 1}, [0, 1, 2])],
)
def test_readers_decide_and_the_vote_decides_between_equals(chosen: dict[int, int], order: list[int]) -> None:
    window = of_counts(5, 2, 2)
    votes = {window[index].node: count for index, count in chosen.items()}
    assert [candidate.node.id[0] for candidate in ranked(window, votes)] == order
