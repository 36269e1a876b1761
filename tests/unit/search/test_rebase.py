"""REBASE's allocation: expected values, and exact totals."""

import random
from itertools import pairwise

import pytest
from search_fakes import search

from search.strategies.levels.rebase import allocate_width
from search.tree import NodeStatus

GOLDEN = [
    ((0.9, 0.8, 0.5, 0.1), 8, [5, 3, 0, 0]),
    ((0.9, 0.8, 0.5, 0.1), 16, [10, 5, 1, 0]),
    ((0.5, 0.5, 0.5, 0.5), 8, [2, 2, 2, 2]),
    ((0.5, 0.5, 0.5), 8, [3, 3, 2]),
    ((0.1, 0.9), 4, [0, 4]),
    ((0.7, 0.7, 0.2), 5, [3, 2, 0]),
]


@pytest.mark.parametrize(("rewards", "width", "children"), GOLDEN)
def test_allocations_have_the_expected_values(rewards: tuple[float, ...], width: int, children: list[int]) -> None:
    assert allocate_width(rewards, width, 0.2) == children


def test_the_width_is_met_exactly_in_100000_cases() -> None:
    rng = random.Random(1)
    for _ in range(100_000):
        count = rng.randint(1, 12)
        values = rng.choice([[rng.random() for _ in range(3)], [0.0, 1.0], [0.5]])  # ties in most cases
        rewards = [rng.choice(values) for _ in range(count)]
        width = rng.choice([1, 2, 7, 16, 64, 256])
        children = allocate_width(rewards, width, rng.choice([0.001, 0.05, 0.2, 1.0, 100.0]))
        assert sum(children) == width
        assert min(children) >= 0
        ranked = sorted(zip(rewards, children, strict=True), key=lambda pair: -pair[0])
        assert all(better >= worse for (_, better), (_, worse) in pairwise(ranked))


def test_a_paths_weight_is_multiplied_by_its_count() -> None:
    assert allocate_width([0.5, 0.5], 8, 0.2, [3, 1]) == [6, 2]
    assert allocate_width([0.1, 0.9], 8, 0.2, [1, 1]) == allocate_width([0.1, 0.9], 8, 0.2)
    assert allocate_width([0.1, 0.9], 8, 0.2, [200, 1]) == [7, 1]


@pytest.mark.parametrize("strategy", ["rebase", "ets"])
def test_ended_paths_keep_their_part_of_the_width(strategy: str) -> None:
    for seed in range(20):
        _, outcome = search({"strategy": strategy, "n": 9, "seed": seed})
        tree = outcome.tree
        assert tree.ended(tree.deepest) <= 9
        for depth in range(1, tree.deepest):
            ended = sum(node.count for node in tree.with_status(NodeStatus.TERMINAL) if node.depth <= depth)
            assert tree.ended(depth) == ended
            assert len(tree.level(depth + 1)) == 9 - ended
