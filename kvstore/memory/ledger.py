"""Ledger of one engine's KV blocks: those that requests hold, and those that are reserved for their growth.

The engine itself knows only the blocks that it has allocated so far. Single-threaded; no call waits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvstore.memory.geometry import KVGeometry

ROOT = 0
"""Parent key of every first block; no block has this key."""
LARGE_RATIO = 4
"""A request is large if its uncached prompt takes more than this many times the blocks that it writes. For a large
request the engine would have to evict prefixes that other requests will need again."""
LARGE_OVERCOMMIT = 0.1
"""Overcommit limit for a large request, as a share of capacity."""


class TooLarge(ValueError):
    """A prefix and one more token do not fit into an empty cache."""

    def __init__(self, needed: int, capacity: int) -> None:
        super().__init__(f"needs {needed} KV blocks, but there are only {capacity}")
        self.needed = needed
        self.capacity = capacity


class Prefix(NamedTuple):
    """A prefix in whole blocks, as an engine caches it."""

    keys: tuple[int, ...]
    """A block's key is a hash of its tokens and of the previous key, so equal keys mean equal tokens from the start."""
    tokens: int

    @classmethod
    def of(cls, token_ids: Sequence[int], block_size: int, salt: str = "") -> "Prefix":
        """Splits ``token_ids`` into blocks.

        Args:
            salt: cache salt; prefixes with different salts share no blocks.
        """
        # The engine always computes the last token of a prompt, so the block of that token is never shared.
        whole = max(0, len(token_ids) - 1) // block_size * block_size
        key = hash((ROOT, salt))
        keys: list[int] = []
        for begin in range(0, whole, block_size):
            key = hash((key, *token_ids[begin : begin + block_size]))
            keys.append(key)
        return cls(tuple(keys), len(token_ids))


class Needs(NamedTuple):
    """Blocks that a request does not share with others."""

    fixed: int
    """Held from the request's first engine step on."""
    growth: int
    """Reserved for the tokens that it writes. They are used one by one, and not all if it writes less."""


@dataclass(slots=True)
class _Shared:
    """A block of a prefix, with its reference count."""

    before: int
    """Key of the previous block."""
    users: int = 0
    """Requests whose prefix ends with this block, and blocks that follow it."""


