"""Admission at one controller: a limited number of slots, and a queue for them. Independent of HTTP and Ray Serve."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from search.run.report import SearchCost


class Refused(StrEnum):
    """Why a request gets no slot."""

    PLACES = "places"
    """All slots are taken and the queue is full."""
    FLEX = "flex"
    """The remaining slots are reserved for requests that are not flex."""
    QUEUE = "queue"
    """No slot came free before the queue timeout."""
    OWNER = "owner"
    """The owner's quota of slots is used up."""


class NoSlot(RuntimeError):
    """No slot is available now. The same request may be sent again later."""

    def __init__(self, reason: Refused, most: int, retry_after_s: int) -> None:
        """``most``: the limit that was reached: of all slots, of flex requests, or the owner's quota."""
        super().__init__(reason, most, retry_after_s)
        self.reason = reason
        self.most = most
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        if self.reason is Refused.OWNER:
            return f"this API key has reached its limit of {self.most} concurrent requests (limits.places)"
        if self.reason is Refused.FLEX:
            return f"flex requests are admitted only while fewer than {self.most} slots are taken; try again shortly"
        waited = ", and none became free in time" if self.reason is Refused.QUEUE else ""
        return f"all {self.most} slots for searches are taken{waited}; try again shortly"


@dataclass(frozen=True)
class Owner:
    """An owner of requests, with its quota of slots."""

    name: str
    slots: int | None = None
    """Quota of slots held or queued for at once; None: no quota."""


@dataclass(eq=False)
class Slot:
    """A request's right to work at the controller, and the cost of the request."""

    owner: Owner
    since: float = field(default_factory=time.monotonic)
    """When the request got the slot, monotonic seconds."""
    charged: int = 0
    """Prompt tokens, and tokens that were generated, or computed again, outside of searches."""
    searches: list[SearchCost] = field(default_factory=list)
    """Costs of the request's searches."""

    @property
    def tokens(self) -> int:
        """Tokens of the request so far: those ``charged``, and of its searches the generated tokens, critiques and
        unused tokens written ahead included, the tokens that the step hook added, and the prompts of contexts."""
        return self.charged + sum(
            cost.generated_tokens
            + cost.prm_generated_tokens
            + cost.unused_tokens
            + cost.hook_tokens
            + cost.context_prompt_tokens
            for cost in self.searches
        )


class Slots:
    """The slots of one controller, with a first-in, first-out queue. For use in one event loop.

    Part of the slots and of the queue is reserved for requests that are not flex. Flex requests in the queue are
    served last.
    """

    def __init__(
        self,
        count: int,
        queue: int = 0,
        queue_s: float = 0.0,
        on_freed: Callable[[], None] = lambda: None,
        flex_share: float = 1.0,
    ) -> None:
        """
        Args:
            count: number of slots.
            queue: length of the queue for them.
            queue_s: queue timeout, seconds.
            on_freed: called whenever a slot is given back.
            flex_share: a flex request gets a slot while less than this share of the slots (at least one) is taken,
                and is queued while less than this share of the queue is used.
        """
        self._on_freed = on_freed
        self._held: dict[Slot, None] = {}
        """Slots in use, oldest first."""
        self._promised = 0
        """Slots assigned to queued requests whose tasks have not resumed yet."""
        self._waiting: dict[bool, dict[asyncio.Future[None], None]] = {False: {}, True: {}}
        """Queued requests by whether they are flex; oldest first."""
        self._owned: Counter[str] = Counter()
        """Slots held or waited for, by owner."""
        self.resize(count, queue, queue_s, flex_share)

    def resize(self, count: int, queue: int, queue_s: float, flex_share: float = 1.0) -> None:
        """Changes the limits. Requests that hold a slot or wait in the queue are not affected."""
        self.count = count
        """Number of slots."""
        self._queue_s = queue_s
        self._most = {False: count, True: max(1, int(count * flex_share))}
        """Limit of taken slots, by whether the next request is flex."""
        self._most_waiting = {False: queue, True: int(queue * flex_share)}
        self._pass_on()

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def check(self, owner: Owner, flex: bool = False) -> None:
        """Checks whether a request of this owner would be admitted or queued now. Changes nothing.

        Raises:
            NoSlot: it would be refused.
        """
        if owner.slots is not None and self._owned[owner.name] >= owner.slots:
            raise NoSlot(Refused.OWNER, owner.slots, self._retry_after_s())
        if self._is_full(flex) and self.waiting >= self._most_waiting[flex]:
            raise NoSlot(Refused.FLEX if flex else Refused.PLACES, self._most[flex], self._retry_after_s())

    @asynccontextmanager
    async def hold(self, owner: Owner, flex: bool = False) -> AsyncIterator[Slot]:
        """Holds a slot until the end of the block. If all are taken, waits in the queue.

        Raises:
            NoSlot: the request was refused, or no slot came free in time.
        """
        self.check(owner, flex)
        self._owned[owner.name] += 1
        try:
            if self._is_full(flex):
                await self._wait(flex)
            slot = Slot(owner)
            self._held[slot] = None
            try:
                yield slot
            finally:
                del self._held[slot]
                self._pass_on()
                self._on_freed()
        finally:
            self._owned[owner.name] -= 1
            if not self._owned[owner.name]:
                del self._owned[owner.name]

    def check_integrity(self) -> list[str]:
        """Leaked slots and queue entries, when no request is at work; empty when all is well."""
        now = time.monotonic()
        problems = [f"a slot has been held for {now - slot.since:.0f} s" for slot in self._held]
        left = {"wait for a slot": self.waiting, "slots are promised": self._promised}
        return problems + [f"{count} {what}" for what, count in left.items() if count]

    def _is_full(self, flex: bool) -> bool:
        return len(self._held) + self._promised >= self._most[flex]

    async def _wait(self, flex: bool) -> None:
        """Waits in the queue until a slot is assigned.

        Raises:
            NoSlot: no slot came free in time.
        """
        assigned = asyncio.get_running_loop().create_future()
        waiting = self._waiting[flex]
        waiting[assigned] = None
        try:
            async with asyncio.timeout(self._queue_s):
                await assigned
        except BaseException as error:
            if waiting.pop(assigned, assigned) is assigned:
                # A slot was assigned already: pass it on.
                self._promised -= 1
                self._pass_on()
            if isinstance(error, TimeoutError):
                reason = Refused.FLEX if flex else Refused.QUEUE
                raise NoSlot(reason, self._most[flex], self._retry_after_s()) from None
            raise
        self._promised -= 1

    def _pass_on(self) -> None:
        """Assigns free slots to queued requests, the oldest first, flex requests last."""
        for flex, waiting in self._waiting.items():
            while waiting and not self._is_full(flex):
                assigned = next(iter(waiting))
                del waiting[assigned]
                self._promised += 1
                if not assigned.done():
                    assigned.set_result(None)

    def _retry_after_s(self) -> int:
        """Estimated seconds until a slot comes free: half the age of the oldest request, within 1 and 30 s."""
        oldest = next(iter(self._held), None)
        age = 0.0 if oldest is None else time.monotonic() - oldest.since
        return round(min(30.0, max(1.0, age / 2)))
