"""KV cache geometry of an engine: groups of layers, each with its own blocks, all from one pool.

An engine allocates its KV memory when it starts and splits it into blocks. Most models have one group: a sequence holds
one block per ``block_size`` tokens. Models with different attention spans have several groups: a sequence holds blocks
in each, and in a sliding-window group at most as many as the window needs. `kvstore.memory.engine_geometry` derives it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

MODELS = "banyan_models"
"""Entry of a model's configuration: the number of models of this shape that the engine holds, where it is not 1."""


class UnknownGeometry(ValueError):
    """The model caches something other than keys and values per head, or one latent vector, for each token."""


class KVGroup(NamedTuple):
    """Layers whose KV blocks are allocated together."""

    layers: int
    page_bytes: int
    """Bytes of a block in one layer."""
    block_size: int
    """Tokens per block."""
    most_blocks: int | None = None
    """Maximum number of blocks per sequence, whatever its length. For a sliding window it is vLLM's own figure, which
    includes the tokens of one engine step. None: no maximum."""
    of_tokens: bool = True
    """Whether sequences with the same prefix share its blocks. False for a state: each sequence has its own."""

    def blocks_for(self, tokens: int) -> int:
        """Blocks that a sequence of ``tokens`` tokens holds."""
        blocks = -(-max(0, tokens) // self.block_size)
        return blocks if self.most_blocks is None else min(blocks, self.most_blocks)


class KVGeometry(NamedTuple):
    """The KV cache of one engine, on each of its devices."""

    groups: tuple[KVGroup, ...]
    bytes_per_block: int
    """Size of a block of the pool; every group can use it."""

    @classmethod
    def of(cls, groups: Iterable[Sequence[Any]], bytes_per_block: int) -> "KVGeometry":
        """The geometry from the plain lists that an engine's process reports."""
        return cls(tuple(KVGroup(*group) for group in groups), bytes_per_block)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that one sequence holds; the last may be partly used."""
        return sum(group.blocks_for(tokens) for group in self.groups)

    def blocks_to_start(self, longest: int) -> int:
        """Minimum number of blocks with which an engine for sequences of ``longest`` tokens starts."""
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
        return f"{self.bytes_per_block} bytes per block ({'; '.join(parts)})"
