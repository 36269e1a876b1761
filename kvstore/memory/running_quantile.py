"""A quantile of the most recent values."""

from collections import deque
from typing import Generic, TypeVar

Value = TypeVar("Value", int, float)


class RunningQuantile(Generic[Value]):
    """A quantile of the last ``most`` values, recomputed with every ``every``-th value."""

    def __init__(self, quantile: float, most: int, every: int) -> None:
        self._quantile = quantile
        self._last: deque[Value] = deque(maxlen=most)
        self._every = every
        self._seen = 0
        self.value: Value | None = None
        """None until ``every`` values were seen."""

    def saw(self, value: Value) -> None:
        """Adds a value."""
        self._last.append(value)
        self._seen += 1
        if self._seen % self._every == 0:
            self.value = sorted(self._last)[int(self._quantile * (len(self._last) - 1))]
