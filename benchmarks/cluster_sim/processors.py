"""Scheduling of CPU time: single-threaded programs, on cores of their own or on a few that they share."""

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Protocol

from benchmarks.cluster_sim.pace import EQUAL, Pace


class Processor(Protocol):
    """Where programs run."""

    def run(self, seconds: float, done: Callable[[], None]) -> None:
        """Runs for ``seconds`` CPU seconds, then calls ``done``."""
        ...


class OwnCores:
    """One core for each program."""

    def run(self, seconds: float, done: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, done)


class ProcessorSharing:
    """Jobs that progress at one common speed, which depends on their total weight."""

    def __init__(self, speed: Callable[[float], float]) -> None:
        """``speed``: work per second of each job, by the total weight of all jobs."""
        self._speed = speed
        self._jobs: list[tuple[float, int, float, Callable[[], None]]] = []
        """Heap of jobs, ordered by the value of ``_served`` at which they end."""
        self._serial = count()
        self._served = 0.0
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.load = 0.0
        """Total weight of all jobs."""

    def add(self, work: float, done: Callable[[], None], weight: float = 1.0) -> None:
        """Adds a job; ``done`` is called at its end."""
        self._advance()
        heapq.heappush(self._jobs, (self._served + work, next(self._serial), weight, done))
        self.load += weight
        self._wait()

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._jobs:
            self._served += (now - self._since) * self._speed(self.load)
        self._since = now

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._jobs:
            left = max(0.0, self._jobs[0][0] - self._served) / self._speed(self.load)
            self._timer = asyncio.get_running_loop().call_later(left, self._next)

    def _next(self) -> None:
        self._advance()
        # The first job is done, despite rounding.
        self._served = max(self._served, self._jobs[0][0])
        ended = []
        while self._jobs and self._jobs[0][0] <= self._served:
            _, _, weight, done = heapq.heappop(self._jobs)
            self.load = self.load - weight if self._jobs else 0.0
            ended.append(done)
        self._wait()
        for done in ended:
            done()


class SharedCores:
    """A few cores, shared equally by all programs that have work; each program uses one core at most.

    The number of cores may be a fraction: other programs on the machine take the rest.
    """

    def __init__(self, cores: float, pace: Pace = EQUAL) -> None:
        """``pace``: of the machine; other programs keep the rest of its cores busy."""
        if cores <= 0:
            raise ValueError(f"cores must be positive, got {cores}")
        others = max(0.0, pace.cores - cores)
        self._busy = ProcessorSharing(lambda programs: min(1.0, cores / programs) * pace.at(programs + others))

    def run(self, seconds: float, done: Callable[[], None]) -> None:
        self._busy.add(seconds, done)


class Program:
    """One thread that works first come, first served. Work that has begun is finished even if nobody waits for it."""

    def __init__(self, processor: Processor, wake_s: float = 0.0) -> None:
        """``wake_s``: extra CPU seconds for work that finds the program idle: it was waiting in the kernel, and its
        data have left the caches."""
        self._processor = processor
        self._wake_s = wake_s
        self._idle_since = -math.inf
        self._queue: deque[tuple[float, Callable[[], None]]] = deque()
        self._busy = False
        self.cpu_s = 0.0
        """CPU seconds of all work that is done or has begun."""

    def post(self, seconds: float, then: Callable[[], None] = lambda: None) -> None:
        """Queues ``seconds`` of work, and calls ``then`` at its end."""
        was_idle = not self._busy and asyncio.get_running_loop().time() > self._idle_since
        self._queue.append((seconds + self._wake_s * was_idle, then))
        if not self._busy:
            self._next()

    async def work(self, seconds: float) -> None:
        """Queues ``seconds`` of work and waits for its end."""
        done = asyncio.get_running_loop().create_future()
        self.post(seconds, partial(settle, done))
        await done

    def _next(self) -> None:
        self._busy = bool(self._queue)
        if self._busy:
            seconds, then = self._queue.popleft()
            self.cpu_s += seconds
            self._processor.run(seconds, partial(self._done, then))
        else:
            self._idle_since = asyncio.get_running_loop().time()

    def _done(self, then: Callable[[], None]) -> None:
        then()
        self._next()


def settle(done: asyncio.Future[None]) -> None:
    """Completes a future, unless its waiter has gone."""
    if not done.done():
        done.set_result(None)
