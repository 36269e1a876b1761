"""Which replicas a search is at home on, and how much one may have to do before it sends searches on.

Consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam 2018) over searches: a replica knows the paths
that it has worked on, and one that is far busier than the rest is not worth what it knows.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from heapq import nsmallest
from typing import TypeVar

Name = TypeVar("Name")

BALANCE = 1.5
"""A replica takes so many times its share of the calls at work; what is more goes to the next of the search's homes.
With less, searches move about and are read again; with more, some wait while others are idle (docs/scaling.md)."""
HOMES = 8
"""Replicas that share a search's calls, of however many: a call looks at no more."""
REMEMBERED = 16_384
"""Searches whose homes are known without reckoning; of 1,000 replicas that takes a millisecond."""


class Homes:
    """The homes of searches on some replicas."""

    def __init__(self, names: Iterable[str]) -> None:
        self._of = lru_cache(maxsize=REMEMBERED)(partial(order, names=tuple(names)))

    def of(self, search_id: str) -> list[str]:
        """A search's homes, the one it prefers first."""
        return self._of(search_id)


def order(search_id: str, names: Iterable[str]) -> list[str]:
    """The first `HOMES` replicas in the order in which a search prefers them: another one for every search, and the
    same in every process and whichever others there are (rendezvous hashing)."""

    def weight(name: str) -> bytes:
        return hashlib.blake2b(name.encode(), digest_size=8, key=search_id.encode()[:64]).digest()

    return nsmallest(HOMES, names, key=weight)


def most_calls(at_work: int, replicas: int, balance: float = BALANCE) -> int:
    """How many calls one replica may have before another one takes the next, with so many at work on all."""
    return math.ceil(balance * (at_work + 1) / replicas)


def preferred(calls: Mapping[Name, int], attempt: int = 0, balance: float = BALANCE) -> list[Name]:
    """A search's homes, each with the calls that it has, in the order in which its next call should be offered to them:
    those with room first.

    Args:
        calls: in the search's own order, which stays that of those with room and of those without.
        attempt: how often the same call has failed. Each time another one is the first.
    """
    most = most_calls(sum(calls.values()), len(calls), balance)
    found = sorted(calls, key=lambda name: calls[name] >= most)  # a stable sort
    tried = attempt % len(found)
    return found[tried:] + found[:tried]
