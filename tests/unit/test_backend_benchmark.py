"""`benchmarks.backend` holds its claims to the ratio of Banyan served and its_hub, round by round."""

import pytest

from benchmarks.backend import SIDES, Turn, claims, figures
from benchmarks.backend_side import Solved, answer_of, rewards


def turn(seconds: float) -> Turn:
    return Turn([Solved("1", 100)] * 4, seconds, cpu_s=0.128)


@pytest.mark.parametrize(("seconds", "ratio", "holds"), [(1.0, 2.0, True), (4.0, 0.5, False)])
def test_a_claim_holds_where_banyan_served_is_at_least_as_fast(seconds: float, ratio: float, holds: bool) -> None:
    rounds = [{side: turn(seconds if side == "backend" else 2.0) for side in SIDES} for _ in range(2)]
    measured = figures(rounds, n=16)
    assert measured["sides"]["backend"] == {
        "problems_per_second": [4 / seconds] * 2,
        "tokens": 800,
        "cpu_ms_per_call": 2.0,
    }
    [found] = claims({"self_consistency, 1 in flight": measured})
    assert (found["value"], found["holds"]) == (ratio, holds)


def test_both_sides_read_answers_and_rewards_from_the_same_text() -> None:
    assert answer_of(r"so \boxed{1}, no: \boxed{ 2 }") == "2"
    assert answer_of("nothing") is None
    assert rewards("?", ["ab", "c"]) == [1 / 3, 1 / 4]
