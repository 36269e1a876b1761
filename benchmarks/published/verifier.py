"""What the reward model knows of whole solutions, and the problems that it loses."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.published.strategies import PoolSolution, voted
from cluster.evaluation.prm_metrics import expected_calibration_error, step_auc
from search.answers.voting import SelectionRule
from search.strategies.path_score import Aggregation, aggregate

Pools = Mapping[str, Sequence[PoolSolution]]
Scores = Mapping[str, Sequence[float]]
FREQUENT, OTHER, NO_ANSWER = "the most frequent wrong answer", "other wrong answers", "no answer"
"""Kinds of wrong solutions of a problem. A vote loses to the first."""


def knowledge(pools: Pools, how: Aggregation) -> dict[str, Any]:
    """AUC over all solutions and within problems, there also against each kind of wrong solution, calibration, and for
    each rule what it gets of the problems whose pool has a right answer."""
    scores = {problem: [aggregate(each.rewards, how) for each in pool] for problem, pool in pools.items()}
    right = {problem: [each.correct for each in pool] for problem, pool in pools.items()}
    every_score = [score for row in scores.values() for score in row]
    every_right = [is_right for row in right.values() for is_right in row]
    within = [found for problem in pools if (found := step_auc(scores[problem], right[problem])) is not None]
    possible = {problem: pool for problem, pool in pools.items() if any(right[problem])}
    return {
        "aggregation": str(how),
        "solutions": len(every_score),
        "right": round(statistics.fmean(every_right), 4),
        "auc": _rounded(step_auc(every_score, every_right)),
        "auc_within_problems": _rounded(statistics.fmean(within) if within else None),
        "auc_within_problems_against": {
            kind: _rounded(_auc_within(pools, scores, kind)) for kind in (FREQUENT, OTHER, NO_ANSWER)
        },
        "problems_with_right_and_wrong": len(within),
        "calibration_error": _rounded(expected_calibration_error(every_score, every_right)),
        "problems_with_a_right_answer": len(possible),
        "lost_by": {
            str(rule): sum(not voted(pool, len(pool), rule, how).correct for pool in possible.values())
            for rule in SelectionRule
        },
    }


def _auc_within(pools: Pools, scores: Scores, kind: str) -> float | None:
    """Mean over problems of the chance that a right solution scores above a wrong one of that kind."""
    found: list[float] = []
    for problem, pool in pools.items():
        kinds = _wrong_kinds(pool)
        compared = [number for number, each in enumerate(pool) if each.correct or kinds[number] == kind]
        auc = step_auc([scores[problem][number] for number in compared], [pool[number].correct for number in compared])
        if auc is not None:
            found.append(auc)
    return statistics.fmean(found) if found else None


def _wrong_kinds(pool: Sequence[PoolSolution]) -> list[str | None]:
    """The kind of each wrong solution; None for right ones."""
    answers = Counter(each.group for each in pool if not each.correct and each.group is not None)
    frequent = answers.most_common(1)[0][0] if answers else None
    return [
        None if each.correct else NO_ANSWER if each.group is None else FREQUENT if each.group == frequent else OTHER
        for each in pool
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
