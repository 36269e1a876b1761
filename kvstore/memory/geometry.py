"""What an engine's KV cache is made of: groups of layers, each with blocks of its own, all from one pool.

An engine takes its memory when it starts and cuts it into blocks. Most models have one group: a sequence holds a block
for every ``block_size`` tokens. Models whose layers look back differently far have several: a sequence holds blocks of
each, and of those of a sliding window never more than the window needs. `kvstore.memory.engine_geometry` reads it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class UnknownGeometry(ValueError):
    """A model that keeps something else than keys and values per head, or a latent vector, for each token."""


class KVGroup(NamedTuple):
    """Layers whose keys and values are given out together."""

    layers: int
    page_bytes: int
    """What one layer keeps in a block."""
    block_size: int
    """Tokens per block."""
    most_blocks: int | None = None
    """So many at most for one sequence, however long: of a sliding window as vLLM reckons it, with the tokens that are
    computed in one step. None: a block for all of its tokens."""
    of_tokens: bool = True
    """Whether sequences that begin alike share its blocks. False for a state, of which each sequence has its own."""

    def blocks_for(self, tokens: int) -> int:
        """Blocks that a sequence holds."""
        blocks = -(-max(0, tokens) // self.block_size)
        return blocks if self.most_blocks is None else min(blocks, self.most_blocks)


class KVGeometry(NamedTuple):
    """The KV cache of one engine, on each of its devices."""

    groups: tuple[KVGroup, ...]
    bytes_per_block: int
    """Of the pool: a block serves any one of the groups."""

    @classmethod
    def of(cls, groups: Iterable[Sequence[Any]], bytes_per_block: int) -> "KVGeometry":
        """From what an engine's process tells: plain lists."""
        return cls(tuple(KVGroup(*group) for group in groups), bytes_per_block)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that one sequence holds; the last may be partly used."""
        return sum(group.blocks_for(tokens) for group in self.groups)

    def blocks_to_start(self, longest: int) -> int:
        """Blocks without which an engine for sequences of so many tokens does not start."""
        # One is vLLM's null block: never free, never used.
        most = (group.blocks_for(longest) if group.most_blocks is None else group.most_blocks for group in self.groups)
        return sum(most) + 1

    def blocks_in(self, memory_bytes: int) -> int:
        """Whole blocks that fit into ``memory_bytes``."""
        return max(0, memory_bytes) // self.bytes_per_block

    def __str__(self) -> str:
        parts = (
            f"{group.layers} layers with {group.page_bytes} bytes for {group.block_size} tokens"
            + ("" if group.most_blocks is None else f", at most {group.most_blocks} blocks")
            for group in self.groups
        )
        return f"{self.bytes_per_block} bytes a block ({'; '.join(parts)})"
