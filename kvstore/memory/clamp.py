"""Whether an engine has KV memory for one more request: what is reserved, and how far it may overcommit."""

from collections.abc import Callable, Sequence

from kvstore.memory.ledger import Hold, KVLedger, Needs, Prefix
from kvstore.memory.running_quantile import RunningQuantile

SPARE_SHARE = 0.02
"""Share of the blocks that stays free for steps that become longer than expected."""
LENGTH_WINDOW = 512
"""Window of the step-length quantile."""
MIN_LENGTHS = 16
"""Samples required before the quantile is used; until then a step is expected to use all that it may."""
QUANTILE = 0.9
WITHHELD_DECAY = 0.98
"""Factor, per engine step, by which the number of blocks that the cache connector holds is forgotten."""
MAX_PREEMPTED = 0.1
"""Share of the requests that an engine may preempt. That costs little where steps are short: they begin again behind a
prefix that is mostly still cached. An engine that never preempts has blocks that nobody uses."""
MAX_OVERCOMMIT = 1.0
"""Maximum overcommit, as a multiple of capacity. Requests past the engine's memory wait in its own queue and begin when
another has ended, not when the replica has heard of that."""
OVERCOMMIT_STEP = 0.02
"""Rise of the overcommit, as a share of capacity, once as many requests have finished as run."""


class StepLengths:
    """Expected length of what a request writes: a running quantile, in tokens."""

    def __init__(self) -> None:
        self._quantile: RunningQuantile[int] = RunningQuantile(QUANTILE, LENGTH_WINDOW, MIN_LENGTHS)

    def add(self, tokens: int) -> None:
        """Records the length of a finished request."""
        self._quantile.saw(tokens)

    def expected(self, max_tokens: int) -> int:
        """Tokens to reserve for a request that may write ``max_tokens``."""
        quantile = self._quantile.value
        return max_tokens if quantile is None else min(max_tokens, quantile)


class KVClamp:
    """Reserves KV blocks for requests, more than there are while few requests use all that they reserved.

    A request that finds nothing reserved gets its blocks in any case, so that one always runs.
    """

    def __init__(self, ledger: KVLedger) -> None:
        self.ledger = ledger
        self.on_room: Callable[[], None] = _nothing
        """Called when there may be room that was not there before."""
        self._spare = int(SPARE_SHARE * ledger.capacity)
        self._requested_fixed = self._requested_growth = 0
        self.overcommit = 0.0
        """Blocks that may be reserved beyond capacity: few requests need all of theirs, and none from the beginning.
        It rises while requests wait for memory and falls with every preemption."""
        self.running = 0
        """Requests that have their blocks."""

    def prefix(self, token_ids: Sequence[int], salt: str) -> Prefix:
        """``token_ids`` in blocks: the same for all requests that continue them."""
        return Prefix.of(token_ids, self.ledger.block_size, salt)

    def needs(self, prefix: Prefix, growth: int) -> Needs:
        """Blocks of a request that writes ``growth`` tokens behind ``prefix``.

        Raises:
            TooLarge: the prefix fits into no empty cache.
        """
        return self.ledger.needs(prefix, growth)

    def add(self, needs: Needs) -> None:
        """Counts a new request as demand."""
        self._requested_fixed += needs.fixed
        self._requested_growth += needs.growth

    def reserve(self, prefix: Prefix, needs: Needs, overcommit: bool = True) -> Hold | None:
        """Reserves blocks for a request; None where there are too few.

        Args:
            overcommit: whether it may have blocks that are not free yet, as far as ``overcommit`` goes; otherwise it
                may have half of what others reserved to grow by, the share that they use on average.
        """
        beyond = self.overcommit if overcommit else self.ledger.growth / 2
        hold = self.ledger.reserve(prefix, needs, self._spare, int(beyond))
        self.running += hold is not None
        return hold

    def remove(self, needs: Needs, hold: Hold | None, others_wait: bool = False) -> None:
        """A request has ended and gives its blocks back.

        Args:
            others_wait: whether it has finished, and others wait for memory.
        """
        self._requested_fixed -= needs.fixed
        self._requested_growth -= needs.growth
        if hold is None:
            return
        hold.release()
        if others_wait:
            more = OVERCOMMIT_STEP * self.ledger.capacity / self.running
            self.overcommit = min(self.overcommit + more, MAX_OVERCOMMIT * self.ledger.capacity)
        self.running -= 1

    def stepped(self, withheld: int, preempted: int) -> None:
        """Called after every step of the engine.

        Args:
            withheld: blocks that no request holds and that cannot be given out. That is so for some steps only, but it
                comes again, and always after the blocks of a step were given out, so room is left for as much as there
                was lately.
            preempted: requests that the engine preempted.
        """
        ledger = self.ledger
        ledger.withheld = max(withheld, int(WITHHELD_DECAY * ledger.withheld))
        if preempted:
            less = OVERCOMMIT_STEP / MAX_PREEMPTED * ledger.capacity * preempted / max(self.running, 1)
            self.overcommit = max(0.0, self.overcommit - less)
        self.on_room()

    @property
    def pressure(self) -> float:
        """Blocks requested over capacity, above 1 where they do not suffice. Of what requests reserve to grow by half
        counts, as they use on average."""
        ledger = self.ledger
        return (ledger.shared + self._requested_fixed + self._requested_growth / 2) / ledger.capacity


def _nothing() -> None:
    """Nobody waits for room."""
