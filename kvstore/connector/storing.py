"""KV blocks that only a store holds: no request uses them, and the engine cannot allocate them yet."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

STORING = "banyan_storing_blocks"
"""Name of their number in the connector stats that vLLM's scheduler reports after every step."""


class StoringBlocks:
    """Blocks that the stores of one engine hold."""

    def __init__(self) -> None:
        self._of: dict[str, list[int]] = {}
        self._stores: Counter[int] = Counter()

    def begins(self, request_id: str, block_ids: Iterable[int]) -> None:
        """Records that a request's store holds these blocks. Requests and other stores may hold them too."""
        self.ends(request_id)
        blocks = self._of[request_id] = list(block_ids)
        self._stores.update(blocks)

    def ends(self, request_id: str) -> None:
        """Records that the request's store has ended. Does nothing if there is none."""
        for block in self._of.pop(request_id, ()):
            self._stores[block] -= 1
            if not self._stores[block]:
                del self._stores[block]

    def count(self, pool: Any) -> int:
        """Number of blocks in the scheduler's ``pool`` that only stores hold."""
        return sum(pool.blocks[block].ref_cnt <= stores for block, stores in self._stores.items())
