"""KV blocks that no request holds any more and that an engine cannot give out yet: they are being stored."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

STORING = "banyan_storing_blocks"
"""How many they are, under this name among what vLLM's scheduler says of its connector after every step."""


class StoringBlocks:
    """Follows the stores of one engine."""

    def __init__(self) -> None:
        self._of: dict[str, list[int]] = {}
        self._stores: Counter[int] = Counter()

    def begins(self, request_id: str, block_ids: Iterable[int]) -> None:
        """A request's store holds these blocks, beside whoever else does."""
        self.ends(request_id)
        blocks = self._of[request_id] = list(block_ids)
        self._stores.update(blocks)

    def ends(self, request_id: str) -> None:
        """It holds them no longer; nothing where it held none."""
        for block in self._of.pop(request_id, ()):
            self._stores[block] -= 1
            if not self._stores[block]:
                del self._stores[block]

    def count(self, pool: Any) -> int:
        """Blocks of the scheduler's ``pool`` that only stores hold."""
        return sum(pool.blocks[block].ref_cnt <= stores for block, stores in self._stores.items())
