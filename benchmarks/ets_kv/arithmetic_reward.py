"""A reward for SmolLM2's steps that needs no model: whether the sums in a step are right."""

import re
from collections.abc import Sequence
from fractions import Fraction

from search.ports import ScoreRequest

_SUM = re.compile(r"(?<![\d.*/+-])(-?\d+(?:\.\d+)?) *([-+*/×x]) *(\d+(?:\.\d+)?) *= *\$?(-?\d+(?:\.\d+)?)(?![\d*/+-])")
RIGHT, WRONG, SILENT = 0.9, 0.1, 0.5


def reward(steps: Sequence[str]) -> float:
    """Mean over the sums of a path; a step without a sum counts as one that is neither right nor wrong."""
    grades = [grade for step in steps for grade in (_grades(step) or [SILENT])]
    return sum(grades) / len(grades)


class ArithmeticScorer:
    """`search.ports.StepScorer`."""

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        return [
            [reward(item.steps[: end + 1]) for end in range(len(item.steps) - item.unscored, len(item.steps))]
            for item in request.items
        ]


def _grades(step: str) -> list[float]:
    grades: list[float] = []
    for left, sign, right, result in _SUM.findall(step):
        a, b, stated = Fraction(left), Fraction(right), Fraction(result)
        match sign:
            case "+":
                value = a + b
            case "-":
                value = a - b
            case "/":
                value = a / b if b else stated + 1
            case _:
                value = a * b
        grades.append(RIGHT if abs(value - stated) < Fraction(1, 100) else WRONG)
    return grades
