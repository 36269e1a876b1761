"""Homes of searches: the replica that has a search's calls, and when the search moves to another.

A replica caches the paths that it has worked on. So the first call of a search goes to the least busy replica, and all
later calls go there too. If that replica is far busier than the others, the least busy one becomes the home.
"""

import math
import random
from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from itertools import islice
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)

BALANCE = 2.0
"""Load of a replica at which searches leave it, as a multiple of an even share of the open calls; at most halfway
between that share and all calls: 1.5 with two replicas, where a multiple of 2 would never be exceeded. With less,
searches move too often, and their paths are computed again (docs/scaling.md)."""
PLACED = 64
"""Between replicas with the same number of calls, the one that is home to the fewest of this many latest searches
wins: some of these are at their reward model and will be back."""
REMEMBERED = 16_384
"""Maximum number of searches whose home is known. The one without a call for longest loses its home."""


class Homes(Generic[Name]):
    """The homes of one process's searches among the replicas of a pool."""

    def __init__(self, balance: float = BALANCE, luck: random.Random | None = None) -> None:
        """``luck`` chooses among equally busy replicas."""
        self._balance = balance
        self._luck = luck or random.Random()
        self._homes: dict[str, Name] = {}
        """Home of each search; the search with the latest call is last."""

    def choose(self, search_id: str, calls: Mapping[Name, int], avoid: Collection[Name] = ()) -> Name:
        """The replica for a search's next call, and its home from now on.

        Args:
            calls: number of this process's open calls at each replica; not empty.
            avoid: replicas that are chosen only if there is no other.
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
    """Number of open calls at which a replica gets no more."""
    replicas = len(calls)
    return math.ceil(min(balance, (1 + replicas) / 2) * (sum(calls.values()) + 1) / replicas)
