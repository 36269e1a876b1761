"""How long a new call would wait at a reward model: the pressure by which its pool autoscales."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

AVERAGED_OVER_S = 10.0
"""Time constant of the moving averages: about the interval at which Serve asks for the pressure."""


class Backlog:
    """Moving averages over the calls of one replica: how many are open, and how long each takes.

    Nothing simpler shows that a reward model is overloaded. The batch size above which a forward pass takes longer
    depends on model, device and paths, and is smaller than the largest batch. The latency of calls does not show it
    either: a call that is alone takes as long on each of two replicas as on one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open = 0
        self._at = clock()
        self._calls = self._busy = self._ended = 0.0
        """Moving averages: number of open calls, share of the time with an open call, calls ended per second."""

    @contextmanager
    def call(self) -> Iterator[None]:
        """Context in which a call counts as open."""
        self._advance()
        self._open += 1
        try:
            yield
        finally:
            self._advance()
            self._open -= 1
            self._ended += 1 / AVERAGED_OVER_S

    @property
    def seconds(self) -> float:
        """Expected wait of a new call: the number of open calls times the busy time per ended call.

        Summed over the replicas of a pool, it is what one replica would have alone. Where no call ends, each counts as
        one of `AVERAGED_OVER_S`.
        """
        self._advance()
        return self._calls * self._busy / max(self._ended, 1 / AVERAGED_OVER_S)

    def _advance(self) -> None:
        now = self._clock()
        decay = math.exp((self._at - now) / AVERAGED_OVER_S)
        self._at = now
        self._calls = self._open + decay * (self._calls - self._open)
        self._busy = bool(self._open) + decay * (self._busy - bool(self._open))
        self._ended *= decay
