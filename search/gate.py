"""Admission for many searches in one process: how many branches are in flight, and who is next.

A gate holds no task and no thread. A call waits inside the request that makes it, so cancelling the
request takes it out of the queue.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

from search.ports import Headroom, Lane
from search.reach import Reach

UNTOLD = 256
"""Branches in flight before a generator has said what it can write."""
LEAST_PART = 16
"""A call in parts takes no fewer branches at a time: each part becomes a call to a generator. Of a small capacity it is
a sixth, so that nobody waits until most has finished, and of a large one a 16th."""
PASSED_BY = 7
"""A call that yields is passed by so many times its own branches: an eighth of what is let in is of those that yield,
if always somebody else waits, too."""


class Slot:
    """Room in a gate for some branches, given back one by one as they finish."""

    def __init__(self, gate: "Gate", owner: Hashable, weight: int) -> None:
        self._gate = gate
        self.owner = owner
        self.weight = weight
        """Branches still held."""

    def release(self, count: int = 1) -> None:
        """Gives back the room of ``count`` branches, of no more than are still held."""
        count = min(count, self.weight)
        self.weight -= count
        self._gate._leave(self.owner, count)


@dataclass(eq=False)
class _Waiter:
    lane: Lane
    arrival: int
    weight: int
    in_parts: bool
    slot: Slot
    admitted: asyncio.Future[None]


class Gate:
    """Admits calls while at most ``capacity`` branches are in flight: a number, or what the generators have room for.

    By lane; of a lane whoever has least in flight, then by arrival: while that call waits for room, none behind it is
    admitted, however small. Speculative calls are admitted only up to ``speculative_share`` of the capacity. A call
    that is larger than what it may have is admitted alone, or in parts if it says so.

    Searches that yield come behind all others, but not for ever: see `PASSED_BY`.

    Searches share alike. What an owner asks for beyond its fair share (the capacity by the number of owners, and one
    that may yet come) goes behind the first steps of the others, and a quarter of the capacity is not for it: they need
    not wait until some of it has finished.
    """

    def __init__(self, capacity: int | None = None, speculative_share: float = 0.75) -> None:
        """``capacity``: None to follow what `saw` is told."""
        if not 0.0 <= speculative_share <= 1.0:
            raise ValueError(f"speculative_share must be in [0, 1], got {speculative_share}")
        self.name = uuid4().hex
        """What calls that it let in say of it (`search.ports.ExpandRequest`)."""
        self._speculative_share = speculative_share
        self._held: Counter[Hashable] = Counter()
        self.usage = 0
        """Branches in flight."""
        self._waiters: list[_Waiter] = []
        self._smallest: int | None = None
        """The least room with which one of the waiters could start; None: to be found anew."""
        self._arrivals = 0
        self._passed = 0
        """Branches that were let in past calls that yield, and that none of these has made good."""
        self._reach: Reach | None = None
        self.resize(capacity)

    def resize(self, capacity: int | None) -> None:
        """From now on as if made like this; what is in flight beyond that stays until it has finished.

        Raises:
            ValueError: there would be no room at all.
        """
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        if capacity is not None:
            self._reach = None
            self._set(capacity)
        elif self._reach is None:
            self._reach = Reach()
            self._set(UNTOLD)

    def saw(self, headroom: Headroom) -> None:
        """A generator has told what it can write at once; the capacity follows, unless it was given."""
        if self._reach is None:
            return
        capacity = self._reach.saw(headroom, asyncio.get_running_loop().time())
        if capacity is not None and capacity != self.capacity:
            self._set(capacity)

    def _set(self, capacity: int) -> None:
        self.capacity = capacity
        self._room = dict.fromkeys(Lane, capacity) | {Lane.SPECULATIVE: int(capacity * self._speculative_share)}
        self._least_part = max(1, capacity // 16, min(LEAST_PART, capacity // 6))
        self._open_room = capacity - capacity // 4
        """Of it even those may take who have their share."""
        self._smallest = None
        self._serve()

    @property
    def waiting(self) -> dict[Lane, int]:
        """Calls that wait, by lane."""
        waiting = Counter(waiter.lane for waiter in self._waiters)
        return {lane: waiting[lane] for lane in sorted(Lane)}

    @asynccontextmanager
    async def admit(
        self, lane: Lane, weight: int, owner: Hashable = None, in_parts: bool = False
    ) -> AsyncIterator[Slot]:
        """Waits until ``weight`` branches may start; gives back on leaving what was not released.

        Args:
            owner: whose they are; those without are somebody's of their own.
            in_parts: the slot may be for fewer branches than asked for; the caller asks again for the others.
        """
        if weight < 1:
            raise ValueError(f"weight must be at least 1, got {weight}")
        self._arrivals += 1
        slot = Slot(self, self._arrivals if owner is None else owner, 0)
        admitted = asyncio.get_running_loop().create_future()
        waiter = _Waiter(lane, self._arrivals, weight, in_parts, slot, admitted)
        self._waiters.append(waiter)
        self._smallest = None
        self._serve()
        try:
            await admitted
            yield slot
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                self._smallest = None
                self._serve()
            # Also when the wait was cancelled just after it was served: the room was taken then.
            slot.release(slot.weight)

    def _leave(self, owner: Hashable, count: int) -> None:
        self.usage -= count
        self._held[owner] -= count
        if not self._held[owner]:
            del self._held[owner]
        self._serve()

    def _serve(self) -> None:
        while self._waiters:
            # Called for every branch that finishes: who waits is looked at only where there may be room for somebody.
            if self._smallest is None:
                self._smallest = min(map(self._least, self._waiters))
            if self.usage and self.capacity - self.usage < self._smallest:
                return
            owners = self._held.keys() | {waiter.slot.owner for waiter in self._waiters}
            share = self.capacity // (len(owners) + 1)
            waiter = self._next(share)
            granted = self._grant(waiter, share)
            if not granted:
                return
            self._waiters.remove(waiter)
            self._smallest = None
            self._count(waiter.lane, granted)
            waiter.slot.weight = granted
            self.usage += granted
            self._held[waiter.slot.owner] += granted
            if not waiter.admitted.done():
                waiter.admitted.set_result(None)

    def _next(self, share: int) -> _Waiter:
        """Whose turn it is."""

        def turn(waiter: _Waiter) -> tuple[int, int, int]:
            return self._turn(waiter, share)

        if self._passed and (yielding := [waiter for waiter in self._waiters if waiter.lane.yields]):
            first = min(yielding, key=turn)
            if self._passed >= PASSED_BY * first.weight:
                return first
        return min(self._waiters, key=turn)

    def _count(self, lane: Lane, granted: int) -> None:
        """Keeps account of who was let in past whom."""
        if not any(waiter.lane.yields for waiter in self._waiters):
            self._passed = 0
        elif lane.yields:
            self._passed = max(0, self._passed - PASSED_BY * granted)
        else:
            self._passed += granted

    def _turn(self, waiter: _Waiter, share: int) -> tuple[int, int, int]:
        """The lowest is next."""
        held = self._held[waiter.slot.owner]
        lane = 2 * waiter.lane
        if held >= max(share, 1) and waiter.lane is not Lane.SPECULATIVE:
            lane = 2 * (Lane.FLEX_EAGER if waiter.lane.yields else Lane.EAGER) + 1
        return lane, held, waiter.arrival

    def _least(self, waiter: _Waiter) -> int:
        """Fewer branches of it never start at a time."""
        return min(waiter.weight, self._least_part) if waiter.in_parts else waiter.weight

    def _grant(self, waiter: _Waiter, share: int) -> int:
        """How many branches may start now; none if it has to wait."""
        usage = self.usage
        room = self._room[waiter.lane] - usage
        least = self._least(waiter)
        if not waiter.in_parts:
            return least if least <= room or not usage else 0
        own = max(share, least) - self._held[waiter.slot.owner]
        granted = min(waiter.weight, room, max(own, self._open_room - usage))
        if granted >= least:
            return granted
        return 0 if usage else least
