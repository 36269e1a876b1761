"""Solutions of training problems as `banyan train-prm` takes them, and which of these problems it holds out."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.published.problems import MathProblem
from benchmarks.published.rows import RowFile
from cluster.training.labels import Split, split_problems
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
    card = {each.question for each in split_of(problems, n, pool).card}
    return [problem for problem in problems if problem.text in card]


def split_of(problems: Sequence[MathProblem], n: int, pool: RowFile) -> Split:
    """The split of a training with the default settings on these solutions; raises as `held_out`."""
    defaults = TrainingSettings(backbone="")
    solved = [SolvedProblem(problem.text, _read(_solutions(problem, n, pool))) for problem in problems]
    return split_problems(solved, defaults.held_out, defaults.seed)


def _read(solutions: Sequence[dict[str, Any]]) -> list[Solution]:
    """Solutions as training reads them from a file: without whitespace around steps, each once."""
    counts = Counter(
        (tuple(step.strip() for step in each["steps"] if step.strip()), each["correct"]) for each in solutions
    )
    return [Solution(steps, correct, count) for (steps, correct), count in counts.items()]


def _solutions(problem: MathProblem, n: int, pool: RowFile) -> list[dict[str, Any]]:
    if (problem.id, n) not in pool:
        raise ValueError(f"problem {problem.id} has no {n} solutions yet: sample them first")
    solutions: list[dict[str, Any]] = pool.rows[problem.id, n]["solutions"]
    return solutions
