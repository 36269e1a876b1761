"""Metrics of a reward model on steps and solutions whose correctness is known.

Rewards are in [0, 1]. A step's label is true if the step is right. The first mistake of a solution is the index of its
first wrong step, -1 if it has none.
"""

import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

DECISION_THRESHOLD = 0.5
"""Reward from which on a step counts as right: where a model with labels prefers the label of right steps."""


class ReliabilityBin(NamedTuple):
    """The steps with rewards in ``[low, high)``; the last bin includes 1."""

    low: float
    high: float
    steps: int
    reward: float
    """Mean reward of the steps."""
    right: float
    """Share of right steps. A calibrated model's mean rewards equal these shares."""


class FirstMistakes(NamedTuple):
    """How well the first mistakes are found, as ProcessBench counts."""

    f1: float | None
    """Harmonic mean of the two accuracies; None if one of them is None."""
    erroneous: float | None
    """Share of the solutions with a mistake of which exactly the first mistake was found; None without any."""
    correct: float | None
    """Share of the solutions without a mistake in which none was found; None without any."""


class Solution(NamedTuple):
    """One of several solutions of a problem."""

    score: float
    right: bool
    answer: Hashable | None
    """Equal for equivalent answers; None if the solution has none."""


class BestOfN(NamedTuple):
    """Share of problems that each way to choose one of the solutions gets right. The first solution wins a tie."""

    problems: int
    best: float
    """The solution with the highest score."""
    weighted: float | None
    """The answer with the highest sum of scores; None if no solution has an answer."""
    majority: float | None
    """The most frequent answer; None if no solution has an answer."""
    any_right: float
    """A perfect choice."""


def step_auc(rewards: Sequence[float], labels: Sequence[bool]) -> float | None:
    """The area under the ROC curve: the probability that a random right step has a higher reward than a random wrong
    one, where a tie counts one half. None unless there are steps of both kinds.

    Source: Hanley and McNeil 1982: it is Mann and Whitney's U, divided by the number of pairs.
    """
    from scipy.stats import rankdata  # imported here: takes half a second

    is_right = np.asarray(labels, dtype=bool)
    right, wrong = int(is_right.sum()), int((~is_right).sum())
    if not right or not wrong:
        return None
    u = rankdata(rewards)[is_right].sum() - right * (right + 1) / 2
    return float(u / (right * wrong))


def roc_curve(rewards: Sequence[float], labels: Sequence[bool]) -> list[tuple[float, float]]:
    """Points of the ROC curve from (0, 0) to (1, 1): share of the wrong steps and share of the right steps with at
    least a certain reward, for each reward that occurs. Empty unless there are steps of both kinds."""
    values, is_right = np.asarray(rewards, dtype=float), np.asarray(labels, dtype=bool)
    if is_right.all() or not is_right.any():
        return []
    order = np.argsort(-values, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(values[order]) != 0, True))  # the last step of each reward
    right, wrong = np.cumsum(is_right[order])[ends], np.cumsum(~is_right[order])[ends]
    return [(0.0, 0.0), *zip((wrong / wrong[-1]).tolist(), (right / right[-1]).tolist(), strict=True)]


def reliability_bins(rewards: Sequence[float], labels: Sequence[bool], bins: int = 10) -> list[ReliabilityBin]:
    """The bins of equal width that have steps, by rising reward."""
    values, is_right = np.asarray(rewards, dtype=float), np.asarray(labels, dtype=bool)
    index = np.minimum((values * bins).astype(int), bins - 1)
    return [
        ReliabilityBin(
            number / bins,
            (number + 1) / bins,
            int(chosen.sum()),
            float(values[chosen].mean()),
            float(is_right[chosen].mean()),
        )
        for number in range(bins)
        if (chosen := index == number).any()
    ]


def expected_calibration_error(rewards: Sequence[float], labels: Sequence[bool], bins: int = 10) -> float | None:
    """The mean distance between reward and share of right steps over the bins, weighted by their steps; None without
    steps.

    Source: Guo et al. 2017 (arXiv 1706.04599), with the reward as the probability that a step is right.
    """
    found = reliability_bins(rewards, labels, bins)
    return sum(each.steps * abs(each.reward - each.right) for each in found) / len(rewards) if found else None


