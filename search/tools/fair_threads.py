"""Threads for work that would block an event loop, shared fairly among the owners of the work."""

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Long work in short steps, between which other work may run."""
TURN_S = 0.1
"""Shortest turn of work in steps, seconds."""


class ThreadsFull(RuntimeError):
    """Too much work is in progress, of this owner or of all. The same job may be submitted again later."""

    def __init__(self, own: int) -> None:
        """``own``: the size of the owner's jobs in progress."""
        super().__init__(own)
        self.own = own


@dataclass(eq=False)
class _Job:
    owner: str
    size: int
    work: Callable[[], Any]
    result: Future[Any] = field(default_factory=Future)


class FairThreads:
    """A fixed number of threads, and a queue for each owner of work. May be used from any event loop or thread.

    Owners take turns, one job at a time: a job at the head of its owner's queue waits for at most one job of each other
    owner. One owner alone gets half of the threads, the next one half of the rest, and so on, but each at least one: so
    the first job of an owner finds a free thread unless there are as many owners as threads. The size of all jobs in
    progress is limited, and divided by the same rule. A job that is cancelled while it waits never starts.
    """

    def __init__(self, threads: int, max_size: int, name: str) -> None:
        """
        Args:
            threads: number of threads.
            max_size: total size of the jobs that run or wait, in a unit of the caller's: bytes, or the number of jobs.
                A job alone may be larger, and one of size 0 is always taken.
            name: prefix of the threads' names.
        """
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._threads = threads
        self._max_size = max_size
        self._lock = Lock()
        self._waiting: dict[str, deque[_Job]] = {}
        """Jobs that wait, by owner; the owner whose turn is next comes first."""
        self._running: Counter[str] = Counter()
        """Threads that each owner occupies."""
        self._sizes: Counter[str] = Counter()
        """Sizes of jobs in progress, by owner."""

    @property
    def owners(self) -> int:
        """Number of owners with jobs in progress."""
        return len(self._sizes)

    async def run(self, owner: str, work: Callable[[], T], size: int = 1) -> T:
        """Returns ``work()``, which runs in a thread. If the caller is cancelled, work that waits never starts; work
        that runs goes on, and occupies its thread until it ends.

        Raises:
            ThreadsFull: too much work is in progress. Also all errors of ``work``.
        """
        return await asyncio.wrap_future(self.submit(owner, work, size))

    async def run_steps(self, owner: str, steps: Steps[T]) -> T:
        """Returns the result of work in steps, which takes turns of `TURN_S` with the work of other owners.

        Raises:
            ThreadsFull: as `run`. Also all errors of ``steps``.
        """
        while (done := await self.run(owner, partial(_advance, steps, TURN_S))) is None:
            pass
        return done.result

    def submit(self, owner: str, work: Callable[[], T], size: int = 1) -> Future[T]:
        """Queues ``work``.

        Raises:
            ThreadsFull: too much work is in progress.
        """
        job = _Job(owner, size, work)
        with self._lock:
            own, total = self._sizes[owner], self._sizes.total()
            if size and total and own + size > self._max_size - total:
                raise ThreadsFull(own)
            self._sizes[owner] += size
            self._waiting.setdefault(owner, deque()).append(job)
        job.result.add_done_callback(lambda _: self._withdraw(job))
        self._pool.submit(self._work)
        return job.result

    def _work(self) -> None:
        """Runs jobs until none may start."""
        while (job := self._next()) is not None:
            result, error = None, None
            if begun := job.result.set_running_or_notify_cancel():
                try:
                    result = job.work()
                except BaseException as raised:
                    # A future of asyncio that gets a StopIteration never ends.
                    error = RuntimeError("the work raised StopIteration") if type(raised) is StopIteration else raised
            with self._lock:
                _subtract(self._running, job.owner, 1)
                _subtract(self._sizes, job.owner, job.size)
            if begun and error is not None:
                job.result.set_exception(error)
            elif begun:
                job.result.set_result(result)
            # An idle thread keeps neither a result nor a traceback alive.
            del job, result, error

    def _next(self) -> _Job | None:
        """Takes the next job from the queues. If yet another one may start, wakes a thread for it."""
        with self._lock:
            if (owner := self._next_owner()) is None:
                return None
            jobs = self._waiting.pop(owner)
            job = jobs.popleft()
            if jobs:
                self._waiting[owner] = jobs  # at the end: the others' turns come first
            self._running[owner] += 1
            if self._next_owner() is not None:
                self._pool.submit(self._work)
            return job

    def _next_owner(self) -> str | None:
        free = self._threads - self._running.total()
        return next((owner for owner in self._waiting if self._running[owner] < free), None)

    def _withdraw(self, job: _Job) -> None:
        """Removes a job that was cancelled while it waited. Called at the end of every job."""
        if not job.result.cancelled():
            return
        with self._lock:
            jobs = self._waiting.get(job.owner)
            if jobs is None or job not in jobs:
                return
            jobs.remove(job)
            if not jobs:
                del self._waiting[job.owner]
            _subtract(self._sizes, job.owner, job.size)


@dataclass(frozen=True)
class _Done(Generic[T]):
    result: T


def result_of(steps: Steps[T]) -> T:
    """Runs all steps at once, in this thread."""
    done = _advance(steps, math.inf)
    assert done is not None
    return done.result


def _advance(steps: Steps[T], seconds: float) -> _Done[T] | None:
    """Makes steps for some time, one at least. Returns the result if that was the end."""
    until = time.monotonic() + seconds
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return _Done(end.value)
        if time.monotonic() >= until:
            return None


def _subtract(counts: Counter[str], owner: str, count: int) -> None:
    counts[owner] -= count
    if not counts[owner]:
        del counts[owner]
