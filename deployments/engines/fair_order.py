"""The order in which a replica starts the requests of several owners and their searches."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

REMEMBERED = 256
"""Number of searches above which those without unserved positions are forgotten."""
TURN = 16
"""Requests per turn. They share one position in the order, and most of them continue the same prefix. Where memory does
not hold the prefixes of all searches, turns of one request would evict every prefix between two turns of its search."""
SLOTS_FOR_OTHERS = 8
"""One slot of the batch in this many is not given to an owner that holds all others, while there are other owners. The
engine takes no request back, and one that writes a whole solution keeps its slot for long."""
OTHERS_S = 60.0
"""An owner counts as there for this long after its last request came."""


class _Packet(NamedTuple):
    """The requests of one turn of a search."""

    position: int
    """Their position in the order."""
    requests: int
    """Number of requests so far."""

    @property
    def after(self) -> int:
        """The position of the search's next turn, unless this one is served before."""
        return self.position + self.requests


class FairOrder:
    """Positions in a replica's queue: searches take turns, however many requests each sends at once.

    Start-time fair queueing (Goyal, Vin and Cheng, "Start-time Fair Queueing", IEEE/ACM Transactions on Networking 5,
    1997) in which every request costs 1, and a search's requests go in packets of `TURN`. A search with 256 branches
    gets 16 turns; a search that sends four meanwhile starts at the turn that is being served, not behind all 16. Each
    other search passes a search with at most as many requests as that search sent itself, plus one packet.
    """

    def __init__(self) -> None:
        self.now = 0
        """Virtual time: one more than the highest position that was served."""
        self._packets: dict[str, _Packet] = {}
        """The last packet of each search."""
        self._forget_above = REMEMBERED

    def position(self, search_id: str) -> int:
        """The position of a search's next request: lower goes first."""
        position, requests = self._packet(search_id)
        self._packets[search_id] = _Packet(position, requests + 1)
        if len(self._packets) > self._forget_above:
            self._forget()
        return position

    def _packet(self, search_id: str) -> _Packet:
        """The packet of a search's next request: the search's last packet, or a new one if that is full or served."""
        packet = self._packets.get(search_id, _Packet(self.now, 0))
        if packet.requests == TURN or packet.position < self.now:
            return _Packet(max(self.now, packet.after), 0)
        return packet

    def served(self, position: int) -> None:
        """Records that the request at ``position`` has finished. New requests get later positions: at the same one, a
        stream of searches with one request each could pass another search for ever."""
        self.now = max(self.now, position + 1)

    def forget_all(self) -> None:
        """Forgets all searches, also those with positions that were never served."""
        self._packets.clear()
        self._forget_above = REMEMBERED

    def _forget(self) -> None:
        """Forgets searches whose positions were all served."""
        self._packets = {search_id: packet for search_id, packet in self._packets.items() if packet.after > self.now}
        self._forget_above = max(REMEMBERED, 2 * len(self._packets))


@dataclass(eq=False, slots=True)
class _Owner:
    """State of one owner. There are at most as many as API keys."""

    order: FairOrder = field(default_factory=FairOrder)
    """The turns of its searches."""
    requests: int = 0
    """Number of its live requests."""
    running: int = 0
    """Number of its requests at the engine."""
    next_turn: int = 0
    """Virtual time at which its next turn starts, in requests that were started for it."""


class OwnerOrder:
    """Owners take turns, and within each one's turns its searches do: an owner with many searches gets no more of a
    replica than one with a single search while both have requests to start.

    Start-time fair queueing again, with turns of `TURN` requests. Here turns are given when requests start, so that the
    searches of an owner are not tied to the order in which they came. Positions are of one owner; `priority` makes
    positions of several owners comparable. While there are other owners, none gets the whole batch.
    """

    def __init__(self, batch: int, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            batch: maximum number of requests that the engine runs at a time.
            clock: returns seconds.
        """
        self._max_running = max(1, batch - max(1, batch // SLOTS_FOR_OTHERS))
        self._clock_s = clock
        self._latest = self._latest_other = ("", -OTHERS_S)
        """The owner whose request came last, and the last one of another owner; with the seconds when."""
        self._owners: defaultdict[str, _Owner] = defaultdict(_Owner)
        self._turn_of = ""
        """The owner that has the turn."""
        self._left = 0
        """Number of requests that it may still start in this turn."""
        self._turn_began = 0
        """Virtual time at which the turn started."""
        self._clock = 0
        """One more than the highest priority that was served. With a single owner this is its virtual time."""

    def enter(self, owner: str) -> None:
        """Records that a request of an owner is alive."""
        self._owners[owner].requests += 1
        if owner != self._latest[0]:
            self._latest_other = self._latest
        self._latest = owner, self._clock_s()

    def occupy(self, owner: str) -> None:
        """Records that a request of an owner has got a slot."""
        self._owners[owner].running += 1

    def leave(self, owner: str, occupied: bool) -> None:
        """Records that a request of an owner has ended, and whether it had a slot."""
        known = self._owners[owner]
        known.running -= occupied
        known.requests -= 1
        if not known.requests:
            known.order.forget_all()

    def position(self, owner: str, search_id: str) -> int:
        """The position of a search's next request among those of its owner: lower goes first."""
        return self._owners[owner].order.position(search_id)

    def turn(self, waiting: Collection[str | None]) -> str | None:
        """The owner of the next request to start, among those with requests that wait. None where each of them has all
        the slots that it may have."""
        if self._left and self._turn_of in waiting and not self._is_full(self._turn_of):
            return self._turn_of
        able = [owner for owner in waiting if owner is not None and not self._is_full(owner)]
        return min(able, key=self._next_turn, default=None)

    def started(self, owner: str) -> None:
        """Records that a request of an owner has its turn, and a slot."""
        self.occupy(owner)
        began = self._next_turn(owner)
        if owner != self._turn_of or not self._left:
            self._turn_of, self._left, self._turn_began = owner, TURN, began
        self._left -= 1
        self._owners[owner].next_turn = began + 1

    def priority(self, owner: str, position: int) -> int:
        """A position of an owner on a scale of all owners, on which each one's next position is the same."""
        return max(0, self._clock + position - self._owners[owner].order.now)

    def served(self, owner: str, position: int) -> None:
        """Records that a request of an owner at a position has finished."""
        self._clock = max(self._clock, self.priority(owner, position) + 1)
        self._owners[owner].order.served(position)

    def _is_full(self, owner: str) -> bool:
        if self._owners[owner].running < self._max_running:
            return False
        _, others_came = self._latest_other if owner == self._latest[0] else self._latest
        return self._clock_s() - others_came < OTHERS_S

    def _next_turn(self, owner: str) -> int:
        return max(self._turn_began, self._owners[owner].next_turn)