class KVLedger:
    """Reserves the blocks of one engine.

    A request holds the blocks of its prefix, which others may share, and blocks of its own for the rest of its prompt
    and for what it will write. A block that several requests hold is counted once, as in an engine with prefix caching.

    In models with several groups of layers (sliding windows) a block counts once per group, as if every group kept all
    tokens: sharing between siblings saves more than the windows do. A request that fits only because of its windows
    runs alone and gets all blocks.
    """

    def __init__(
        self,
        capacity: int,
        block_size: int,
        groups: int = 1,
        states: int = 0,
        alone: Callable[[int], int] | None = None,
    ) -> None:
        """
        Args:
            capacity: blocks that requests can use.
            block_size: tokens per block.
            groups: number of groups of layers that keep tokens; see `KVGeometry`.
            states: blocks that every request holds whatever its length (state space layers).
            alone: returns the number of blocks that a request of a given number of tokens holds in an empty cache. By
                default it is one block per group and ``block_size`` tokens.
        """
        if capacity < 1 or block_size < 1:
            raise ValueError(f"capacity and block_size must be positive, got {capacity} and {block_size}")
        self.capacity = capacity
        self.block_size = block_size
        self._groups = groups
        self._states = states
        self._alone = alone or self._whole
        self._shared: dict[int, _Shared] = {}
        self._fixed = self._growth = 0
        self.withheld = 0
        """Blocks that the cache connector still reads: no request holds them, and they are not free."""
        self._large_overcommit = int(LARGE_OVERCOMMIT * capacity)

    @property
    def reserved(self) -> int:
        """Reserved blocks, without overcommitted ones."""
        return min(self.capacity, self.held + self._growth)

    @property
    def growth(self) -> int:
        """Blocks reserved for the tokens that requests write, used or not."""
        return self._growth

    @property
    def held(self) -> int:
        """Blocks of the prompts of all requests."""
        return self.shared + self._fixed

    @property
    def shared(self) -> int:
        """Blocks of prefixes, which requests may share."""
        return self._groups * len(self._shared)

    @property
    def free(self) -> int:
        """Blocks that are neither reserved nor withheld."""
        return max(0, self.capacity - self.reserved - self.withheld)

    @classmethod
    def of(cls, capacity: int, geometry: KVGeometry) -> "KVLedger":
        """The ledger of an engine with this geometry."""
        tokens = [group for group in geometry.groups if group.of_tokens]
        # With different block sizes all groups count with the smallest: never an underestimate.
        block_size = min((group.block_size for group in tokens), default=1)
        states = sum(group.most_blocks or 0 for group in geometry.groups if not group.of_tokens)
        return cls(capacity, block_size, len(tokens), states, geometry.blocks_for)

    def reserve(self, prefix: Prefix, needs: Needs, spare: int = 0, overcommit: int = 0) -> "Hold | None":
        """Reserves the blocks of a prefix and the request's own ``needs``; None if fewer than ``spare`` blocks would be
        left.

        A request that is alone gets the blocks that it needs, or all blocks if there are fewer.

        Args:
            overcommit: blocks that may be reserved beyond capacity; at most `LARGE_OVERCOMMIT` for a large request.
        """
        if not (self._shared or self._fixed or self._growth):
            most = max(0, self.capacity - self._groups * len(prefix.keys))
            if sum(needs) > most:
                needs = Needs(most, 0)
        else:
            missing = self._groups * self._missing(prefix)
            if missing + needs.fixed > LARGE_RATIO * max(needs.growth, self._groups):
                overcommit = min(overcommit, self._large_overcommit)
            reserved = self.held + self._growth + missing + sum(needs)
            if reserved + spare + self.withheld > self.capacity + overcommit:
                return None
        self._take(prefix)
        self._fixed += needs.fixed
        self._growth += needs.growth
        return Hold(self, prefix.keys[-1] if prefix.keys else ROOT, needs)

    def needs(self, prefix: Prefix, growth: int) -> Needs:
        """The unshared blocks of a request that writes ``growth`` tokens, at least one.

        Raises:
            TooLarge: the prefix and one more token do not fit into an empty cache.
        """
        tokens = prefix.tokens
        if self._whole(tokens + 1) > self.capacity and (whole := self._alone(tokens + 1)) > self.capacity:
            raise TooLarge(whole, self.capacity)
        prompt = self._whole(tokens)
        return Needs(prompt - self._groups * len(prefix.keys), self._whole(tokens + max(growth, 1)) - prompt)

    def _whole(self, tokens: int) -> int:
        """Blocks of a request that shares none."""
        return self._groups * -(-tokens // self.block_size) + self._states

    def _missing(self, prefix: Prefix) -> int:
        """Number of the prefix's blocks that no request holds yet."""
        shared = self._shared
        for missing, key in enumerate(reversed(prefix.keys)):
            if key in shared:
                return missing
        return len(prefix.keys)

    def _take(self, prefix: Prefix) -> None:
        keys = prefix.keys
        for index in range(len(keys) - 1, -1, -1):
            block = self._shared.get(keys[index])
            known = block is not None
            if block is None:
                block = self._shared[keys[index]] = _Shared(keys[index - 1] if index else ROOT)
            block.users += 1
            if known:
                return

    def _give_back(self, last: int, needs: Needs) -> None:
        self._fixed -= needs.fixed
        self._growth -= needs.growth
        key = last
        while key != ROOT:
            block = self._shared[key]
            block.users -= 1
            if block.users:
                return
            del self._shared[key]
            key = block.before


class Hold:
    """The reservation of one request, until it is released."""

    __slots__ = ("_last", "_ledger", "_needs")

    def __init__(self, ledger: KVLedger, last: int, needs: Needs) -> None:
        self._ledger: KVLedger | None = ledger
        self._last = last
        self._needs = needs

    def release(self) -> None:
        """Releases the reservation. A second call does nothing."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger._give_back(self._last, self._needs)
