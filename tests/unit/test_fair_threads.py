"""Owners of work in threads take turns, and nobody's work takes all threads or all memory."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.tools import fair_threads
from search.tools.fair_threads import FairThreads, Steps, ThreadsFull, result_of

WAIT_S = 20
owners = st.sampled_from("abcd")


@contextmanager
def blocked(threads: FairThreads, count: int) -> Iterator[None]:
    """All threads are occupied until the end of the block."""
    gate, busy = threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        busy.release()
        gate.wait(WAIT_S)

    blocking = [threads.submit(f"blocks {index}", wait, size=0) for index in range(count)]
    for _ in blocking:
        assert busy.acquire(timeout=WAIT_S)
    yield
    gate.set()
    for each in blocking:
        each.result(WAIT_S)


@given(submitted=st.lists(owners, max_size=40), cancelled=st.sets(st.integers(0, 39)))
def test_a_job_waits_for_at_most_one_of_each_other_owner_a_turn(submitted: list[str], cancelled: set[int]) -> None:
    threads, started = FairThreads(1, 1000, "test"), list[int]()
    with blocked(threads, 1):
        jobs = [
            threads.submit(owner, lambda index=index: started.append(index)) for index, owner in enumerate(submitted)
        ]
        left = [index for index, job in enumerate(jobs) if not (index in cancelled and job.cancel())]
    for index in left:
        jobs[index].result(WAIT_S)
    assert sorted(started) == left, "cancelled work never starts, and all other work does"
    turns = Counter[str]()
    for index in started:
        owner = submitted[index]
        waiting = {submitted[each] for each in left if each not in started[: started.index(index)]}
        assert all(turns[owner] <= turns[other] for other in waiting), "an owner with work left is never a turn behind"
        turns[owner] += 1
    assert [index for index in started if submitted[index] == "a"] == [
        index for index in left if submitted[index] == "a"
    ]


@settings(deadline=None)
@given(
    jobs=st.lists(st.tuples(owners, st.integers(0, 9), st.sampled_from(["result", "error", "cancelled"])), max_size=60),
    threads=st.integers(1, 4),
    max_size=st.integers(1, 60),
)
def test_every_job_ends_and_the_limits_hold(jobs: list[tuple[str, int, str]], threads: int, max_size: int) -> None:
    pool, lock = FairThreads(threads, max_size, "test"), threading.Lock()
    running, in_progress, most_running = Counter[str](), Counter[str](), Counter[str]()

    def work(owner: str, fails: bool) -> Callable[[], str]:
        def run() -> str:
            with lock:
                running[owner] += 1
                most_running[owner] = max(most_running[owner], running[owner])
                assert running.total() <= threads
            with lock:
                running[owner] -= 1
            if fails:
                raise LookupError(owner)
            return owner

        return run

    taken: list[tuple[str, str, Future[str]]] = []
    with blocked(pool, threads):
        for owner, size, end in jobs:
            own, total = in_progress[owner], in_progress.total()
            if size and total and own + size > max_size - total:
                with pytest.raises(ThreadsFull):
                    pool.submit(owner, work(owner, False), size)
                continue
            job = pool.submit(owner, work(owner, end == "error"), size)
            if end == "cancelled":
                assert job.cancel()
            else:
                in_progress[owner] += size
            assert in_progress.total() <= max(max_size, *(size for _, size, _ in jobs)), "but for a job alone"
            taken.append((owner, end, job))
    for owner, end, job in taken:
        if end == "cancelled":
            assert job.cancelled()
        elif end == "error":
            assert isinstance(job.exception(WAIT_S), LookupError)
        else:
            assert job.result(WAIT_S) == owner
    for owner, most in most_running.items():
        assert most <= max(1, (threads + 1) // 2), owner
    assert pool.owners == 0


def test_one_owner_leaves_a_thread_for_the_next() -> None:
    threads, gate, begun = FairThreads(4, 100, "test"), threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        begun.release()
        gate.wait(WAIT_S)

    jobs = [threads.submit("a", wait) for _ in range(10)]
    assert begun.acquire(timeout=WAIT_S)
    assert begun.acquire(timeout=WAIT_S)
    jobs += [threads.submit("b", wait) for _ in range(10)]
    assert begun.acquire(timeout=WAIT_S)
    assert threads.submit("c", lambda: 1).result(WAIT_S) == 1
    assert not begun.acquire(blocking=False), "a has two of the four threads, and b one of the other two"
    gate.set()
    for each in jobs:
        each.result(WAIT_S)


@pytest.mark.parametrize("error", [LookupError, StopIteration, StopAsyncIteration, asyncio.CancelledError, SystemExit])
async def test_work_that_fails_ends_for_its_caller(error: type[BaseException]) -> None:
    threads = FairThreads(1, 10, "test")

    def fails() -> None:
        raise error

    async with asyncio.timeout(WAIT_S):
        with pytest.raises(RuntimeError if error is StopIteration else error):
            await threads.run("a", fails)
        assert await threads.run("a", lambda: "next") == "next"
    assert threads.owners == 0


async def test_work_whose_caller_has_left_never_starts() -> None:
    threads, started = FairThreads(2, 10, "test"), list[str]()
    with blocked(threads, 2):
        leaving = asyncio.create_task(threads.run("a", lambda: started.append("left"), 9))
        await asyncio.sleep(0)
        with pytest.raises(ThreadsFull):
            threads.submit("b", lambda: None, 2)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        staying = asyncio.create_task(threads.run("b", lambda: started.append("stayed"), 9))
        await asyncio.sleep(0)
    await staying
    assert started == ["stayed"]
    assert threads.owners == 0


def counting(name: str, steps: int, made: list[str]) -> Steps[int]:
    for _ in range(steps):
        made.append(name)
        yield
    if not steps:
        raise LookupError(name)
    return steps


async def test_long_work_takes_turns_with_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_threads, "TURN_S", 0.0)  # so a turn is one step
    threads, made = FairThreads(1, 10, "test"), list[str]()
    with blocked(threads, 1):
        long = asyncio.create_task(threads.run_steps("a", counting("long", 50, made)))
        short = asyncio.create_task(threads.run_steps("b", counting("short", 3, made)))
        await asyncio.sleep(0)
    assert await asyncio.gather(long, short) == [50, 3]
    assert made[:6] == ["long", "short"] * 3
    with pytest.raises(LookupError, match="bad"):
        await threads.run_steps("a", counting("bad", 0, made))
    leaving = asyncio.create_task(threads.run_steps("a", counting("left", 1_000_000, made)))
    while made[-1] != "left":
        await asyncio.sleep(0.001)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert made.count("left") < 1_000_000
    assert result_of(counting("whole", 3, made)) == 3
