"""The value of a CPU second, which is less while all cores are busy, and less while the machine is slow.

Cores may be two threads of one, and they share caches and memory: a program is slower while the others are busy. A
shared machine may also change its speed by a third within minutes.
"""

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
    """Value of a CPU second, by how many cores are busy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cores: int = Field(ge=1)
    together: float = Field(gt=0)
    """Work done in a CPU second while all cores are busy, relative to while one is."""

    speed: float = Field(1.0, gt=0)
    """Work that a lone program does in a CPU second."""

    def now(self) -> float:
        """Speed of a lone program now, relative to ``speed``. Takes a tenth of a second; the benchmark must be idle."""
        return _work(LOOK_S) / self.speed

    def at(self, busy: float) -> float:
        """Value of a CPU second while ``busy`` cores are busy."""
        return self._between(min(max(busy - 1.0, 0.0) / max(self.cores - 1, 1), 1.0))

    def on_average(self, busy: float) -> float:
        """Value of CPU seconds while ``busy`` cores were busy on average: at any time one core, or all."""
        all_busy = min(max(busy - 1.0, 0.0) / max(self.cores - 1, 1), 1.0)  # share of the time
        return self._between(self.cores * all_busy / max(busy, 1.0))

    def _between(self, share: float) -> float:
        return 1.0 - (1.0 - self.together) * min(share, 1.0)


EQUAL = Pace(cores=1, together=1.0)
"""Pace of cores that do not slow each other down."""


def measured(seconds: float) -> Pace:
    """Pace of this machine: medians of several measurements of ``seconds`` each. Other programs on the cores that
    should be idle make ``together`` look better than it is."""
    cores = psutil.cpu_count() or 1
    ratios, speeds = [], []
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        list(pool.map(_work, [0.2] * cores))  # waits until they have started
        for _ in range(REPEATS):
            speeds.append(pool.submit(_work, seconds).result())
            ratios.append(statistics.mean(pool.map(_work, [seconds] * cores)) / speeds[-1])
    return Pace(cores=cores, together=round(statistics.median(ratios), 3), speed=round(statistics.median(speeds)))


def _work(seconds: float) -> float:
    """Work that a Python program does in a CPU second, in arbitrary units."""
    texts = {key: str(key) for key in range(KEYS)}
    done, began, until = 0, time.thread_time(), time.perf_counter() + seconds
    while time.perf_counter() < until:
        for step in range(2000):
            done += len(texts[(step * 7919) % KEYS])
    return done / (time.thread_time() - began)
