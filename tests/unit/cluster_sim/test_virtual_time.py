"""An event loop with a virtual clock: order of events, timeouts, cancellation, and deadlocks."""

import asyncio
import time

import pytest

from benchmarks.cluster_sim.virtual_time import Deadlock, run


def test_a_virtual_day_takes_no_real_time() -> None:
    async def day() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    began = time.perf_counter()
    assert run(day()) == 86_400
    assert time.perf_counter() - began < 60


def test_timers_fire_by_time_and_then_in_the_order_they_were_set() -> None:
    async def fired() -> list[tuple[float, int]]:
        loop = asyncio.get_running_loop()
        seen: list[tuple[float, int]] = []
        for number, delay in enumerate([3.0, 1.0, 2.0, 1.0, *[1.0] * 20, 0.0]):
            loop.call_later(delay, lambda number=number: seen.append((loop.time(), number)))  # type: ignore[misc]
        await asyncio.sleep(4)
        return seen

    seen = run(fired())
    assert seen == [(0.0, 24), *((1.0, number) for number in (1, *range(3, 24))), (2.0, 2), (3.0, 0)]


def test_timeouts_use_the_virtual_clock() -> None:
    async def main() -> tuple[float, bool]:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        async with asyncio.timeout(5):
            await asyncio.sleep(4.999)
        return loop.time(), time.monotonic() == loop.time()

    assert run(main()) == (pytest.approx(9.999), True)
    assert time.monotonic() != 9.999


def test_a_cancelled_waiter_leaves_the_queue_of_a_lock() -> None:
    async def main() -> tuple[float, bool]:
        lock = asyncio.Lock()

        async def hold(seconds: float) -> float:
            async with lock:
                await asyncio.sleep(seconds)
            return asyncio.get_running_loop().time()

        first, second, third = (asyncio.create_task(hold(seconds)) for seconds in (2, 100, 3))
        await asyncio.sleep(1)
        second.cancel()
        ended = await third
        assert second.cancelled()
        assert await first == 2
        return ended, lock.locked()

    assert run(main()) == (5.0, False)


def test_a_wait_that_nothing_can_end_raises_deadlock() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="all tasks wait"):
        run(main())


def test_work_for_threads_runs_at_once() -> None:
    async def main() -> tuple[int, float]:
        return await asyncio.to_thread(sum, [1, 2]), asyncio.get_running_loop().time()

    assert run(main()) == (3, 0.0)

    def fails() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        run(asyncio.to_thread(fails))
