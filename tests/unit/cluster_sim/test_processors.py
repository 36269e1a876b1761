"""Programs on few cores: each gets its share of CPU time, and no CPU time is lost or invented."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cluster_sim.processors import OwnCores, Processor, Program, SharedCores
from benchmarks.cluster_sim.virtual_time import run


async def ended(programs: list[Program], works: list[list[float]]) -> list[list[float]]:
    """The time at which each piece of work of each program is done."""
    loop = asyncio.get_running_loop()

    async def one(program: Program, seconds: float) -> float:
        await program.work(seconds)
        return loop.time()

    tasks = [
        [asyncio.create_task(one(program, seconds)) for seconds in of]
        for program, of in zip(programs, works, strict=True)
    ]
    return [[await task for task in of] for of in tasks]


def times(processor: Processor, *works: list[float]) -> list[list[float]]:
    async def main() -> list[list[float]]:
        return await ended([Program(processor) for _ in works], list(works))

    return run(main())


def test_a_program_does_its_work_in_order() -> None:
    assert times(OwnCores(), [1, 2, 3], [5]) == [[1, 3, 6], [5]]


@pytest.mark.parametrize(
    ("works", "expected"),
    [
        (([1.0], [1.0]), [[1], [1]]),
        (([1.0], [1.0], [1.0], [1.0]), [[2], [2], [2], [2]]),
        (([1.0], [1.0], [2.0]), [[1.5], [1.5], [2.5]]),  # three share two cores, then the last has one for itself
        (([2.0, 1.0], [2.0]), [[2, 3], [2]]),
    ],
)
def test_two_cores_are_shared_equally(works: tuple[list[float], ...], expected: list[list[float]]) -> None:
    assert times(SharedCores(2), *works) == [pytest.approx(of) for of in expected]


@given(
    works=st.lists(st.lists(st.floats(0.001, 5), min_size=1, max_size=4), min_size=1, max_size=6),
    cores=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_shared_cores_are_neither_idle_nor_overbooked(works: list[list[float]], cores: int) -> None:
    done = times(SharedCores(cores), *works)
    last = max(max(of) for of in done)
    total = sum(map(sum, works))
    assert last >= max(total / cores, *map(sum, works)) - 1e-6
    # While there is work, at least one core is busy.
    assert last <= total + 1e-6
    assert all(of == sorted(of) for of in done)


def test_begun_work_is_finished_after_its_waiter_is_cancelled() -> None:
    async def main() -> tuple[float, float]:
        program = Program(OwnCores())
        unwanted = asyncio.create_task(program.work(2))
        await asyncio.sleep(1)
        unwanted.cancel()
        await program.work(1)
        return asyncio.get_running_loop().time(), program.cpu_s

    assert run(main()) == (3.0, 3.0)


def test_work_that_finds_the_program_idle_pays_the_wake_up() -> None:
    """The first two pieces follow each other without a pause, the third comes a second later."""

    async def main() -> tuple[list[float], float]:
        loop, program, ends = asyncio.get_running_loop(), Program(OwnCores(), wake_s=0.5), []
        for rest in (0.0, 0.0, 1.0):
            await asyncio.sleep(rest)
            await program.work(1.0)
            ends.append(loop.time())
        return ends, program.cpu_s

    assert run(main()) == ([1.5, 2.5, 5.0], 4.0)


def test_zero_cores_are_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        SharedCores(0)
