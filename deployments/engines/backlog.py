"""How long a call would wait that comes now: what presses on a reward model."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LATELY_S = 10.0
"""As often as Serve asks what presses: what was longer ago counts little (a factor of e for each of these)."""


class Backlog:
    """The calls that are open at one replica, and what they take.

    Nothing else tells when a reward model has too much to do: how many steps it reads in one pass before that takes
    longer with more of them depends on model, device and paths, and is fewer than its largest batch may be. How long
    calls took would not tell either: one that is alone takes as long on each of two replicas as on one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open = 0
        self._at = clock()
        self._calls = self._busy = self._ended = 0.0
        """Lately: how many were open on average, the share of the time with any, and how many ended a second."""

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around the work on one."""
        self._advance()
        self._open += 1
        try:
            yield
        finally:
            self._advance()
            self._open -= 1
            self._ended += 1 / LATELY_S

    @property
    def seconds(self) -> float:
        """The calls that were open, times what each took of the time in which there were any: the replicas of a pool
        have as much together as one of them would have alone. Where none end, each is taken for one of `LATELY_S`."""
        self._advance()
        return self._calls * self._busy / max(self._ended, 1 / LATELY_S)

    def _advance(self) -> None:
        now = self._clock()
        kept = math.exp((self._at - now) / LATELY_S)
        self._at = now
        self._calls = self._open + kept * (self._calls - self._open)
        self._busy = bool(self._open) + kept * (self._busy - bool(self._open))
        self._ended *= kept
