"""What a search may spend: tokens, nodes and wall clock, and how much of each is left.

Tokens and nodes are reserved before a branch is launched and settled when it arrives, so a limit is never
exceeded, not even by branches in flight at the same time.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from search.caps import Cap
from search.errors import LimitKind, LimitReached

MAX_TOKENS = 10_000_000
MAX_NODES = 100_000
MAX_SECONDS = 86_400.0


class Budget(BaseModel):
    """Limits of one search. None: not limited by this."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS), Cap("tokens")] | None = Field(
        default=None, description="Most tokens generated."
    )
    nodes: Annotated[int, Field(ge=1, le=MAX_NODES), Cap("nodes")] | None = Field(
        default=None, description="Most nodes in the tree."
    )
    seconds: Annotated[float, Field(gt=0.0, le=MAX_SECONDS), Cap("seconds")] | None = Field(
        default=None, description="Wall clock."
    )


@dataclass
class Limit:
    """One limit and how much of it is used."""

    kind: LimitKind
    limit: float
    """Infinite where nothing was asked for."""
    usage: float = 0
    reserved: float = 0

    @property
    def remaining(self) -> float:
        """What can still be reserved."""
        return self.limit - self.usage - self.reserved

    def reached(self) -> LimitReached:
        return LimitReached(self.kind, self.usage, self.limit)


class Cost(NamedTuple):
    """What one branch may spend or has spent."""

    tokens: int
    nodes: int


class BudgetMeter:
    """The account of one search. ``clock`` gives seconds, counted from the meter's making."""

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self.tokens = Limit(LimitKind.TOKENS, math.inf if budget.tokens is None else budget.tokens)
        self.nodes = Limit(LimitKind.NODES, math.inf if budget.nodes is None else budget.nodes)
        self._seconds = math.inf if budget.seconds is None else budget.seconds
        self._clock = clock
        self._start = clock()

    @property
    def seconds(self) -> Limit:
        """The wall clock as of now."""
        return Limit(LimitKind.SECONDS, self._seconds, self._clock() - self._start)

    def reserve(self, asked: Sequence[Cost]) -> list[Cost]:
        """Reserves for as many of the branches ``asked`` for as can be paid, in order.

        Returns one cost for each branch reserved: the first ones of ``asked``, in full. A branch gets less
        than it asks for only when nothing at all is reserved: while something is, its unused part may
        still come back, and a step cut short is a step wasted.
        """
        reserved: list[Cost] = []
        for ask in asked:
            reservation = Cost(int(min(ask.tokens, self.tokens.remaining)), int(min(ask.nodes, self.nodes.remaining)))
            if reservation != ask and (min(reservation) < 1 or self.tokens.reserved or self.nodes.reserved):
                break
            self._reserve(reservation, 1)
            reserved.append(reservation)
        return reserved

    def settle(self, reserved: Cost, used: Cost) -> None:
        """Charges what a branch used and gives the rest of its reservation back."""
        self._reserve(reserved, -1)
        self.charge(used)

    def charge(self, used: Cost) -> None:
        """Charges what was used before this account was opened."""
        self.tokens.usage += used.tokens
        self.nodes.usage += used.nodes

    def reserve_again(self, reserved: Cost) -> None:
        """Reserves what another account had reserved."""
        self._reserve(reserved, 1)

    def exhausted(self) -> LimitReached | None:
        """The limit that keeps even one token in one node from being reserved; None while none does."""
        for limit in (self.tokens, self.nodes, self.seconds):
            least = 0.0 if limit.kind is LimitKind.SECONDS else 1
            if limit.remaining < least:
                return limit.reached()
        return None

    def _reserve(self, cost: Cost, sign: int) -> None:
        self.tokens.reserved += sign * cost.tokens
        self.nodes.reserved += sign * cost.nodes
