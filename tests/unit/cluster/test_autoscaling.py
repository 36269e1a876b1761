"""Pools grow by what presses, shrink only with room to spare, and do not swing."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.autoscaling import FULL, PRESSURE, by_pressure, replicas_for


@pytest.mark.parametrize(
    ("pressures", "now", "wanted"),
    [
        ([0.0], 1, 1),
        ([0.8], 1, 1),
        ([0.9], 1, 2),
        ([4.0], 1, 5),
        ([0.4, 0.4], 2, 2),  # one alone would be full
        ([0.2, 0.2], 2, 1),
        ([0.3], 2, 2),  # the other one says nothing yet
        ([0.1, 0.1, 0.1], 3, 1),
        ([], 1, 1),
    ],
)
def test_how_many_there_should_be(pressures: list[float], now: int, wanted: int) -> None:
    told = {PRESSURE: {f"replica {number}": value for number, value in enumerate(pressures)}}
    pool = SimpleNamespace(current_num_replicas=len(pressures), target_num_replicas=now, aggregated_metrics=told)

    assert by_pressure(pool) == (wanted, {})


def test_a_pool_that_tells_nothing_stays_as_it_is() -> None:
    for metrics in (None, {}, {"other": {"replica": 9.0}}):
        pool = SimpleNamespace(current_num_replicas=3, target_num_replicas=3, aggregated_metrics=metrics)
        assert by_pressure(pool)[0] == 3


@given(pressure=st.floats(0, 200), now=st.integers(1, 200))
def test_where_nothing_changes_one_step_is_enough(pressure: float, now: int) -> None:
    """A pool that has been changed is left alone while the same work is wanted."""
    then = replicas_for(pressure, now, now)

    assert replicas_for(pressure, then, then) == then
    assert then >= 1
    assert pressure / then <= max(FULL, pressure / now) or math.isclose(pressure / then, FULL)
