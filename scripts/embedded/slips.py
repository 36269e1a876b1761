"""Why the embedded generator makes mistakes: it is trained on solutions that lose some carries.

A model that is trained only on correct solutions is wrong where it has not learned enough, and there it is certain: 16
samples contain the same wrong digit 16 times, and no search can find the correct one. Language models that are worth
searching with differ: the correct step is among the likely ones, but often not the likeliest. So the generator's last
training data loses the carry of some sums and products, and the borrow of some differences, with a fixed probability
for each pair of digits: low for some pairs, over one half for others. Everything after a slip is computed from the
wrong value.
"""

import random
from functools import cache

from deployments.embedded.problems import Operation, Problem, closing_step, operation_step

SLIP_ODDS = (0.2, 0.65)
"""Range of the uniformly drawn probability of losing a carry, for each pair of digits. Over 1/2, greedy decoding is
wrong."""
MAX_WRITTEN = 999


def solution_with_slips(problem: Problem, rng: random.Random) -> tuple[str, ...]:
    """The steps of a solution with random slips, without delimiters."""
    value = problem.start
    steps: list[str] = []
    for operation in problem.operations:
        after = operation.apply(value)
        slipped = after + (10 if operation.symbol == "-" else -10)
        if 0 <= slipped <= MAX_WRITTEN and rng.random() < slip_odds(value, operation):
            after = slipped
        steps.append(operation_step(value, operation, after))
        value = after
    return (*steps, closing_step(value))


def slip_odds(value: int, operation: Operation) -> float:
    """Probability of losing the carry or borrow from the last digits; 0 if there is none."""
    return _odds_of_pair(operation.symbol, value % 10, operation.operand % 10)


@cache
def _odds_of_pair(symbol: str, left: int, right: int) -> float:
    carries = {"+": left + right >= 10, "-": left < right, "*": left * right >= 10}[symbol]
    return random.Random(f"{symbol}{left}{right}").uniform(*SLIP_ODDS) if carries else 0.0
