"""The problems of the embedded models, and the student whose slips the generator learns."""

import random
import re
from itertools import islice

import pytest

from deployments.embedded.problems import Operation, Problem, Split, check_steps, draw_problems
from scripts.embedded.slips import SLIP_ODDS, slip_odds, solution_with_slips

STEP = re.compile(r"(-?\d+) ([-+*]) (\d+) = (-?\d+)")


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return list(islice(draw_problems(Split.TRAIN, 1), 500))


def test_splits_share_no_problem() -> None:
    chains = {
        split: {(p.start, p.operations) for seed in (1, 2) for p in islice(draw_problems(split, seed), 400)}
        for split in Split
    }
    assert not chains[Split.TRAIN] & chains[Split.TEST]
    assert not chains[Split.TRAIN] & chains[Split.VALIDATION]
    assert not chains[Split.VALIDATION] & chains[Split.TEST]


def test_a_step_after_a_wrong_one_is_wrong(problems: list[Problem]) -> None:
    for problem in problems[:50]:
        steps = list(problem.solution)
        assert all(check_steps(problem, steps))
        for index in range(len(steps)):
            spoilt = [*steps[:index], steps[index].replace("=", "= 1"), *steps[index + 1 :]]
            if spoilt != steps:
                assert check_steps(problem, spoilt) == [True] * index + [False] * (len(steps) - index)


@pytest.mark.parametrize(
    ("value", "operation", "carries"),
    [
        (17, Operation("+", 25), True),
        (17, Operation("+", 22), False),
        (42, Operation("-", 15), True),
        (45, Operation("-", 12), False),
        (14, Operation("*", 3), True),
        (13, Operation("*", 3), False),
    ],
)
def test_slips_occur_only_at_carries_and_borrows(value: int, operation: Operation, carries: bool) -> None:
    odds = slip_odds(value, operation)
    assert (SLIP_ODDS[0] <= odds <= SLIP_ODDS[1]) if carries else odds == 0.0


def test_steps_after_a_slip_continue_from_the_written_number(problems: list[Problem]) -> None:
    rng = random.Random(2)
    slipped = carried = 0
    for problem in problems:
        *steps, closing = solution_with_slips(problem, rng)
        value = problem.start
        for step, operation in zip(steps, problem.operations, strict=True):
            match = STEP.fullmatch(step)
            assert match is not None
            assert (int(match[1]), match[2], int(match[3])) == (value, operation.symbol, operation.operand)
            written, right = int(match[4]), operation.apply(value)
            odds = slip_odds(value, operation)
            assert written == right or (abs(written - right) == 10 and odds > 0)
            slipped += written != right
            carried += odds > 0
            value = written
        assert closing == rf"The answer is \boxed{{{value}}}"
    assert 0.3 < slipped / carried < 0.55
