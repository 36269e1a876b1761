"""Holds back the branches for which an engine has no KV blocks, until it has."""

import heapq
from collections.abc import Callable, Sequence
from itertools import count

from kvstore.ledger import Hold, KVLedger, Needs, Prefix
from kvstore.running_quantile import RunningQuantile

SPARE_SHARE = 0.02
"""Of the blocks, for steps that become longer than was thought."""
SPECULATIVE_SHARE = 0.25
"""Of the blocks, left free by what is only wanted where there is room."""
LENGTHS = 512
"""So many of the last ones say how long the next will be."""
QUANTILE = 0.9
WITHHELD_LATELY = 0.98
"""How fast it is forgotten, from one step of the engine to the next, how many blocks its cache held."""
PREEMPTED = 0.1
"""Of the branches, how many an engine may put back. That costs little where steps are short: they begin again behind a
prefix that is mostly still cached; an engine that never has to do it has blocks that nobody uses."""
AHEAD_MOST = 1.0
"""Times the blocks: so many may be promised besides. What the engine has no room for waits in its queue and begins when
another has ended, not when the replica has heard of it and sends the next."""
AHEAD_RISES = 0.02
"""By so much of the blocks more is promised ahead while branches wait, once as many have finished as go on."""
FEWEST = 16
"""Until so many are known each may become as long as it is allowed to."""


class Lengths:
    """How long what is written becomes: a running quantile, in tokens."""

    def __init__(self) -> None:
        self._quantile: RunningQuantile[int] = RunningQuantile(QUANTILE, LENGTHS, FEWEST)

    def saw(self, tokens: int) -> None:
        self._quantile.saw(tokens)

    def expected(self, most: int) -> int:
        """What to be ready for where ``most`` tokens are allowed."""
        usual = self._quantile.value
        return most if usual is None else min(most, usual)


class Ticket:
    """A branch that has its blocks or waits for them."""

    __slots__ = ("_clamp", "_hold", "closed", "needs", "prefix", "speculative", "wake")

    def __init__(
        self, clamp: "KVClamp", prefix: Prefix, needs: Needs, speculative: bool, wake: "Callable[[Ticket], None]"
    ) -> None:
        self._clamp = clamp
        self._hold: Hold | None = None
        self.prefix = prefix
        self.needs = needs
        self.speculative = speculative
        self.wake = wake
        self.closed = False

    @property
    def granted(self) -> bool:
        """Whether the engine has room for the branch."""
        return self._hold is not None

    def grant(self, hold: Hold) -> None:
        self._hold = hold

    def close(self, finished: bool = False) -> None:
        """The branch has ``finished``, or it failed, or is no longer wanted. A second time does nothing."""
        if self.closed:
            return
        self.closed = True
        if self._hold is not None:
            self._hold.release()
        self._clamp.closed(self, finished)


