"""A set that forgets the oldest."""

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
