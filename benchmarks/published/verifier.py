"""What the reward model knows of whole solutions, and the problems that it loses."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.published.strategies import PoolSolution, voted
from cluster.evaluation.card_fit import WRONG, VoteSample, auc_within, aucs_within, kinds_of
from cluster.evaluation.prm_metrics import expected_calibration_error, step_auc
from search.answers.voting import ANSWER_RULES
from search.strategies.path_score import Aggregation, aggregate

Pools = Mapping[str, Sequence[PoolSolution]]


def knowledge(pools: Pools, how: Aggregation) -> dict[str, Any]:
    """AUC over all solutions and within problems, there also against each kind of wrong solution, calibration, and for
    each rule what it gets of the problems whose pool has a right answer."""
    scores = {problem: [aggregate(each.rewards, how) for each in pool] for problem, pool in pools.items()}
    right = {problem: [each.correct for each in pool] for problem, pool in pools.items()}
    every_score = [score for row in scores.values() for score in row]
    every_right = [is_right for row in right.values() for is_right in row]
    kinds = [kinds_of([VoteSample(each.rewards, each.correct, each.group) for each in pool]) for pool in pools.values()]
    within = aucs_within([*scores.values()], kinds, WRONG)
    possible = {problem: pool for problem, pool in pools.items() if any(right[problem])}
    return {
        "aggregation": str(how),
        "solutions": len(every_score),
        "right": round(statistics.fmean(every_right), 4),
        "auc": _rounded(step_auc(every_score, every_right)),
        "auc_within_problems": _mean(within),
        "auc_within_problems_against": {kind: auc_within([*scores.values()], kinds, (kind,)) for kind in WRONG},
        "problems_with_right_and_wrong": len(within),
        "calibration_error": _rounded(expected_calibration_error(every_score, every_right)),
        "problems_with_a_right_answer": len(possible),
        "lost_by": {
            str(rule): sum(not voted(pool, len(pool), rule, how).correct for pool in possible.values())
            for rule in ANSWER_RULES
        },
    }


def _mean(values: Sequence[float]) -> float | None:
    return _rounded(statistics.fmean(values)) if values else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
