"""Which replica a search is at home on, and how much one may have to do before it sends searches on."""

import hashlib
import math
from collections.abc import Mapping, Sequence

BALANCE = 1.25
"""A replica takes so many times its share of the calls at work; what is more goes to the next in the search's order."""


LOOSE = 2.0
"""In place of that: few searches are sent on."""


def order(search_id: str, names: Sequence[str]) -> list[str]:
    """Replicas in the order in which a search prefers them: another one for every search, and the same in every process
    and whichever others there are (rendezvous hashing)."""

    def weight(name: str) -> bytes:
        return hashlib.blake2b(name.encode(), digest_size=8, key=search_id.encode()[:64]).digest()

    return sorted(names, key=weight)


def most_calls(at_work: int, replicas: int, balance: float = BALANCE) -> int:
    """How many calls one replica may have before another one takes the next, with so many at work on all."""
    return math.ceil(balance * (at_work + 1) / replicas)


def preferred(search_id: str, calls: Mapping[str, int], balance: float = BALANCE) -> list[str]:
    """Replicas, each with the calls that it has, in the order in which a search's next call should be offered to them:
    those with room first, each part in the search's own order."""
    most = most_calls(sum(calls.values()), len(calls), balance)
    return sorted(order(search_id, list(calls)), key=lambda name: calls[name] >= most)  # a stable sort
