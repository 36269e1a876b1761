"""The KV blocks of one engine: what its requests hold, and what they have reserved to grow by.

The engine itself knows only which blocks it has given out so far. Used from one thread; nothing in it waits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvstore.memory.geometry import KVGeometry

ROOT = 0
"""The key of no block: every chain of keys begins with it."""
LARGE_RATIO = 4
"""A request is large if it brings in more than this many times the blocks that it writes. For a large request the
engine would have to evict prefixes that others come back to."""
LARGE_OVERCOMMIT = 0.1
"""Overcommit limit for a large request, as a share of capacity."""


class TooLarge(ValueError):
    """A prefix that with one more token does not fit into the empty cache."""

    def __init__(self, needed: int, capacity: int) -> None:
        super().__init__(f"needs {needed} KV blocks, there are {capacity}")
        self.needed = needed
        self.capacity = capacity


class Prefix(NamedTuple):
    """A prefix as an engine caches it: in whole blocks."""

    keys: tuple[int, ...]
    """A block's key is a hash of its tokens and of the key before it: the same key, the same tokens from the first."""
    tokens: int

    @classmethod
    def of(cls, token_ids: Sequence[int], block_size: int, salt: str = "") -> "Prefix":
        """
        Args:
            salt: whose cache it is: prefixes of different salts share nothing.
        """
        # The engine computes the last token of a prompt in any case, and its block with it.
        whole = max(0, len(token_ids) - 1) // block_size * block_size
        key = hash((ROOT, salt))
        keys: list[int] = []
        for begin in range(0, whole, block_size):
            key = hash((key, *token_ids[begin : begin + block_size]))
            keys.append(key)
        return cls(tuple(keys), len(token_ids))


class Needs(NamedTuple):
    """Blocks that a request does not share."""

    fixed: int
    """Held from the request's first engine step on."""
    growth: int
    """Reserved for the tokens that it writes; used one after the other, and not all if it writes less."""


@dataclass(slots=True)
class _Shared:
    """A block of a prefix, and the number of requests and blocks behind it that need it."""

    before: int
    users: int = 0


class KVLedger:
    """Reserves the blocks of one engine.

    A request holds the blocks of its prefix, which others may share, and blocks of its own for the rest of its prompt
    and for what it will write. A block that several requests hold is counted once, as in an engine with prefix caching.

    Models with several groups of layers (sliding windows) take a block in each group, as if all groups kept all tokens:
    what siblings share in a window saves more than what the window leaves out. A request that fits only because its
    windows do not keep all tokens gets all blocks, alone.
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
            alone: number of blocks that a request of a given number of tokens holds in an empty cache, if that is fewer
                than a block per group and ``block_size`` tokens.
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
        """Blocks that are reserved, overcommitted ones not counted."""
        return min(self.capacity, self.held + self._growth)

    @property
    def growth(self) -> int:
        """Blocks that are reserved for what requests write, used or not."""
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
        """For the cache of an engine."""
        tokens = [group for group in geometry.groups if group.of_tokens]
        # Where the sizes differ, as if all groups had the smallest blocks: never too little.
        block_size = min((group.block_size for group in tokens), default=1)
        states = sum(group.most_blocks or 0 for group in geometry.groups if not group.of_tokens)
        return cls(capacity, block_size, len(tokens), states, geometry.blocks_for)

    def reserve(self, prefix: Prefix, needs: Needs, spare: int = 0, overcommit: int = 0) -> "Hold | None":
        """Reserves the blocks of a prefix and what the request ``needs`` besides; None if fewer than ``spare`` blocks
        would be left.

        A request that is alone gets what it needs, or all blocks if it needs more than there are.

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
        """The blocks that a request which writes ``growth`` tokens, at least one, does not share.

        Raises:
            TooLarge: the prefix with one more token does not fit into the empty cache.
        """
        tokens = prefix.tokens
        if self._whole(tokens + 1) > self.capacity and (whole := self._alone(tokens + 1)) > self.capacity:
            raise TooLarge(whole, self.capacity)
        begins = self._whole(tokens)
        return Needs(begins - self._groups * len(prefix.keys), self._whole(tokens + max(growth, 1)) - begins)

    def _whole(self, tokens: int) -> int:
        """Blocks of a request that shares nothing."""
        return self._groups * -(-tokens // self.block_size) + self._states

    def _missing(self, prefix: Prefix) -> int:
        """The number of its whole blocks that no request holds yet."""
        shared = self._shared
        for missing, key in enumerate(reversed(prefix.keys)):
            if key in shared:
                return missing
        return len(prefix.keys)

    def _take(self, prefix: Prefix) -> None:
        keys = prefix.keys
        for place in range(len(keys) - 1, -1, -1):
            block = self._shared.get(keys[place])
            known = block is not None
            if block is None:
                block = self._shared[keys[place]] = _Shared(keys[place - 1] if place else ROOT)
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
    """The blocks that one request has reserved, until it releases them."""

    __slots__ = ("_last", "_ledger", "_needs")

    def __init__(self, ledger: KVLedger, last: int, needs: Needs) -> None:
        self._ledger: KVLedger | None = ledger
        self._last = last
        self._needs = needs

    def release(self) -> None:
        """Gives it back. A second time does nothing."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger._give_back(self._last, self._needs)
