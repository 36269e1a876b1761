"""How fast a program is while every core is busy, beside one that is alone: cores may be two threads of one, and share
caches and memory. A CPU second is worth less then, and how much less is counted here. And how fast a machine is now,
beside when something else was measured: one that is shared may change by a third within minutes."""

import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import psutil
from pydantic import BaseModel, ConfigDict, Field

REPEATS = 5
LOOK_S = 0.1
KEYS = 20_000


class Pace(BaseModel):
    """What a CPU second is worth by how many cores are busy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cores: int = Field(ge=1)
    together: float = Field(gt=0)
    """Of a CPU second where all cores are busy, over one where one core is."""

    speed: float = Field(1.0, gt=0)
    """What a program that is alone got done in a CPU second."""

    def now(self) -> float:
        """How fast a program is now that everybody else rests, over how fast it was then. Takes a tenth of a second."""
        return _work(LOOK_S) / self.speed

    def at(self, busy: float) -> float:
        """Of a CPU second while so many cores are busy."""
        return self._between(min(max(busy - 1.0, 0.0) / max(self.cores - 1, 1), 1.0))

    def on_average(self, busy: float) -> float:
        """Of CPU seconds while so many cores were busy on average: one at a time, or all."""
        all_busy = min(max(busy - 1.0, 0.0) / max(self.cores - 1, 1), 1.0)  # of the time
        return self._between(self.cores * all_busy / max(busy, 1.0))

    def _between(self, share: float) -> float:
        return 1.0 - (1.0 - self.together) * min(share, 1.0)


EQUAL = Pace(cores=1, together=1.0)
"""Cores that do not slow each other down."""


def measured(seconds: float) -> Pace:
    """Of this machine: the median of some measurements of so many seconds each. Work of others beside them, which is
    on one of the cores that are to be idle, makes it look better than it is."""
    cores = psutil.cpu_count() or 1
    ratios, speeds = [], []
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        list(pool.map(_work, [0.2] * cores))  # they have started
        for _ in range(REPEATS):
            speeds.append(pool.submit(_work, seconds).result())
            ratios.append(statistics.mean(pool.map(_work, [seconds] * cores)) / speeds[-1])
    return Pace(cores=cores, together=round(statistics.median(ratios), 3), speed=round(statistics.median(speeds)))


def _work(seconds: float) -> float:
    """What a program in Python gets done in a CPU second."""
    texts = {key: str(key) for key in range(KEYS)}
    done, began, until = 0, time.thread_time(), time.perf_counter() + seconds
    while time.perf_counter() < until:
        for step in range(2000):
            done += len(texts[(step * 7919) % KEYS])
    return done / (time.thread_time() - began)
