"""Who computes when: programs of one thread each, on cores of their own or on few that they share."""

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
        """Works off so many CPU seconds, then calls ``done``."""
        ...


class OwnCores:
    """As many cores as there are programs."""

    def run(self, seconds: float, done: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, done)


class ProcessorSharing:
    """Jobs that all go on at the same speed, which depends on how many there are."""

    def __init__(self, speed: Callable[[float], float]) -> None:
        """``speed``: work a second that each job gets done where the weights of all come to so much."""
        self._speed = speed
        self._jobs: list[tuple[float, int, float, Callable[[], None]]] = []
        """By how much work each that had been there from the start would have got done by then."""
        self._serial = count()
        self._served = 0.0
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.load = 0.0
        """The weights of all jobs."""

    def add(self, work: float, done: Callable[[], None], weight: float = 1.0) -> None:
        """Another job; ``done`` is called at its end."""
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
        # The first is done, whatever rounding says.
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
    """Few cores, shared equally by all programs that have something to do; each uses one core at most.

    What is left of a machine on which others work too need be no whole number.
    """

    def __init__(self, cores: float, pace: Pace = EQUAL) -> None:
        """``pace``: of the machine; others on it keep the rest of its cores busy."""
        if cores <= 0:
            raise ValueError(f"cores must be positive, got {cores}")
        others = max(0.0, pace.cores - cores)
        self._busy = ProcessorSharing(lambda programs: min(1.0, cores / programs) * pace.at(programs + others))

    def run(self, seconds: float, done: Callable[[], None]) -> None:
        self._busy.add(seconds, done)


class Program:
    """One thread: one thing after the other, first come first served. What was begun is finished, wanted or not."""

    def __init__(self, processor: Processor, wake_s: float = 0.0) -> None:
        """``wake_s``: CPU seconds that it takes more where it had nothing to do before. It was waiting in the kernel,
        and what it works with has left the caches."""
        self._processor = processor
        self._wake_s = wake_s
        self._rests_since = -math.inf
        self._queue: deque[tuple[float, Callable[[], None]]] = deque()
        self._busy = False
        self.cpu_s = 0.0
        """CPU seconds of all that it has done or begun."""

    def post(self, seconds: float, then: Callable[[], None] = lambda: None) -> None:
        """Has it do so much, and then that."""
        rested = not self._busy and asyncio.get_running_loop().time() > self._rests_since
        self._queue.append((seconds + self._wake_s * rested, then))
        if not self._busy:
            self._next()

    async def work(self, seconds: float) -> None:
        """Waits until it has done so much."""
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
            self._rests_since = asyncio.get_running_loop().time()

    def _done(self, then: Callable[[], None]) -> None:
        then()
        self._next()


def settle(done: asyncio.Future[None]) -> None:
    """Whoever waits for it goes on, if anybody still does."""
    if not done.done():
        done.set_result(None)
