"""The value of a CPU second on cores that slow each other down."""

import asyncio

import pytest

from benchmarks.cluster_sim.__main__ import calibrated
from benchmarks.cluster_sim.pace import EQUAL, Pace, measured
from benchmarks.cluster_sim.processors import Program, SharedCores
from benchmarks.cluster_sim.virtual_time import run

HALF = Pace(cores=2, together=0.5)


def test_a_cpu_second_is_worth_less_the_more_cores_are_busy() -> None:
    assert [HALF.at(busy) for busy in (0, 1, 1.5, 2, 3)] == [1.0, 1.0, 0.75, 0.5, 0.5]
    assert [EQUAL.at(busy) for busy in (0, 1, 5)] == [1.0, 1.0, 1.0]


def test_the_average_value_depends_on_the_time_with_all_cores_busy() -> None:
    assert HALF.on_average(0.3) == HALF.on_average(1.0) == 1.0
    assert HALF.on_average(2.0) == 0.5
    # Half of the time one core is busy, half of the time both: of three CPU seconds, two are worth half.
    assert HALF.on_average(1.5) == pytest.approx((1 + 2 * 0.5) / 3)


@pytest.mark.parametrize(("cores", "programs", "seconds"), [(2, 1, 1.0), (2, 2, 2.0), (2, 4, 4.0), (1, 1, 2.0)])
def test_programs_that_share_the_cores_take_longer(cores: int, programs: int, seconds: float) -> None:
    """A second of work each; on one core left of two, other programs keep the second one busy."""

    async def run_all() -> float:
        shared = SharedCores(cores, HALF)
        await asyncio.gather(*(Program(shared).work(1.0) for _ in range(programs)))
        return asyncio.get_running_loop().time()

    assert run(run_all()) == pytest.approx(seconds)


def test_the_pace_of_this_machine_can_be_measured() -> None:
    pace = measured(0.05)
    assert pace.cores >= 1
    assert pace.together > 0.1
    assert 0.2 < pace.now() < 5.0


def test_a_faster_machine_scales_all_costs_but_the_background() -> None:
    _, costs, _ = calibrated()
    faster = costs.at(2.0)
    assert faster.calls.controller["search"] == costs.calls.controller["search"] / 2
    assert faster.calls.background == costs.calls.background
    for role in ("generator", "prm"):
        before, after = getattr(costs, role), getattr(faster, role)
        assert after.engine.step(8) == pytest.approx(before.engine.step(8) / 2)
        assert after.replica.request_s == pytest.approx(before.replica.request_s / 2)


def test_the_simulation_can_be_calibrated_with_the_kept_results() -> None:
    results, costs, language = calibrated("served_points")
    assert set(results) == {"batch_curves", "controller_calls", "served_points"}
    assert costs.generator.engine.step(8) > 0
    assert costs.calls.controller["search"] > 0
    assert language.prompt("1")
