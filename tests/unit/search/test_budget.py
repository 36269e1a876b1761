"""Budgets are reserved before they are spent."""

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from search.budget import Budget, BudgetMeter, Cost
from search.errors import LimitKind, LimitReached


def test_reservations_are_granted_in_order() -> None:
    meter = BudgetMeter(Budget(tokens=100, nodes=10))
    assert meter.reserve([Cost(40, 1)] * 4) == [Cost(40, 1)] * 2
    assert (meter.tokens.usage, meter.tokens.reserved, meter.tokens.remaining) == (0, 80, 20)


def test_a_branch_is_shortened_only_if_no_reservation_is_open() -> None:
    meter = BudgetMeter(Budget(tokens=100))
    first = meter.reserve([Cost(90, 1), Cost(90, 1)])
    assert first == [Cost(90, 1)]
    meter.settle(first[0], Cost(30, 1))
    assert meter.reserve([Cost(90, 1), Cost(90, 1)]) == [Cost(70, 1)]


def test_what_is_kept_decides_whether_a_branch_is_granted_and_not_how_long_it_may_become() -> None:
    meter = BudgetMeter(Budget(tokens=100, nodes=3))
    assert meter.reserve([Cost(90, 1)], kept=Cost(81, 0), least_tokens=20) == []
    limit = meter.exhausted()
    assert limit is not None
    assert limit.kind is LimitKind.TOKENS
    assert meter.reserve([Cost(90, 1)], kept=Cost(80, 0), least_tokens=20) == [Cost(90, 1)]
    meter.settle(Cost(90, 1), Cost(70, 1))
    assert meter.reserve([Cost(90, 1)], kept=Cost(10, 0), least_tokens=20) == [Cost(30, 1)]
    meter.settle(Cost(30, 1), Cost(10, 1))
    assert meter.reserve([Cost(10, 1)], kept=Cost(0, 1)) == []
    limit = meter.exhausted()
    assert limit is not None
    assert limit.kind is LimitKind.NODES


def test_the_exhausted_limit_is_named() -> None:
    meter = BudgetMeter(Budget(tokens=5, nodes=1))
    assert meter.exhausted() is None
    (reservation,) = meter.reserve([Cost(5, 1)])
    meter.settle(reservation, Cost(2, 1))
    limit = meter.exhausted()
    assert limit is not None
    assert (limit.kind, limit.value, limit.limit) == (LimitKind.NODES, 1, 1)


def test_the_wall_clock_limit_ends_the_budget() -> None:
    now = 10.0
    meter = BudgetMeter(Budget(seconds=2.0), clock=lambda: now)
    now = 11.5
    assert (meter.seconds.usage, meter.seconds.remaining) == (1.5, 0.5)
    now = 13.0
    assert meter.exhausted() is not None


def test_without_limits_everything_is_granted() -> None:
    meter = BudgetMeter(Budget())
    assert len(meter.reserve([Cost(1000, 1)] * 1000)) == 1000
    assert meter.tokens.remaining == math.inf


def test_the_error_survives_a_process_boundary() -> None:
    error = pickle.loads(pickle.dumps(LimitReached(LimitKind.TOKENS, 7, 5)))
    assert (error.kind, error.value, error.limit) == (LimitKind.TOKENS, 7, 5)
    assert str(error) == "the limit of 5 tokens was reached at 7"


@pytest.mark.parametrize("given", [{"tokens": 0}, {"nodes": "5"}, {"seconds": math.nan}, {"seconds": 0}, {"cpu": 1}])
def test_invalid_budgets_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Budget.model_validate(given)


@given(
    tokens=st.integers(1, 500),
    nodes=st.integers(1, 50),
    rounds=st.lists(
        st.lists(st.tuples(st.integers(1, 100), st.integers(1, 5), st.floats(0, 1)), max_size=8), max_size=12
    ),
    keep=st.integers(0, 3),
)
def test_a_budget_is_never_exceeded(
    tokens: int, nodes: int, rounds: list[list[tuple[int, int, float]]], keep: int
) -> None:
    meter = BudgetMeter(Budget(tokens=tokens, nodes=nodes))
    in_flight: list[tuple[Cost, Cost]] = []
    for asks in rounds:
        reserved = meter.reserve([Cost(t, n) for t, n, _ in asks])
        used = [Cost(int(g.tokens * share), 1) for g, (_, _, share) in zip(reserved, asks, strict=False)]
        in_flight += zip(reserved, used, strict=True)
        assert meter.tokens.usage + meter.tokens.reserved <= tokens
        assert meter.nodes.usage + meter.nodes.reserved <= nodes
        while len(in_flight) > keep:
            meter.settle(*in_flight.pop(0))
        assert min(meter.tokens.reserved, meter.nodes.reserved, meter.tokens.remaining, meter.nodes.remaining) >= 0
