"""What the reward model knows of whole solutions, and the problems that it loses."""

import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from benchmarks.published.strategies import PoolSolution, voted
from cluster.evaluation.prm_metrics import expected_calibration_error, step_auc
from search.answers.voting import SelectionRule
from search.strategies.path_score import Aggregation, aggregate

Pools = Mapping[str, Sequence[PoolSolution]]
RIGHT = "right"
FREQUENT, OTHER, NO_ANSWER = "the most frequent wrong answer", "other wrong answers", "no answer"
WRONG = (FREQUENT, OTHER, NO_ANSWER)
"""Kinds of wrong solutions to a problem. A majority vote can only lose to the first."""


def knowledge(pools: Pools, how: Aggregation) -> dict[str, Any]:
    """AUC over all solutions and within problems, there also against each kind of wrong solution, calibration, and for
    each rule what it gets of the problems whose pool has a right answer."""
    scores = {problem: [aggregate(each.rewards, how) for each in pool] for problem, pool in pools.items()}
    right = {problem: [each.correct for each in pool] for problem, pool in pools.items()}
    every_score = [score for row in scores.values() for score in row]
    every_right = [is_right for row in right.values() for is_right in row]
    kinds = {problem: _kinds(pool) for problem, pool in pools.items()}
    within = _aucs_within_problems(scores, kinds, WRONG)
    possible = {problem: pool for problem, pool in pools.items() if any(right[problem])}
    return {
        "aggregation": str(how),
        "solutions": len(every_score),
        "right": round(statistics.fmean(every_right), 4),
        "auc": _rounded(step_auc(every_score, every_right)),
        "auc_within_problems": _mean(within),
        "auc_within_problems_against": {kind: _mean(_aucs_within_problems(scores, kinds, (kind,))) for kind in WRONG},
        "problems_with_right_and_wrong": len(within),
        "calibration_error": _rounded(expected_calibration_error(every_score, every_right)),
        "problems_with_a_right_answer": len(possible),
        "lost_by": {
            str(rule): sum(not voted(pool, len(pool), rule, how).correct for pool in possible.values())
            for rule in SelectionRule
        },
    }


def _kinds(pool: Sequence[PoolSolution]) -> list[str]:
    """`RIGHT`, or the kind of wrong solution, for each solution of the pool."""
    wrong = Counter(each.group for each in pool if not each.correct and each.group is not None)
    frequent = wrong.most_common(1)[0][0] if wrong else None

    def kind(each: PoolSolution) -> str:
        if each.correct:
            return RIGHT
        if each.group is None:
            return NO_ANSWER
        return FREQUENT if each.group == frequent else OTHER

    return [kind(each) for each in pool]


def _aucs_within_problems(
    scores: Mapping[str, Sequence[float]], kinds: Mapping[str, Sequence[str]], wrong: Collection[str]
) -> list[float]:
    """For each problem with solutions of both sorts, the chance that a right one scores above a wrong one of these
    kinds."""
    found: list[float] = []
    for problem, of_problem in kinds.items():
        compared = [number for number, kind in enumerate(of_problem) if kind == RIGHT or kind in wrong]
        auc = step_auc(
            [scores[problem][number] for number in compared], [of_problem[number] == RIGHT for number in compared]
        )
        if auc is not None:
            found.append(auc)
    return found


def _mean(values: Sequence[float]) -> float | None:
    return _rounded(statistics.fmean(values)) if values else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
