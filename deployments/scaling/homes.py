"""Where searches are at home: which replica has worked on their paths, and when that is no longer worth it.

A replica knows the paths that it has worked on. So all calls of a search go where the first one went, which is to the
least busy replica, until that one is far busier than the others; the least busy one then is its home for the rest.
"""

import math
import random
from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from itertools import islice
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)

BALANCE = 2.0
"""A replica takes so many times its share of the calls at work before searches leave it, and at most halfway between
its share and all of them: of two, 1.5 times. With less, they move about and their paths are read again; with two times,
one of two would never have too many (docs/scaling.md)."""
PLACED = 64
"""Of replicas with as many calls, the one is the least busy at which the fewest of so many searches are at home: some
of them are with their reward model and will be back."""
REMEMBERED = 16_384
"""Searches whose home is known; one of which nothing was heard for longer gets a new one."""


class Homes(Generic[Name]):
    """The homes of one process's searches among the replicas of a pool."""

    def __init__(self, balance: float = BALANCE, luck: random.Random | None = None) -> None:
        """``luck`` chooses among those that are as busy."""
        self._balance = balance
        self._luck = luck or random.Random()
        self._homes: dict[str, Name] = {}
        """By search, the one of which something was heard last at the end."""

    def choose(self, search_id: str, calls: Mapping[Name, int], avoid: Collection[Name] = ()) -> Name:
        """The replica for a search's next call: its home from now on.

        Args:
            calls: how many of this process each replica has; there is at least one.
            avoid: replicas that are taken only if there is no other.
        """
        home = self._homes.pop(search_id, None)
        if home is None or home in avoid or calls.get(home, math.inf) >= most_calls(calls, self._balance):
            home = self._least_busy(calls, avoid)
        self._homes[search_id] = home
        if len(self._homes) > REMEMBERED:
            del self._homes[next(iter(self._homes))]
        return home

    def _least_busy(self, calls: Mapping[Name, int], avoid: Collection[Name]) -> Name:
        homed = Counter(islice(reversed(self._homes.values()), PLACED))
        return min(calls, key=lambda name: (name in avoid, calls[name], homed[name], self._luck.random()))


def most_calls(calls: Mapping[Name, int], balance: float = BALANCE) -> int:
    """How many calls a replica has that takes no more, of those at work and the next one."""
    replicas = len(calls)
    return math.ceil(min(balance, (1 + replicas) / 2) * (sum(calls.values()) + 1) / replicas)
