"""Admission by KV memory: reserves blocks for requests, with a bounded overcommit."""

from collections.abc import Sequence

from kvstore.memory.ledger import Hold, KVLedger, Needs, Prefix
from kvstore.memory.running_quantile import RunningQuantile

SPARE_SHARE = 0.02
"""Share of the blocks that stays free for steps that become longer than expected."""
LENGTH_WINDOW = 512
"""Window of the step-length quantile."""
MIN_LENGTHS = 16
"""Samples required before the quantile is used; until then a step is expected to use its ``max_tokens``."""
QUANTILE = 0.9
WITHHELD_DECAY = 0.98
"""Decay, per engine step, of the number of blocks that the cache connector withholds."""
MAX_PREEMPTED = 0.1
"""Maximum share of requests that the engine preempts in the long run. A preemption costs little where steps are short:
the request starts again behind a prefix that is mostly still cached. An engine that never preempts leaves blocks
unused."""
MAX_OVERCOMMIT = 1.0
"""Maximum overcommit, as a multiple of capacity. Overcommitted requests wait in the engine's own queue and start as
soon as another request ends, without a round trip to the replica."""
OVERCOMMIT_STEP = 0.02
"""Rise of the overcommit, as a share of capacity, by the time that as many requests have finished as are running."""

AHEAD_FREE = 0.2
"""Share of the blocks that requests written ahead leave free."""


class StepLengths:
    """Expected output length of a request, in tokens: a running quantile."""

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
    """Reserves KV blocks for requests, and overcommits while few requests use their whole reservation.

    A request gets its blocks in any case if no others are reserved, so at least one request always runs.
    """

    def __init__(self, ledger: KVLedger) -> None:
        self.ledger = ledger
        self._spare = int(SPARE_SHARE * ledger.capacity)
        self._requested_fixed = self._requested_growth = 0
        self.overcommit = 0.0
        """Blocks that may be reserved beyond capacity: few requests need their whole reservation, and none at its
        start. It rises while requests wait for memory and falls with every preemption."""
        self.running = 0
        """Number of requests with a reservation."""

    def prefix(self, token_ids: Sequence[int], salt: str) -> Prefix:
        """Splits ``token_ids`` into blocks. All requests that continue these tokens can use the same result."""
        return Prefix.of(token_ids, self.ledger.block_size, salt)

    def needs(self, prefix: Prefix, growth: int) -> Needs:
        """Blocks of a request that writes ``growth`` tokens behind ``prefix``.

        Raises:
            TooLarge: the prefix does not fit into an empty cache.
        """
        return self.ledger.needs(prefix, growth)

    def add(self, needs: Needs) -> None:
        """Counts a new request as demand."""
        self._requested_fixed += needs.fixed
        self._requested_growth += needs.growth

    def reserve(self, prefix: Prefix, needs: Needs, overcommit: bool = True) -> Hold | None:
        """Reserves blocks for a request; None if there are too few.

        Args:
            overcommit: whether the request may use the whole ``self.overcommit``. If not, the overcommit is half of the
                growth that other requests reserved: on average half of a reservation stays unused.
        """
        beyond = self.overcommit if overcommit else self.ledger.growth / 2
        hold = self.ledger.reserve(prefix, needs, self._spare, int(beyond))
        self.running += hold is not None
        return hold

    def remove(self, needs: Needs, hold: Hold | None, others_wait: bool = False) -> None:
        """Releases the blocks of a request that has ended.

        Args:
            others_wait: whether the request has finished and others wait for memory; the overcommit then rises.
        """
        self._requested_fixed -= needs.fixed
        self._requested_growth -= needs.growth
        if hold is None:
            return
        if others_wait:
            more = OVERCOMMIT_STEP * self.ledger.capacity / self.running
            self.overcommit = min(self.overcommit + more, MAX_OVERCOMMIT * self.ledger.capacity)
        self.release(hold)

    def reserve_ahead(self, prefix: Prefix, needs: Needs) -> Hold | None:
        """Reserves blocks for a request that nobody has asked for; None if less than `AHEAD_FREE` would stay free. It
        is no demand until it is counted with ``add``."""
        hold = self.ledger.reserve(prefix, needs, int(AHEAD_FREE * self.ledger.capacity))
        self.running += hold is not None
        return hold

    def release(self, hold: Hold) -> None:
        """Releases the blocks of a request that is not counted as demand."""
        hold.release()
        self.running -= 1

    def stepped(self, withheld: int, preempted: int) -> None:
        """Records an engine step; to be called after every one.

        Args:
            withheld: blocks that no request holds and that the engine cannot allocate. The number varies from step to
                step and is known only after a step's blocks are allocated, so its recent maximum is kept free.
            preempted: requests that the engine preempted.
        """
        ledger = self.ledger
        ledger.withheld = max(withheld, int(WITHHELD_DECAY * ledger.withheld))
        if preempted:
            less = OVERCOMMIT_STEP / MAX_PREEMPTED * ledger.capacity * preempted / max(self.running, 1)
            self.overcommit = max(0.0, self.overcommit - less)

    @property
    def pressure(self) -> float:
        """Requested blocks over capacity; above 1 if memory is too small for the demand. Growth counts half: requests
        use half of it on average."""
        ledger = self.ledger
        return (ledger.shared + self._requested_fixed + self._requested_growth / 2) / ledger.capacity
