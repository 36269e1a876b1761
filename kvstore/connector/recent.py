"""A set of bounded size that drops its oldest names."""

from collections import deque
from collections.abc import Hashable, Iterable
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


class BoundedSet(set[Name]):
    """Set of the last ``most`` names. Names may be added with ``update`` only."""

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
