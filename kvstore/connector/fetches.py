"""Of requests that lack the same KV, one fetches it and the others wait until their engine has it.

The branches of a node come together. Where their prefix is not in the engine any more, each would look it up, have it
loaded, and hold blocks of its own for it until it is there: a beam of 16 would load it sixteen times.
"""

import math
from typing import Any


class Fetches:
    """Follows what the requests of one scheduler fetch. Blocks are named by their hashes."""

    def __init__(self) -> None:
        self._lacks: dict[str, Any] = {}
        """The first block that each lacks, of those that have asked and have not ended."""
        self._fetched_by: dict[Any, tuple[str, float]] = {}
        """And its place in the engine's queue: how certain it is to go on."""

    def awaits(self, block: Any, request_id: str, place: float = 0) -> bool:
        """Whether another request fetches ``block`` already that goes on no later than this one does.

        ``place``: lower goes first. Who waited for one behind it could wait for as long as others go before that one.
        """
        other, before = self._fetched_by.get(block, (request_id, place))
        return other != request_id and before <= place

    def asks(self, block: Any, request_id: str, place: float = 0) -> None:
        """A request looks up what begins with ``block``, which it does not await."""
        self._drop(request_id)
        self._lacks[request_id] = block
        self._fetched_by[block] = (request_id, place)

    def answered(self, request_id: str) -> None:
        """The lookup has ended. What was not found is computed; what was found is fetched once there is room for it,
        and until then nobody waits for it."""
        self._drop(request_id)

    def loads(self, request_id: str) -> None:
        """There is room: what was found is being loaded."""
        block = self._lacks.get(request_id)
        if block is not None and self._fetched_by.get(block, (request_id,))[0] == request_id:
            self._fetched_by[block] = (request_id, -math.inf)  # it comes, wherever it stood

    def ends(self, request_id: str) -> None:
        """It is loaded, or the request has ended."""
        self._drop(request_id)
        self._lacks.pop(request_id, None)

    def _drop(self, request_id: str) -> None:
        block = self._lacks.get(request_id)
        if self._fetched_by.get(block, ("",))[0] == request_id:
            del self._fetched_by[block]
