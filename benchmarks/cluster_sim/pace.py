"""How fast a program is while every core is busy, beside one that is alone: cores may be two threads of one, and share
caches and memory. A CPU second is worth less then, and how much less is counted here."""

import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import psutil
from pydantic import BaseModel, ConfigDict, Field

REPEATS = 5
KEYS = 20_000


class Pace(BaseModel):
    """What a CPU second is worth by how many cores are busy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cores: int = Field(ge=1)
    together: float = Field(gt=0)
    """Of a CPU second where all cores are busy, over one where one core is."""

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
    ratios = []
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        list(pool.map(_work, [0.2] * cores))  # they have started
        for _ in range(REPEATS):
            alone = pool.submit(_work, seconds).result()
            ratios.append(statistics.mean(pool.map(_work, [seconds] * cores)) / alone)
    return Pace(cores=cores, together=round(statistics.median(ratios), 3))


def _work(seconds: float) -> float:
    """What a program in Python gets done in a CPU second."""
    texts = {key: str(key) for key in range(KEYS)}
    done, began, until = 0, time.thread_time(), time.perf_counter() + seconds
    while time.perf_counter() < until:
        for step in range(2000):
            done += len(texts[(step * 7919) % KEYS])
    return done / (time.thread_time() - began)
