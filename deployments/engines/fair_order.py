"""In which order an engine takes the requests of several searches."""

from typing import NamedTuple

FEW = 256
"""So many searches are remembered without a look at which of them still matter."""
TOGETHER = 16
"""So many requests of a search have one place. Most continue the same prefix, and where memory does not hold those of
all searches, one request of each in turn would have every prefix go, and be computed again, for each."""


class _Packet(NamedTuple):
    """Requests of one search that have one place."""

    place: int
    requests: int

    @property
    def after(self) -> int:
        """The place of what the search asks for next, if it has not had its turn by then."""
        return self.place + self.requests


class FairOrder:
    """Places in the engine's queue: searches take turns, however much each asks for at once.

    Start-time fair queueing (Goyal, Vin and Cheng, "Start-time Fair Queueing", IEEE/ACM Transactions on Networking 5,
    1997) in which every request counts one, and what a search asks for goes in packets of `TOGETHER`. A search that
    asks for 256 branches gets the next 256 places of its own; one that asks for four meanwhile begins where the engine
    is now, not behind them all. Whoever waits is passed by no more of each other search than it asked for itself and a
    packet, so nobody waits for ever.
    """

    def __init__(self) -> None:
        self._now = 0
        """The place behind the highest that was served."""
        self._packets: dict[str, _Packet] = {}
        """The last one of each search."""
        self._look_at = FEW

    def place(self, search_id: str) -> int:
        """The place of a search's next request: lower goes first."""
        place, requests = self._packet(search_id)
        self._packets[search_id] = _Packet(place, requests + 1)
        if len(self._packets) > self._look_at:
            self._forget()
        return place

    def _packet(self, search_id: str) -> _Packet:
        """Where a search's next request goes: its last one, or a new one where that is whole or has had its turn."""
        packet = self._packets.get(search_id, _Packet(self._now, 0))
        if packet.requests == TOGETHER or packet.place < self._now:
            return _Packet(max(self._now, packet.after), 0)
        return packet

    def served(self, place: int) -> None:
        """The request at that place has finished. Who comes from now on has a later one: were it the same, searches
        that each ask once could pass for ever who yields."""
        self._now = max(self._now, place + 1)

    def _forget(self) -> None:
        """Of a search whose places were all served nothing need be known."""
        self._packets = {search_id: packet for search_id, packet in self._packets.items() if packet.after > self._now}
        self._look_at = max(FEW, 2 * len(self._packets))
