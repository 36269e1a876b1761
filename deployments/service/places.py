"""Places: how many requests of one controller work at once, and who waits for one. Knows neither HTTP nor Serve."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from search.run.report import SearchCost


class Refused(StrEnum):
    """Why a request gets no place."""

    PLACES = "places"
    """All are taken, and so are those in the queue."""
    FLEX = "flex"
    """It is of lower priority, and those that are free are kept for others."""
    QUEUE = "queue"
    """None came free while it waited."""
    OWNER = "owner"
    """Its owner has as many as it may."""


class NoPlace(RuntimeError):
    """There is no place now: the same request is welcome later."""

    def __init__(self, reason: Refused, most: int, retry_after_s: int) -> None:
        """``most``: the places there are, or that the owner may have."""
        super().__init__(reason, most, retry_after_s)
        self.reason = reason
        self.most = most
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        if self.reason is Refused.OWNER:
            return f"this API key has {self.most} requests at work, as many as it may (limits.places)"
        if self.reason is Refused.FLEX:
            return f"flex requests are let in while fewer than {self.most} places are taken; try again shortly"
        waited = ", and none came free in time" if self.reason is Refused.QUEUE else ""
        return f"all {self.most} places for searches are taken{waited}; try again shortly"


@dataclass(frozen=True)
class Owner:
    """Whose requests are counted together."""

    name: str
    places: int | None = None
    """As many at once; None: as there are."""


@dataclass(eq=False)
class Place:
    """What a request holds while it works."""

    owner: Owner
    since: float = field(default_factory=time.monotonic)
    """Monotonic seconds."""
    charged: int = 0
    """Tokens of prompts, and of what no search generated."""
    searches: list[SearchCost] = field(default_factory=list)
    """What the request's searches cost."""

    @property
    def tokens(self) -> int:
        """What the request has cost so far: its prompts, and all that was generated for it."""
        return self.charged + sum(cost.generated_tokens for cost in self.searches)


class Places:
    """The places of one controller, and a queue before them: first come, first served. One event loop.

    Of both a part is kept for requests that are not flex, which come behind all others in the queue.
    """

    def __init__(
        self,
        count: int,
        queue: int = 0,
        queue_s: float = 0.0,
        on_freed: Callable[[], None] = lambda: None,
        flex_share: float = 1.0,
    ) -> None:
        """``queue``: so many wait where all places are taken, ``queue_s`` seconds at most. ``on_freed`` is called
        whenever a place was given back. ``flex_share``: while less than that part of the places is taken, one at least,
        a flex request may have one; and while less than that part of the queue is, wait there."""
        self._on_freed = on_freed
        self._held: dict[Place, None] = {}
        """Oldest first."""
        self._promised = 0
        """Given to somebody in the queue who has not woken up yet."""
        self._waiting: dict[bool, dict[asyncio.Future[None], None]] = {False: {}, True: {}}
        """By whether they are flex; oldest first."""
        self._owned: Counter[str] = Counter()
        """Places held or waited for, by owner."""
        self.resize(count, queue, queue_s, flex_share)

    def resize(self, count: int, queue: int, queue_s: float, flex_share: float = 1.0) -> None:
        """From now on as if made like this; whoever has a place or waits for one keeps it."""
        self.count = count
        """As many as work at once."""
        self._queue_s = queue_s
        self._most = {False: count, True: max(1, int(count * flex_share))}
        """Taken places up to which one more is given, by whether it is for a flex request."""
        self._most_waiting = {False: queue, True: int(queue * flex_share)}
        self._pass_on()

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def check(self, owner: Owner, flex: bool = False) -> None:
        """
        Raises:
            NoPlace: a request of this owner would be refused now. Costs nothing.
        """
        if owner.places is not None and self._owned[owner.name] >= owner.places:
            raise NoPlace(Refused.OWNER, owner.places, self._retry_after_s())
        if self._is_full(flex) and self.waiting >= self._most_waiting[flex]:
            raise NoPlace(Refused.FLEX if flex else Refused.PLACES, self._most[flex], self._retry_after_s())

    @asynccontextmanager
    async def hold(self, owner: Owner, flex: bool = False) -> AsyncIterator[Place]:
        """A place until the end of the block; waits for one in the queue where that has room.

        Raises:
            NoPlace: there is none, or none came free in time.
        """
        self.check(owner, flex)
        self._owned[owner.name] += 1
        try:
            if self._is_full(flex):
                await self._wait(flex)
            place = Place(owner)
            self._held[place] = None
            try:
                yield place
            finally:
                del self._held[place]
                self._pass_on()
                self._on_freed()
        finally:
            self._owned[owner.name] -= 1
            if not self._owned[owner.name]:
                del self._owned[owner.name]

    def check_integrity(self) -> list[str]:
        """What is left over though nothing is at work; empty when all is well."""
        now = time.monotonic()
        problems = [f"a place has been held for {now - place.since:.0f} s" for place in self._held]
        left = {"wait for a place": self.waiting, "places are promised": self._promised}
        return problems + [f"{count} {what}" for what, count in left.items() if count]

    def _is_full(self, flex: bool) -> bool:
        return len(self._held) + self._promised >= self._most[flex]

    async def _wait(self, flex: bool) -> None:
        """
        Raises:
            NoPlace: none came free in time.
        """
        turn = asyncio.get_running_loop().create_future()
        waiting = self._waiting[flex]
        waiting[turn] = None
        try:
            async with asyncio.timeout(self._queue_s):
                await turn
        except BaseException as error:
            if waiting.pop(turn, turn) is turn:
                # Its turn had come already: somebody else's now.
                self._promised -= 1
                self._pass_on()
            if isinstance(error, TimeoutError):
                reason = Refused.FLEX if flex else Refused.QUEUE
                raise NoPlace(reason, self._most[flex], self._retry_after_s()) from None
            raise
        self._promised -= 1

    def _pass_on(self) -> None:
        """Gives free places to those who have waited longest, flex requests last."""
        for flex, waiting in self._waiting.items():
            while waiting and not self._is_full(flex):
                turn = next(iter(waiting))
                del waiting[turn]
                self._promised += 1
                if not turn.done():
                    turn.set_result(None)

    def _retry_after_s(self) -> int:
        """Half the age of the oldest request, within 1 and 30 s: about when a place comes free."""
        oldest = next(iter(self._held), None)
        age = 0.0 if oldest is None else time.monotonic() - oldest.since
        return round(min(30.0, max(1.0, age / 2)))
