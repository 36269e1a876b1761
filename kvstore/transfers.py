"""Which reports of finished transfers vLLM's scheduler may hear, when requests are given up while their prefix loads.

The scheduler frees an ended request's blocks on either report, stored or loaded, and dies of the second: an engine
whose client hung up at the wrong moment was gone. LMCache reports a request that has ended as stored at once where
there is nothing to store, although its load may still be writing into the blocks. Only the scheduler's side can tell:
an abort is handled after a step ran and before the step's reports are read.
"""

from collections.abc import Set


class Transfers:
    """Follows the loads of one scheduler. A request that ends while it loads is told as loaded, never as stored."""

    def __init__(self) -> None:
        self._loading: set[str] = set()
        self._given_up: dict[str, bool] = {}
        """Ended while loading, not loaded yet: whether "stored" was said already."""
        self._freed: set[str] = set()
        """Ended while loading and loaded since; "stored" is still to come."""

    def load_begins(self, request_id: str) -> None:
        self._loading.add(request_id)
        self._freed.discard(request_id)

    def request_ends(self, request_id: str) -> None:
        if request_id in self._loading:
            self._given_up[request_id] = False

    def to_tell(self, stored: Set[str], loaded: Set[str]) -> set[str]:
        """Which of the requests reported as ``stored``, beside those as ``loaded``, the scheduler may hear of."""
        told = set(stored)
        for request_id in stored:
            if request_id in self._given_up:
                self._given_up[request_id] = True
                told.discard(request_id)
            elif request_id in self._freed:
                self._freed.discard(request_id)
                told.discard(request_id)
        for request_id in loaded:
            self._loading.discard(request_id)
            if not self._given_up.pop(request_id, True):
                self._freed.add(request_id)
        return told
