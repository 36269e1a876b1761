"""The budget of a search, in tokens, nodes and wall clock, and the meter that tracks it.

Tokens and nodes are reserved before a branch is requested and settled when it arrives, so a limit is never exceeded,
not even by branches in flight at the same time.
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
        default=None, description="Maximum number of generated tokens."
    )
    # The cap of ``tokens`` bounds what it leaves for generated tokens.
    total_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS), Cap(None)] | None = Field(
        default=None,
        description="Maximum number of tokens of prompts, those that show solutions included, and generated tokens "
        "together. A search is refused before it starts if its first round might not fit.",
    )
    nodes: Annotated[int, Field(ge=1, le=MAX_NODES), Cap("nodes")] | None = Field(
        default=None, description="Maximum number of nodes in the tree."
    )
    seconds: Annotated[float, Field(gt=0.0, le=MAX_SECONDS), Cap("seconds")] | None = Field(
        default=None, description="Wall-clock limit, seconds."
    )
    # The cap of ``max_thinking_tokens`` bounds it too.
    thinking: Annotated[int, Field(ge=0, le=MAX_TOKENS), Cap(None)] | None = Field(
        default=None,
        description="Maximum thinking tokens of a path: then its thinking is closed, and the solution follows. "
        "0: no thinking.",
    )

    def behind(self, prompt_tokens: int) -> "Budget":
        """The budget of a search behind such a prompt: ``total_tokens`` are those that are left."""
        if self.total_tokens is None:
            return self
        return self.model_copy(update={"total_tokens": max(1, self.total_tokens - prompt_tokens)})


@dataclass
class Limit:
    """One limit and how much of it is used."""

    kind: LimitKind
    limit: float
    """Infinite if the budget sets no limit."""
    usage: float = 0
    reserved: float = 0

    @property
    def remaining(self) -> float:
        """The amount that can still be reserved."""
        return self.limit - self.usage - self.reserved

    def reached(self) -> LimitReached:
        return LimitReached(self.kind, self.usage, self.limit)


class Cost(NamedTuple):
    """Tokens and nodes that one branch may use or has used."""

    tokens: int
    nodes: int


NOTHING = Cost(0, 0)


class BudgetMeter:
    """Tracks the use of one search's budget. ``clock`` returns seconds; time counts from construction."""

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self._generated = math.inf if budget.tokens is None else budget.tokens
        self._total = math.inf if budget.total_tokens is None else budget.total_tokens
        self.tokens = Limit(LimitKind.TOKENS, min(self._generated, self._total))
        self.nodes = Limit(LimitKind.NODES, math.inf if budget.nodes is None else budget.nodes)
        self._seconds = math.inf if budget.seconds is None else budget.seconds
        self._clock = clock
        self._start = clock()
        self._short: Limit | None = None
        """The limit that the last call of ``reserve`` was short of."""

    @property
    def seconds(self) -> Limit:
        """The wall clock as of now."""
        return Limit(LimitKind.SECONDS, self._seconds, self._clock() - self._start)

    def read(self, tokens: int) -> None:
        """Charges ``total_tokens`` with a further prompt of this length; a negative one gives it back."""
        self._total -= tokens
        self.tokens.limit = min(self._generated, self._total)

    def reserve(self, asked: Sequence[Cost], kept: Cost = NOTHING, least_tokens: int = 1) -> list[Cost]:
        """Reserves for as many of the branches in ``asked`` as the budget allows, in order.

        Returns one reservation per granted branch, for the first of ``asked``, in full. A branch gets a smaller
        reservation than it asks for only when nothing else is reserved. Otherwise the unused part of another
        reservation may still come back, and a truncated step would be wasted.

        Args:
            kept: what has to remain of the budget if the branch takes no more than ``least_tokens``. A branch that
                takes more is not cut short for it: that would change what the search decides.
            least_tokens: what the branch is expected to take.
        """
        reserved: list[Cost] = []
        self._short = None
        for ask in asked:
            tokens, nodes = self.tokens.remaining - kept.tokens, self.nodes.remaining - kept.nodes
            if tokens < ask.tokens or nodes < ask.nodes:
                self._short = self.nodes if nodes < 1 else self.tokens
                too_small = tokens < min(least_tokens, ask.tokens) or nodes < 1
                if too_small or self.tokens.reserved or self.nodes.reserved:
                    break
            reservation = Cost(int(min(ask.tokens, self.tokens.remaining)), int(min(ask.nodes, self.nodes.remaining)))
            self._reserve(reservation, 1)
            reserved.append(reservation)
        return reserved

    def settle(self, reserved: Cost, used: Cost) -> None:
        """Releases a branch's reservation and charges what it used."""
        self._reserve(reserved, -1)
        self.charge(used)

    def charge(self, used: Cost) -> None:
        """Charges tokens and nodes without a reservation, such as those of a resumed tree."""
        self.tokens.usage += used.tokens
        self.nodes.usage += used.nodes

    def reserve_again(self, reserved: Cost) -> None:
        """Reserves unconditionally: the reservation was granted by another meter before the tree was resumed."""
        self._reserve(reserved, 1)

    def exhausted(self) -> LimitReached | None:
        """The limit that prevents reserving even one token in one node, or else the one that the last call of
        ``reserve`` was short of; None if there is none."""
        for limit in (self.tokens, self.nodes, self.seconds):
            least = 0.0 if limit.kind is LimitKind.SECONDS else 1
            if limit.remaining < least:
                return limit.reached()
        return None if self._short is None else self._short.reached()

    def _reserve(self, cost: Cost, sign: int) -> None:
        self.tokens.reserved += sign * cost.tokens
        self.nodes.reserved += sign * cost.nodes
