"""Slots for work in one event loop, shared fairly among the owners of searches, and among the searches of each."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeAlias

FLEX_RATIO = 7  # Under contention one piece of work in eight is of a flex search.

Waiter: TypeAlias = asyncio.Future[None]


class Requester(NamedTuple):
    """Who waits for a slot."""

    owner: str = ""
    """The search's cache salt: one for each API key. Empty without keys, and with ``http.isolate_keys: false``: all
    clients are one owner then."""
    search_id: str = ""
    flex: bool = False
    """Whether it yields to those that are not."""


class FairSlots:
    """A semaphore for which owners take turns, and within each one's turns its searches.

    Once a slot comes free, an owner's next piece of work waits for at most one turn of each other owner, however much
    these have to do. Flex searches get a slot when no other waits, or when `FLEX_RATIO` others have passed them. Work
    of no search, such as a health check, goes first. For work that takes a thread, see `search.tools.fair_threads`.
    """

    def __init__(self, slots: int, turn: int = 1) -> None:
        """``turn``: pieces of work of one search that get a slot in a turn."""
        self._free = slots
        self._first: deque[Waiter] = deque()
        """Those that wait for work of no search."""
        self._lines = {False: _Line(turn), True: _Line(turn)}
        """The others, by whether they are flex."""
        self._since_flex = 0
        """Number of others that got a slot while a flex search waited, since the last one got one."""

    @property
    def waiting(self) -> int:
        """Number of pieces of work that wait."""
        return len(self._first) + sum(map(len, self._lines.values()))

    @asynccontextmanager
    async def hold(self, requester: Requester | None) -> AsyncIterator[None]:
        """Holds a slot until the end of the block. ``requester``: None for work of no search."""
        await self.acquire(requester)
        try:
            yield
        finally:
            self.release()

    async def acquire(self, requester: Requester | None) -> None:
        """Waits for a slot, to be given back with `release`."""
        if self._free:  # then nobody waits
            self._free -= 1
            return
        waiter = asyncio.get_running_loop().create_future()
        if requester is None:
            self._first.append(waiter)
        else:
            self._lines[requester.flex].add(requester, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # it got the slot at the same time
                self.release()
            elif requester is not None:
                self._lines[requester.flex].remove(requester, waiter)
            elif waiter in self._first:
                self._first.remove(waiter)
            raise

    def release(self) -> None:
        """Gives a slot back, to the one whose turn it is."""
        while (waiter := self._next()) is not None:
            if not waiter.done():  # else it was cancelled, and its task has not gone on yet
                waiter.set_result(None)
                return
        self._free += 1

    def _next(self) -> Waiter | None:
        """Takes the next one from the lines. None if nobody waits."""
        others, flex = self._lines[False], self._lines[True]
        if self._first:
            return self._first.popleft()
        if others and (not flex or self._since_flex < FLEX_RATIO):
            self._since_flex = self._since_flex + 1 if flex else 0
            return others.take()
        self._since_flex = 0
        return flex.take() if flex else None


class _Line:
    """Those that wait, by owner and search. No queue in it is empty."""

    def __init__(self, turn: int) -> None:
        self._turn = turn
        self._owners: OrderedDict[str, OrderedDict[str, deque[Waiter]]] = OrderedDict()
        """The owner, and its search, whose turn it is come first."""
        self._turn_of = ("", "")
        """The owner and the search that had the last slot."""
        self._left = 0
        """Number of slots that are left of its turn."""
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def add(self, requester: Requester, waiter: Waiter) -> None:
        searches = self._owners.setdefault(requester.owner, OrderedDict())
        searches.setdefault(requester.search_id, deque()).append(waiter)
        self._waiting += 1

    def remove(self, requester: Requester, waiter: Waiter) -> None:
        """Does nothing if it was taken already."""
        searches = self._owners.get(requester.owner)
        waiting = searches.get(requester.search_id) if searches else None
        if waiting and waiter in waiting:
            waiting.remove(waiter)
            self._took(requester.owner, requester.search_id, turn_ends=False)

    def take(self) -> Waiter:
        """Takes the first one. There must be one."""
        owner, searches = next(iter(self._owners.items()))
        search_id, waiting = next(iter(searches.items()))
        waiter = waiting.popleft()
        if self._turn_of != (owner, search_id) or not self._left:
            self._turn_of, self._left = (owner, search_id), self._turn
        if not waiter.done():
            self._left -= 1
        self._took(owner, search_id, turn_ends=not self._left or not waiting)
        return waiter

    def _took(self, owner: str, search_id: str, turn_ends: bool) -> None:
        """Keeps the queues in order when one was taken from them. At the end of a turn the others' come first."""
        self._waiting -= 1
        searches = self._owners[owner]
        if not searches[search_id]:
            del searches[search_id]
        elif turn_ends:
            searches.move_to_end(search_id)
        if not searches:
            del self._owners[owner]
        elif turn_ends:
            self._owners.move_to_end(owner)
