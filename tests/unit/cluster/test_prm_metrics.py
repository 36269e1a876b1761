"""Metrics of reward models: values computed by hand, those of SciPy's rank test, and what holds for all inputs."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from cluster.evaluation.prm_metrics import (
    BestOfN,
    FirstMistakes,
    ReliabilityBin,
    Solution,
    best_of_n,
    best_threshold,
    expected_calibration_error,
    first_mistake,
    first_mistake_f1,
    reliability_bins,
    roc_curve,
    step_auc,
)

REWARD = st.integers(0, 64).map(lambda number: number / 64)
STEPS = st.lists(st.tuples(REWARD, st.booleans()), min_size=1, max_size=40)
SOLUTIONS = st.lists(
    st.lists(REWARD, min_size=1, max_size=6).flatmap(
        lambda rewards: st.tuples(st.just(rewards), st.integers(-1, len(rewards) - 1))
    ),
    min_size=1,
    max_size=20,
)


def test_auc_counts_pairs_and_half_of_each_tie() -> None:
    # Right steps 0.9, 0.5, 0.2 against wrong steps 0.5, 0.1: 2 + 1.5 + 1 of 6 pairs.
    rewards, labels = [0.9, 0.5, 0.2, 0.5, 0.1], [True, True, True, False, False]
    assert step_auc(rewards, labels) == pytest.approx(4.5 / 6)
    assert step_auc([0.9, 0.1], [True, True]) is None
    assert step_auc([], []) is None


def test_the_roc_curve_has_one_point_for_each_reward() -> None:
    rewards, labels = [0.9, 0.5, 0.2, 0.5, 0.1], [True, True, True, False, False]
    assert roc_curve(rewards, labels) == [(0, 0), (0, 1 / 3), (0.5, 2 / 3), (0.5, 1), (1, 1)]
    assert roc_curve([0.9], [True]) == []


@given(STEPS)
def test_auc_is_u_of_mann_and_whitney_and_the_area_below_the_curve(steps: list[tuple[float, bool]]) -> None:
    """U counts the pairs in which the right step has the higher reward, and half of each tie: AUC is its share."""
    rewards, labels = [reward for reward, _ in steps], [label for _, label in steps]
    auc = step_auc(rewards, labels)
    assert (auc is None) == (len(set(labels)) < 2)
    if auc is not None:
        curve = roc_curve(rewards, labels)
        area = sum((x - before) * (y + below) / 2 for (before, below), (x, y) in pairwise(curve))
        right, wrong = ([reward for reward, label in steps if label is wanted] for wanted in (True, False))
        u = mannwhitneyu(right, wrong, method="asymptotic").statistic
        assert auc == pytest.approx(u / (len(right) * len(wrong))) == pytest.approx(area)


def test_calibration_compares_rewards_with_shares() -> None:
    rewards, labels = [0.1, 0.3, 0.9, 1.0], [False, True, True, True]
    low, high = reliability_bins(rewards, labels, bins=2)
    assert low == pytest.approx(ReliabilityBin(0.0, 0.5, 2, 0.2, 0.5))
    assert high == pytest.approx(ReliabilityBin(0.5, 1.0, 2, 0.95, 1.0))
    assert expected_calibration_error(rewards, labels, bins=2) == pytest.approx(0.5 * 0.3 + 0.5 * 0.05)
    assert expected_calibration_error([], []) is None


@given(STEPS)
def test_every_step_is_in_one_bin_and_the_error_in_0_to_1(steps: list[tuple[float, bool]]) -> None:
    rewards, labels = [reward for reward, _ in steps], [label for _, label in steps]
    bins = reliability_bins(rewards, labels)
    assert sum(each.steps for each in bins) == len(steps)
    assert all(each.low <= each.reward <= each.high for each in bins)
    error = expected_calibration_error(rewards, labels)
    assert error is not None
    assert abs(sum(rewards) - sum(labels)) / len(steps) - 1e-9 <= error <= 1


def test_the_f1_of_first_mistakes_is_process_benchs() -> None:
    rewards = [[0.9, 0.2, 0.1], [0.4, 0.9], [0.9, 0.8], [0.9, 0.3], [0.7]]
    mistakes = [1, 1, -1, -1, -1]
    # Found: 1 of the 2 erroneous (the second's first low reward is at 0), 2 of the 3 correct.
    expected = FirstMistakes(2 * 0.5 * (2 / 3) / (0.5 + 2 / 3), 0.5, 2 / 3)
    assert first_mistake_f1(rewards, mistakes) == pytest.approx(expected)
    assert first_mistake_f1(rewards[:2], mistakes[:2]) == FirstMistakes(None, 0.5, None)
    assert first_mistake_f1([[0.9], [0.1]], [0, -1]) == FirstMistakes(0.0, 0.0, 0.0)
    assert first_mistake([0.5, 0.5]) == -1


def test_the_best_threshold_separates_what_can_be_separated() -> None:
    rewards, mistakes = [[0.8, 0.3], [0.4, 0.6]], [1, -1]
    threshold = best_threshold(rewards, mistakes)
    assert threshold is not None
    assert threshold == pytest.approx(0.35)
    assert first_mistake_f1(rewards, mistakes, threshold).f1 == 1.0
    assert best_threshold([[0.8]], [0]) is None
    assert best_threshold([], []) is None


@given(SOLUTIONS, REWARD)
def test_no_threshold_is_better_than_the_best(solutions: list[tuple[list[float], int]], other: float) -> None:
    rewards, mistakes = [each for each, _ in solutions], [mistake for _, mistake in solutions]
    best = best_threshold(rewards, mistakes)
    at_other = first_mistake_f1(rewards, mistakes, other).f1
    if best is None:
        assert at_other is None
    else:
        at_best = first_mistake_f1(rewards, mistakes, best).f1
        assert at_best is not None
        assert at_other is not None
        assert at_best >= at_other - 1e-9


def test_best_of_n_beside_the_votes() -> None:
    problems = [
        [Solution(0.9, True, "1"), Solution(0.3, False, "2"), Solution(0.4, False, "2")],
        [Solution(0.2, True, "3"), Solution(0.8, False, "4"), Solution(0.1, True, "3")],
        [Solution(0.5, False, None)],
        [Solution(0.7, True, None), Solution(0.2, False, "5")],
    ]
    assert best_of_n(problems) == BestOfN(4, best=2 / 4, weighted=1 / 4, majority=1 / 4, any_right=3 / 4)
    assert best_of_n(problems[2:3]) == BestOfN(1, best=0, weighted=None, majority=None, any_right=0)
    assert best_of_n([]) is None


@given(st.lists(st.lists(st.tuples(REWARD, st.integers(0, 3)), min_size=1, max_size=8), min_size=1, max_size=8))
def test_no_choice_is_better_than_the_pool(problems: list[list[tuple[float, int]]]) -> None:
    found = best_of_n([[Solution(score, answer == 0, answer) for score, answer in each] for each in problems])
    assert found is not None
    assert found.weighted is not None
    assert found.majority is not None
    assert max(found.best, found.weighted, found.majority) <= found.any_right
    perfect = best_of_n(
        [[Solution(float(answer == 0), answer == 0, answer) for _, answer in each] for each in problems]
    )
    assert perfect is not None
    assert perfect.best == perfect.any_right
