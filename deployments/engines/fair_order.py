"""The order in which a replica starts the requests of several searches."""

from typing import NamedTuple

REMEMBERED = 256
"""Number of searches after which those that no longer matter are forgotten."""
TURN = 16
"""Requests of a search that share one place in the order. Most of them continue the same prefix. Where memory does not
hold the prefixes of all searches, turns of one request would evict every prefix between two turns of its search."""


class _Packet(NamedTuple):
    """The requests of one turn of a search."""

    place: int
    requests: int

    @property
    def after(self) -> int:
        """The place of the search's next turn, if this one was not served by then."""
        return self.place + self.requests


class FairOrder:
    """Places in a replica's queue: searches take turns, however much each asks for at once.

    Start-time fair queueing (Goyal, Vin and Cheng, "Start-time Fair Queueing", IEEE/ACM Transactions on Networking 5,
    1997) in which every request costs 1, and a search's requests go in packets of `TURN`. A search that asks for 256
    branches gets 16 turns; one that asks for four meanwhile begins at the turn that is being served, not behind them
    all. A search is passed by at most as many requests of each other search as it asked for itself, and one packet.
    """

    def __init__(self) -> None:
        self._now = 0
        """The place behind the highest that was served."""
        self._packets: dict[str, _Packet] = {}
        """The last one of each search."""
        self._look_at = REMEMBERED

    def place(self, search_id: str) -> int:
        """The place of a search's next request: lower goes first."""
        place, requests = self._packet(search_id)
        self._packets[search_id] = _Packet(place, requests + 1)
        if len(self._packets) > self._look_at:
            self._forget()
        return place

    def _packet(self, search_id: str) -> _Packet:
        """The packet of a search's next request: its last one, or a new one if that is full or was served."""
        packet = self._packets.get(search_id, _Packet(self._now, 0))
        if packet.requests == TURN or packet.place < self._now:
            return _Packet(max(self._now, packet.after), 0)
        return packet

    def served(self, place: int) -> None:
        """The request at that place has finished. Requests that come from now on get a later place: at the same one,
        searches that each ask once could pass another for ever."""
        self._now = max(self._now, place + 1)

    def _forget(self) -> None:
        """Forgets searches whose places were all served."""
        self._packets = {search_id: packet for search_id, packet in self._packets.items() if packet.after > self._now}
        self._look_at = max(REMEMBERED, 2 * len(self._packets))
