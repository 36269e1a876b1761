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
LEAST_USE = 0.25
"""Never fewer of the blocks for what is written are expected to be used."""
USE_FORGOTTEN = SPARE_SHARE
"""So much less is expected to be used than was at most, once as many branches have finished as go on: those that began
together also grow together, however long they are, and then what is spare still suffices."""
USE_PREEMPTED = 1.1
"""So many times as much is expected to be used once some were preempted."""
LATE_REPORTS = 3
"""So many reports of the engine may still count what branches held that were given up."""
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
        self, clamp: "KVClamp", prefix: Prefix, needs: Needs, speculative: bool, wake: Callable[[], None]
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
        self._late_reports = 0
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
        """A ticket that is granted; None where ``ask`` would give one that has to wait, and nothing is asked.

        Raises:
            TooLarge: it could never be granted.
        """
        ticket = Ticket(self, prefix, self.ledger.needs(prefix, growth), speculative, _nothing)
        if not self._passes(order, ticket):
            return None
        self._want(ticket)
        return ticket

    def ask(
        self, order: int, prefix: Prefix, growth: int, wake: Callable[[], None], speculative: bool = False
    ) -> Ticket:
        """A ticket, perhaps granted already.

        Args:
            order: lower goes first; equals by arrival.
            growth: tokens to be ready for.
            wake: called when it is granted later.
            speculative: to be granted only while plenty is free.

        Raises:
            TooLarge: it could never be granted.
        """
        ticket = Ticket(self, prefix, self.ledger.needs(prefix, growth), speculative, wake)
        self._want(ticket)
        if self._passes(order, ticket):
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
            if not finished:
                self._late_reports = LATE_REPORTS
            elif self._tells:
                self.ledger.use = max(LEAST_USE, self.ledger.use * (1.0 - USE_FORGOTTEN / self.going))
            self.going -= 1
        else:
            self.waiting -= 1
        self._advance()

    def stepped(self, used: int, withheld: int, preempted: bool) -> None:
        """Told after every step of the engine.

        Args:
            used: blocks that are not free.
            withheld: of these, those that are held by no branch and cannot be given out. That is so for some steps
                only, but it comes again, and always after the blocks of a step were given out: room is left for as much
                as there was lately.
            preempted: whether branches had to give theirs back: fewer were there than were needed.
        """
        ledger = self.ledger
        ledger.withheld = max(withheld, int(WITHHELD_LATELY * ledger.withheld))
        if preempted:
            ledger.use = min(1.0, USE_PREEMPTED * ledger.use)
        elif self._late_reports:
            self._late_reports -= 1
        elif self._tells:
            use = (used - withheld - ledger.held) / max(ledger.growth, 1)
            ledger.use = min(1.0, max(use, ledger.use))
        self._advance()

    @property
    def _tells(self) -> bool:
        """Whether what is used now says how much of what is promised will be: of few branches any share may be."""
        return self.ledger.held + self.ledger.growth > self.ledger.capacity // 2

    def _advance(self) -> None:
        while self._queue:
            first = self._queue[0][2]
            if not first.closed:
                if not self._granted(first):
                    return
                self.waiting -= 1
                first.wake()
            heapq.heappop(self._queue)

    @property
    def pressure(self) -> float:
        """The blocks that are wanted over those there are, more than 1 where they do not suffice."""
        ledger = self.ledger
        return (ledger.shared + self._wanted_fixed + ledger.use * self._wanted_growth) / ledger.capacity

    def _want(self, ticket: Ticket) -> None:
        if not ticket.speculative:
            self.wanted += 1
            self._wanted_fixed += ticket.needs.fixed
            self._wanted_growth += ticket.needs.growth

    def _passes(self, order: int, ticket: Ticket) -> bool:
        """Grants it now, unless others come first or there is no room."""
        return (not self._queue or order < self._queue[0][0]) and self._granted(ticket)

    def _granted(self, ticket: Ticket) -> bool:
        spare = self._speculative_spare if ticket.speculative else self._spare
        hold = self.ledger.reserve(ticket.prefix, ticket.needs, spare)
        if hold is None:
            return False
        ticket.grant(hold)
        self.going += 1
        return True


def _nothing() -> None:
    """Wakes nobody."""
