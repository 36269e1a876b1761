"""How the embedded generator comes to err: it learns from students who are unsure of some carries.

A model that only learns right solutions errs where it has not learnt yet, and there it is certain of its
mistakes: sixteen samples are sixteen times the same wrong digit, and no search can mend that. Language models that
are worth searching with err otherwise: the right step is among the likely ones, though often not the likeliest.
So the generator's last lessons are written by a student who loses the carry of some sums and products, and the
borrow of some differences, with odds that belong to the pair of digits: of some pairs he is fairly sure, others he
gets wrong more often than not. Everything after a slip follows from what he wrote.
"""

import random
from functools import cache

from deployments.embedded.problems import Operation, Problem, closing_step, operation_step

SLIP_ODDS = (0.2, 0.65)
"""The odds of losing a carry are drawn evenly from these for each pair of digits: over 1/2, greedy decoding errs."""
MAX_WRITTEN = 999


def solution_with_slips(problem: Problem, rng: random.Random) -> tuple[str, ...]:
    """The steps such a student writes, without delimiters."""
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
    """The probability of losing the carry or borrow out of the last digits; 0 where there is none."""
    return _odds_of_pair(operation.symbol, value % 10, operation.operand % 10)


@cache
def _odds_of_pair(symbol: str, left: int, right: int) -> float:
    carries = {"+": left + right >= 10, "-": left < right, "*": left * right >= 10}[symbol]
    return random.Random(f"{symbol}{left}{right}").uniform(*SLIP_ODDS) if carries else 0.0
