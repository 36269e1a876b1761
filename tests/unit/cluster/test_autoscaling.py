"""Pools grow by pressure, shrink only to what was enough all along, and do not oscillate."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.scaling.pressure import ENOUGH, FULL, PRESSURE, by_pressure, replicas_for


@pytest.mark.parametrize(
    ("pressures", "now", "wanted"),
    [
        ([0.0], 1, 1),
        ([0.8], 1, 1),
        ([0.9], 1, 2),
        ([4.0], 1, 5),
        ([0.4, 0.4], 2, 2),  # one alone would be full
        ([0.2, 0.2], 2, 1),
        ([0.3], 2, 2),  # the other replica has not reported yet
        ([0.1, 0.1, 0.1], 3, 1),
        ([], 1, 1),
    ],
)
def test_the_policy_sets_the_number_of_replicas_by_pressure(pressures: list[float], now: int, wanted: int) -> None:
    reports = {PRESSURE: {f"replica {number}": value for number, value in enumerate(pressures)}}
    pool = SimpleNamespace(target_num_replicas=now, aggregated_metrics=reports, policy_state=None)

    assert by_pressure(pool) == (wanted, {ENOUGH: (now, wanted)} if wanted < now else {})


def test_a_pool_without_reports_keeps_its_size() -> None:
    for metrics in (None, {}, {"other": {"replica": 9.0}}):
        pool = SimpleNamespace(target_num_replicas=3, aggregated_metrics=metrics, policy_state={})
        assert by_pressure(pool)[0] == 3


class Pool:
    """The state that Serve keeps of a pool from one decision to the next."""

    def __init__(self, replicas: int) -> None:
        self.target_num_replicas = replicas
        self.aggregated_metrics: dict[str, dict[Any, float]] = {}
        self.policy_state: dict[str, Any] | None = None

    def decide(self, pressure: float) -> int:
        self.aggregated_metrics = {PRESSURE: dict.fromkeys(range(self.target_num_replicas), 0.0)}
        self.aggregated_metrics[PRESSURE][0] = pressure
        wanted, self.policy_state = by_pressure(self)
        return wanted


def test_a_pool_shrinks_to_the_largest_size_needed_while_it_was_too_large() -> None:
    pool = Pool(13)
    assert [pool.decide(pressure) for pressure in (3.0, 5.0, 1.0)] == [6, 10, 10]
    pool.target_num_replicas = 10
    assert pool.decide(1.0) == 2, "what was enough for 13 is forgotten"
    assert pool.decide(9.0) == 12
    assert pool.decide(1.0) == 2, "so is what was before it had too few"


@given(st.lists(st.floats(0, 200), min_size=1), st.integers(1, 200))
def test_a_pool_never_shrinks_below_what_it_needs_now(pressures: list[float], replicas: int) -> None:
    pool = Pool(replicas)
    for pressure in pressures:
        now = replicas_for(pressure, replicas, replicas)
        assert now <= pool.decide(pressure) <= max(now, replicas)


@given(pressure=st.floats(0, 200), now=st.integers(1, 200))
def test_a_resized_pool_is_stable_under_the_same_work(pressure: float, now: int) -> None:
    then = replicas_for(pressure, now, now)

    assert replicas_for(pressure, then, then) == then
    assert then >= 1
    assert pressure / then <= max(FULL, pressure / now) or math.isclose(pressure / then, FULL)
