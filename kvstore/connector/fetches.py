"""Deduplicates fetches: of the requests that lack the same KV, one fetches it and the others wait.

The branches of a node arrive together. If the engine has evicted their prefix, each branch would look it up, load it
and hold blocks for its own copy: a beam of 16 would load the prefix 16 times.
"""

import math
from typing import Any


class Fetches:
    """Fetches in progress at one scheduler. Blocks are identified by their hashes."""

    def __init__(self) -> None:
        self._lacks: dict[str, Any] = {}
        """The first missing block of every request that has looked it up and has not ended."""
        self._fetched_by: dict[Any, tuple[str, float]] = {}
        """The request that fetches a block, and its priority."""

    def awaits(self, block: Any, request_id: str, priority: float = 0) -> bool:
        """Whether another request with at least this priority already fetches ``block``.

        ``priority``: lower goes first. A fetch by a request of lower priority could be delayed for as long as other
        requests overtake it.
        """
        other, others_priority = self._fetched_by.get(block, (request_id, priority))
        return other != request_id and others_priority <= priority

    def asks(self, block: Any, request_id: str, priority: float = 0) -> None:
        """Records that a request looks up the KV from ``block`` on. Only for a request that need not await it."""
        self._drop(request_id)
        self._lacks[request_id] = block
        self._fetched_by[block] = (request_id, priority)

    def answered(self, request_id: str) -> None:
        """Records the end of a lookup. KV that was not found is computed. KV that was found is loaded once blocks are
        free, and until then no request waits for it."""
        self._drop(request_id)

    def loads(self, request_id: str) -> None:
        """Records that a request has its blocks, and that the KV found for it is being loaded."""
        block = self._lacks.get(request_id)
        if block is not None and self._fetched_by.get(block, (request_id,))[0] == request_id:
            self._fetched_by[block] = (request_id, -math.inf)  # being loaded, whatever the request's priority

    def ends(self, request_id: str) -> None:
        """Records that the KV is loaded or the request has ended."""
        self._drop(request_id)
        self._lacks.pop(request_id, None)

    def _drop(self, request_id: str) -> None:
        block = self._lacks.get(request_id)
        if self._fetched_by.get(block, ("",))[0] == request_id:
            del self._fetched_by[block]
