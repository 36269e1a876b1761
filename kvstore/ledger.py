"""What the requests of one engine hold of its KV blocks and will still need.

The engine itself knows only what it has given out so far; which of its requests will still grow, and by how much, is
known here. Used from one thread; nothing in it waits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvstore.geometry import KVGeometry

ROOT = 0
"""The key of no block: what every chain begins with."""
LARGE = 4
"""Times what a request writes: one that has more than that brought in first is promised little ahead. For it the engine
would have to push out what others come back to."""
LARGE_AHEAD = 0.1
"""Of the blocks: so many of them."""


class TooLarge(ValueError):
    """A prefix that the whole cache could not hold with one more token."""

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
    """Blocks that a request has for itself alone."""

    fixed: int
    """From its first step on."""
    growth: int
    """One after the other, for what it writes; not all of them, where it writes less than it may."""


@dataclass(slots=True)
class _Shared:
    """A block of a prefix, and how many requests and blocks behind it need it."""

    before: int
    users: int = 0


class KVLedger:
    """Promises the blocks of one engine, each once.

    A request holds the blocks of its prefix, which others may share, and blocks of its own for the rest of its prompt
    and for what it will write. Blocks that several hold are counted once: so does an engine with prefix caching.

    Where layers look back differently far, every block's worth of tokens takes a block in each group, as if all groups
    kept all tokens: what siblings share in a sliding window is worth more than what a window leaves out. A request that
    fits only because of that is granted all there is, alone.
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
            groups: of layers that keep tokens; see `KVGeometry`.
            states: blocks that every request has for itself, however long it is.
            alone: blocks that a request of so many tokens holds in an empty cache, where it is fewer than that.
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
        """Blocks that somebody else holds for now: they are promised to nobody, but they are not free."""
        self._large_ahead = int(LARGE_AHEAD * capacity)

    @property
    def reserved(self) -> int:
        """Blocks that are promised, never more than ``capacity``: what is promised ahead is not there yet."""
        return min(self.capacity, self.held + self._growth)

    @property
    def growth(self) -> int:
        """Blocks that are promised for what requests write, used or not."""
        return self._growth

    @property
    def held(self) -> int:
        """Blocks that requests hold from their first steps on: those of prefixes, and of the rest of their prompts."""
        return self.shared + self._fixed

    @property
    def shared(self) -> int:
        """Blocks of prefixes that are promised."""
        return self._groups * len(self._shared)

    @property
    def free(self) -> int:
        """Blocks that are promised to nobody and held by nobody else."""
        return max(0, self.capacity - self.reserved - self.withheld)

    @classmethod
    def of(cls, capacity: int, geometry: KVGeometry) -> "KVLedger":
        """For the cache of an engine."""
        tokens = [group for group in geometry.groups if group.of_tokens]
        # Where the sizes differ, as if all groups had the smallest blocks: never too little.
        block_size = min((group.block_size for group in tokens), default=1)
        states = sum(group.most_blocks or 0 for group in geometry.groups if not group.of_tokens)
        return cls(capacity, block_size, len(tokens), states, geometry.blocks_for)

    def reserve(self, prefix: Prefix, needs: Needs, spare: int = 0, ahead: int = 0) -> "Hold | None":
        """Promises a request its prefix and what it ``needs`` besides; None where fewer than ``spare`` blocks would be
        left.

        A request that is alone gets what it needs or, if that is more than there is, all of it, to keep.

        Args:
            ahead: blocks that may be promised though they are not there; `LARGE_AHEAD` at most where it is `LARGE`.
        """
        if not (self._shared or self._fixed or self._growth):
            most = max(0, self.capacity - self._groups * len(prefix.keys))
            if sum(needs) > most:
                needs = Needs(most, 0)
        else:
            missing = self._groups * self._missing(prefix)
            if missing + needs.fixed > LARGE * max(needs.growth, self._groups):
                ahead = min(ahead, self._large_ahead)
            promised = self.held + self._growth + missing + sum(needs)
            if promised + spare + self.withheld > self.capacity + ahead:
                return None
        self._take(prefix)
        self._fixed += needs.fixed
        self._growth += needs.growth
        return Hold(self, prefix.keys[-1] if prefix.keys else ROOT, needs)

    def needs(self, prefix: Prefix, growth: int) -> Needs:
        """What a request that writes ``growth`` tokens, one at least, has for itself alone.

        Raises:
            TooLarge: the prefix with one token more fits into no empty cache.
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
        """How many of its whole blocks of tokens nobody holds yet."""
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
    """What one request was promised, until it is released."""

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
