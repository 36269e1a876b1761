"""Solutions of training problems as `banyan train-prm` takes them, and which of these problems it holds out."""

import json
from collections.abc import Sequence
from typing import Any

from benchmarks.published.problems import MathProblem
from benchmarks.published.rows import RowFile
from cluster.training.labels import split_problems
from cluster.training.settings import TrainingSettings
from cluster.training.solutions import Solution, SolvedProblem


def exported_lines(problems: Sequence[MathProblem], n: int, pool: RowFile) -> list[str]:
    """One line of JSON for each of the ``n`` solutions of each problem."""
    return [
        json.dumps({"problem": problem.text, "steps": each["steps"], "correct": each["correct"]})
        for problem in problems
        for each in _solutions(problem, n, pool)
    ]


def held_out(problems: Sequence[MathProblem], n: int, pool: RowFile) -> list[MathProblem]:
    """The problems that a training on these solutions holds out for its card: settings are chosen by them.

    Raises:
        ValueError: a problem has no solutions yet.
    """
    defaults = TrainingSettings(backbone="")
    solved = [
        SolvedProblem(problem.text, [Solution(tuple(each["steps"]), each["correct"]) for each in solutions])
        for problem in problems
        if (solutions := _solutions(problem, n, pool))
    ]
    card = {each.question for each in split_problems(solved, defaults.held_out, defaults.seed).card}
    return [problem for problem in problems if problem.text in card]


def _solutions(problem: MathProblem, n: int, pool: RowFile) -> list[dict[str, Any]]:
    if (problem.id, n) not in pool:
        raise ValueError(f"problem {problem.id} has no {n} solutions yet: sample them first")
    solutions: list[dict[str, Any]] = pool.rows[problem.id, n]["solutions"]
    return solutions