class KVClamp:
    """Grants branches their blocks in order; what does not fit waits, and holds back whatever is behind it.

    A branch that finds nothing promised to anybody is granted in any case, so that one always goes on.
    """

    def __init__(self, ledger: KVLedger) -> None:
        self.ledger = ledger
        self._spare = int(SPARE_SHARE * ledger.capacity)
        self._speculative_spare = int(SPECULATIVE_SHARE * ledger.capacity)
        self._queue: list[tuple[int, int, Ticket]] = []
        self._arrivals = count()
        self.wanted = 0
        """Branches that have their blocks or wait for them, but for speculative ones."""
        self._wanted_fixed = self._wanted_growth = 0
        """Of those, the blocks that each has or wants for itself."""
        self.ahead = 0.0
        """Blocks that are promised though they are not there: few branches need all that they were promised, and none
        from the beginning. More while others wait for them, fewer whenever some were put back."""
        self.going = 0
        """Branches that have their blocks."""
        self.waiting = 0
        """Branches that are held back."""
        self.held_back = 0
        """How many ever were."""

    def prefix(self, token_ids: Sequence[int], salt: str) -> Prefix:
        """``token_ids`` as ``ask`` wants them: the same for all branches that continue them."""
        return Prefix.of(token_ids, self.ledger.block_size, salt)

    def ask_now(self, order: int, prefix: Prefix, growth: int, speculative: bool = False) -> Ticket | None:
        """A ticket that is granted, with blocks that are free; None where there are none, and nothing is asked.

        Raises:
            TooLarge: it could never be granted.
        """
        ticket = Ticket(self, prefix, self.ledger.needs(prefix, growth), speculative, _nothing)
        if not self._passes(order, ticket, self._unused):
            return None
        self._want(ticket)
        return ticket

    def ask(
        self, order: int, prefix: Prefix, growth: int, wake: Callable[[Ticket], None], speculative: bool = False
    ) -> Ticket:
        """A ticket, perhaps granted already.

        Args:
            order: lower goes first; equals by arrival.
            growth: tokens to be ready for.
            wake: called with it when it is granted later.
            speculative: to be granted only while plenty is free.

        Raises:
            TooLarge: it could never be granted.
        """
        ticket = Ticket(self, prefix, self.ledger.needs(prefix, growth), speculative, wake)
        self._want(ticket)
        if self._passes(order, ticket, self.ahead):
            return ticket
        heapq.heappush(self._queue, (order, next(self._arrivals), ticket))
        self.waiting += 1
        self.held_back += 1
        return ticket

    def closed(self, ticket: Ticket, finished: bool) -> None:
        """Called by a ticket that was closed: its room is the next one's."""
        if not ticket.speculative:
            self.wanted -= 1
            self._wanted_fixed -= ticket.needs.fixed
            self._wanted_growth -= ticket.needs.growth
        if ticket.granted:
            if finished and self._queue and not self._queue[0][2].speculative:
                more = AHEAD_RISES * self.ledger.capacity / self.going
                self.ahead = min(self.ahead + more, AHEAD_MOST * self.ledger.capacity)
            self.going -= 1
        else:
            self.waiting -= 1
        self._advance()

    def stepped(self, withheld: int, preempted: int) -> None:
        """Told after every step of the engine.

        Args:
            withheld: blocks that are held by no branch and cannot be given out. That is so for some steps only, but it
                comes again, and always after the blocks of a step were given out: room is left for as much as there was
                lately.
            preempted: branches that had to give theirs back: fewer were there than were needed.
        """
        ledger = self.ledger
        ledger.withheld = max(withheld, int(WITHHELD_LATELY * ledger.withheld))
        if preempted:
            fewer = AHEAD_RISES / PREEMPTED * ledger.capacity * preempted / max(self.going, 1)
            self.ahead = max(0.0, self.ahead - fewer)
        self._advance()

    def _advance(self) -> None:
        while self._queue:
            first = self._queue[0][2]
            if not first.closed:
                if not self._granted(first, self.ahead):
                    return
                self.waiting -= 1
                first.wake(first)
            heapq.heappop(self._queue)

    @property
    def _unused(self) -> float:
        """Blocks that were promised for what is written and are free still: half of them, on the average."""
        return self.ledger.growth / 2

    @property
    def pressure(self) -> float:
        """The blocks that are wanted over those there are, more than 1 where they do not suffice; half of what branches
        grow by, as they have on the average."""
        ledger = self.ledger
        return (ledger.shared + self._wanted_fixed + self._wanted_growth / 2) / ledger.capacity

    def _want(self, ticket: Ticket) -> None:
        if not ticket.speculative:
            self.wanted += 1
            self._wanted_fixed += ticket.needs.fixed
            self._wanted_growth += ticket.needs.growth

    def _passes(self, order: int, ticket: Ticket, ahead: float) -> bool:
        """Grants it now, unless others come first or there is no room."""
        return (not self._queue or order < self._queue[0][0]) and self._granted(ticket, ahead)

    def _granted(self, ticket: Ticket, ahead: float) -> bool:
        spare, ahead = (self._speculative_spare, self._unused) if ticket.speculative else (self._spare, ahead)
        hold = self.ledger.reserve(ticket.prefix, ticket.needs, spare, int(ahead))
        if hold is None:
            return False
        ticket.grant(hold)
        self.going += 1
        return True


def _nothing(_: Ticket) -> None:
    """Wakes nobody."""