def first_mistake(rewards: Iterable[float], threshold: float = DECISION_THRESHOLD) -> int:
    """The index of the first step whose reward is below ``threshold``; -1 if there is none."""
    return next((index for index, reward in enumerate(rewards) if reward < threshold), -1)


def first_mistake_f1(
    rewards: Sequence[Sequence[float]], mistakes: Sequence[int], threshold: float = DECISION_THRESHOLD
) -> FirstMistakes:
    """How well the first reward below ``threshold`` finds the first mistake. ``rewards`` has the rewards of each
    solution's steps, ``mistakes`` each solution's first mistake.

    Source: ProcessBench (arXiv 2412.06559) and its code.
    """
    found = [first_mistake(steps, threshold) == mistake for steps, mistake in zip(rewards, mistakes, strict=True)]
    erroneous = _share(hit for hit, mistake in zip(found, mistakes, strict=True) if mistake >= 0)
    correct = _share(hit for hit, mistake in zip(found, mistakes, strict=True) if mistake < 0)
    f1 = None if erroneous is None or correct is None else statistics.harmonic_mean([erroneous, correct])
    return FirstMistakes(f1, erroneous, correct)


def best_threshold(rewards: Sequence[Sequence[float]], mistakes: Sequence[int]) -> float | None:
    """A threshold with the highest F1; None unless there are solutions with and without a mistake.

    ProcessBench takes that of the GSM8K subset for all subsets, if a model's rewards are no label probabilities. On the
    solutions that it was chosen on, its F1 is an upper bound.
    """
    # A solution counts as found for the thresholds in (low, high].
    low, high, erroneous = [], [], []
    for steps, mistake in zip(rewards, mistakes, strict=True):
        low.append(steps[mistake] if mistake >= 0 else -1.0)
        high.append(min([1.0, *(steps[:mistake] if mistake >= 0 else steps)]))
        erroneous.append(mistake >= 0)
    if all(erroneous) or not any(erroneous):
        return None
    lows, highs, is_erroneous = np.asarray(low), np.asarray(high), np.asarray(erroneous)
    edges = np.unique(np.concatenate([[0.0, 1.0], lows[lows >= 0], highs]))
    thresholds = (edges[:-1] + edges[1:]) / 2

    def accuracy(chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
        findable = chosen & (lows < highs)
        begun, ended = np.sort(lows[findable]), np.sort(highs[findable])
        found = np.searchsorted(begun, thresholds) - np.searchsorted(ended, thresholds)
        return np.asarray(found / chosen.sum(), dtype=np.float64)

    on_erroneous, on_correct = accuracy(is_erroneous), accuracy(~is_erroneous)
    f1 = 2 * on_erroneous * on_correct / np.maximum(on_erroneous + on_correct, np.finfo(float).tiny)
    return float(thresholds[np.argmax(f1)])


def best_of_n(problems: Sequence[Sequence[Solution]]) -> BestOfN | None:
    """How often a choice by score is right, beside a majority vote. ``problems`` has the solutions of each problem,
    at least one; those without an answer do not vote. None without problems.
    """
    if not problems:
        return None
    answered = any(each.answer is not None for solutions in problems for each in solutions)
    return BestOfN(
        len(problems),
        statistics.fmean(max(solutions, key=lambda each: each.score).right for solutions in problems),
        statistics.fmean(_vote(solutions, weighted=True) for solutions in problems) if answered else None,
        statistics.fmean(_vote(solutions, weighted=False) for solutions in problems) if answered else None,
        statistics.fmean(any(each.right for each in solutions) for solutions in problems),
    )


def _vote(solutions: Iterable[Solution], *, weighted: bool) -> bool:
    votes: defaultdict[Hashable, float] = defaultdict(float)
    right: dict[Hashable, bool] = {}
    for solution in solutions:
        if solution.answer is not None:
            votes[solution.answer] += solution.score if weighted else 1
            right.setdefault(solution.answer, solution.right)
    return right[max(votes, key=votes.__getitem__)] if votes else False


def _share(found: Iterable[bool]) -> float | None:
    hits = list(found)
    return sum(hits) / len(hits) if hits else None
