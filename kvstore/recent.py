"""Sets that forget."""

import math
import time
from collections import deque
from collections.abc import Hashable, Iterable
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


class Recent(set[Name]):
    """The last ``most`` names that were added with ``update``. Nothing else may add to it."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._order: deque[Name] = deque()

    def update(self, *names: Iterable[Name]) -> None:
        for each in names:
            for name in each:
                if name not in self:
                    self.add(name)
                    self._order.append(name)
        while len(self._order) > self._most:
            self.discard(self._order.popleft())


class Lately:
    """What was noted within the last ``seconds``, of no more than ``most`` notes."""

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds = seconds
        self._most = most
        self._noted: dict[Hashable, float] = {}
        """Oldest first."""

    def note(self, what: Hashable) -> None:
        self._noted.pop(what, None)
        self._noted[what] = time.monotonic()
        while len(self._noted) > self._most:
            del self._noted[next(iter(self._noted))]

    def __contains__(self, what: Hashable) -> bool:
        return time.monotonic() - self._noted.get(what, -math.inf) <= self._seconds
