"""The order in which a replica starts the requests of several searches."""

from typing import NamedTuple

REMEMBERED = 256
"""Number of searches above which those without unserved positions are forgotten."""
TURN = 16
"""Requests per turn. They share one position in the order, and most of them continue the same prefix. Where memory does
not hold the prefixes of all searches, turns of one request would evict every prefix between two turns of its search."""


class _Packet(NamedTuple):
    """The requests of one turn of a search."""

    place: int
    """Their position in the order."""
    requests: int
    """Number of requests so far."""

    @property
    def after(self) -> int:
        """The position of the search's next turn, unless this one is served before."""
        return self.place + self.requests


class FairOrder:
    """Positions in a replica's queue: searches take turns, however many requests each sends at once.

    Start-time fair queueing (Goyal, Vin and Cheng, "Start-time Fair Queueing", IEEE/ACM Transactions on Networking 5,
    1997) in which every request costs 1, and a search's requests go in packets of `TURN`. A search with 256 branches
    gets 16 turns; a search that sends four meanwhile starts at the turn that is being served, not behind all 16. Each
    other search passes a search with at most as many requests as that search sent itself, plus one packet.
    """

    def __init__(self) -> None:
        self._now = 0
        """Virtual time: one more than the highest position that was served."""
        self._packets: dict[str, _Packet] = {}
        """The last packet of each search."""
        self._forget_above = REMEMBERED

    def position(self, search_id: str) -> int:
        """The position of a search's next request: lower goes first."""
        place, requests = self._packet(search_id)
        self._packets[search_id] = _Packet(place, requests + 1)
        if len(self._packets) > self._forget_above:
            self._forget()
        return place

    def _packet(self, search_id: str) -> _Packet:
        """The packet of a search's next request: the search's last packet, or a new one if that is full or served."""
        packet = self._packets.get(search_id, _Packet(self._now, 0))
        if packet.requests == TURN or packet.place < self._now:
            return _Packet(max(self._now, packet.after), 0)
        return packet

    def served(self, place: int) -> None:
        """Records that a request at position ``place`` has finished. New requests get later positions: at the same one,
        a stream of searches with one request each could pass another search for ever."""
        self._now = max(self._now, place + 1)

    def _forget(self) -> None:
        """Forgets searches whose positions were all served."""
        self._packets = {search_id: packet for search_id, packet in self._packets.items() if packet.after > self._now}
        self._forget_above = max(REMEMBERED, 2 * len(self._packets))
