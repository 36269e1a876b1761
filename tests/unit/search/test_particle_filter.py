"""Particle filtering: resampling, and the part of ended particles in it."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_fakes import search

from search.settings import parse_search
from search.strategies.resampling import effective_sample_size, softmax, systematic
from search.tree import NodeStatus, SearchTree, Step, StepEnd

WEIGHTS = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20).filter(lambda weights: sum(weights) > 1e-3)


@given(raw=WEIGHTS, start=st.floats(0.0, 1.0, exclude_max=True))
def test_systematic_resampling_draws_the_expected_number_rounded(raw: list[float], start: float) -> None:
    weights = [weight / sum(raw) for weight in raw]
    drawn = Counter(systematic(weights, start))
    assert sum(drawn.values()) == len(weights)
    for index, weight in enumerate(weights):
        assert abs(drawn[index] - len(weights) * weight) < 1 + 1e-6


def test_systematic_resampling_is_unbiased() -> None:
    weights = [0.5, 0.3, 0.2]
    rng = random.Random(1)
    drawn = Counter(index for _ in range(20_000) for index in systematic(weights, rng.random()))
    assert [drawn[index] / 60_000 for index in range(3)] == pytest.approx(weights, abs=0.01)


@pytest.mark.parametrize(("weights", "size"), [([0.25] * 4, 4.0), ([1.0, 0.0, 0.0], 1.0), ([0.5, 0.5, 0.0, 0.0], 2.0)])
def test_effective_sample_size(weights: list[float], size: float) -> None:
    assert effective_sample_size(weights) == pytest.approx(size)


def test_softmax_is_stable_for_any_logits() -> None:
    assert softmax([1000.0, 1000.0], 0.01) == [0.5, 0.5]
    assert softmax([0.0, -1e9], 1.0) == [1.0, 0.0]


def test_without_resampling_every_particle_has_its_own_path() -> None:
    _, outcome = search({"strategy": "particle_filter", "n": 6, "resample_below": 0.0})
    for depth in range(1, outcome.tree.deepest + 1):
        for node in outcome.tree.level(depth):
            assert len(node.children) == (node.status is NodeStatus.OPEN)
    assert len(outcome.tree.level(1)) == 6


def test_with_resampling_good_particles_multiply_and_the_number_stays() -> None:
    copied = died = False
    for seed in range(10):
        settings = {"strategy": "particle_filter", "n": 8, "resample_below": 1.0, "seed": seed}
        _, outcome = search(settings)
        tree = outcome.tree
        copied |= any(len(node.children) > 1 for node in tree.level(1))
        died |= any(node.status is NodeStatus.PRUNED for node in tree.nodes)
        votes = parse_search(settings).strategy.candidates(tree)
        assert len(votes) == 8, "every particle ended and votes, as often as it was drawn"
    assert copied
    assert died


def test_a_solution_is_selected_if_a_limit_ends_the_search_before_resampling() -> None:
    tree = SearchTree(seed=3)
    nodes = tree.request(tree.root, 4)
    for node, reward in zip(nodes, (0.6, 0.9999, 0.3, 0.3), strict=True):
        tree.write(node, Step((1,), "x\n\n", StepEnd.DELIMITER), ends=node is nodes[0])
        tree.complete(node, reward)
    strategy = parse_search({"strategy": "particle_filter", "n": 4}).strategy
    assert nodes[0] in strategy.candidates(tree)
