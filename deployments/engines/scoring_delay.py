"""How long steps wait for their rewards: what presses on a reward model."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LATELY_S = 10.0
"""As often as Serve asks what presses."""


class ScoringDelay:
    """The delay of the calls of one replica.

    Nothing else tells when a reward model has too much to do: how many steps it reads in one pass before that takes
    longer with more of them depends on model, device and paths, and is fewer than its largest batch may be.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ended: deque[tuple[float, float]] = deque()
        """When a call had its rewards, and how long it had waited."""
        self._open: dict[int, float] = {}
        """When calls came that have none yet."""
        self._numbers = 0

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around the work on one."""
        self._numbers += 1
        number = self._numbers
        self._open[number] = began = self._clock()
        try:
            yield
        finally:
            del self._open[number]
            self._ended.append((self._clock(), self._clock() - began))
            self._forget()

    @property
    def seconds(self) -> float:
        """The mean of the calls that ended lately, or that of those that wait now, if they have waited longer; 0 where
        there are none."""
        self._forget()
        ended = [took for _, took in self._ended]
        waited = [self._clock() - began for began in self._open.values()]
        return max((sum(each) / len(each) for each in (ended, waited) if each), default=0.0)

    def _forget(self) -> None:
        since = self._clock() - LATELY_S
        while self._ended and self._ended[0][0] < since:
            self._ended.popleft()
