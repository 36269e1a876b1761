"""The one queue of an engine: every request of every search, from its arrival at the replica to its end.

Requests wait here and nowhere else. Beyond its batch the engine holds only the requests that it starts next.
"""

import asyncio
import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import Any, Protocol
from uuid import uuid4

from deployments.engines.fair_order import OwnerOrder
from kvstore.memory.clamp import KVClamp
from kvstore.memory.ledger import Hold, Needs, Prefix, TooLarge
from search.ports import Lane

CANARY_PLACE = -1  # before all positions of `OwnerOrder`
AHEAD_PLACE = 1 << 40  # behind all of them
AHEAD_PER_STEP = 8
"""Requests written ahead that start between two engine steps. The engine computes the prompts of all new requests in
one step, and demand that comes during it waits for its end."""
FLEX_RATIO = 7  # Under contention one request in eight is of a flex search.


class Ending(StrEnum):
    """How a request ended. Every request ends exactly once."""

    FINISHED = "finished"
    """The engine returned its output."""
    ABORTED = "aborted"
    """No longer wanted: pruned, cancelled, or past its deadline."""
    FAILED = "failed"
    """The engine refused it, or died."""


class RequestError(RuntimeError):
    """A request ended twice, or was never queued: a programming error."""


@dataclass(eq=False, slots=True)
class EngineRequest:
    """The record of one request, from the call that makes it to the call that takes its output."""

    search_id: str
    label: Any
    """The caller's name for it."""
    token_ids: Sequence[int]
    params: Any
    """vLLM's ``SamplingParams`` or ``PoolingParams``."""
    cache_salt: str
    lane: Lane
    on_end: "Callable[[EngineRequest], None]"
    """Called once, when the request has ended."""
    prefix: Prefix | None = None
    """``token_ids`` as blocks, where the clamp counts KV memory."""
    growth: int = 1
    """Number of tokens that it is expected to write."""
    request_id: str = ""
    """Unique among all replicas, never reused."""
    number: int = 0
    """Its number in the order of arrival."""
    place: int = 0
    """Its position among the searches of its owner; see `OwnerOrder`."""
    priority: int = 0
    """vLLM's priority of the request, set when it starts: lower goes first, and is preempted last."""
    needs: Needs | None = None
    """The KV blocks that it needs; None without a clamp."""
    hold: Hold | None = None
    """Its reserved KV blocks; None until they are reserved."""
    waited: bool = False
    """Whether it had to wait for KV memory; set when it starts."""
    started: bool = False
    """Whether it was handed to the engine."""
    collector: Any = None
    """vLLM's ``RequestOutputCollector``, once the engine has it."""
    output: Any = None
    """The engine's output, partial if it was aborted, or the exception with which it failed."""
    ending: Ending | None = None
    on_discard: Callable[[Any], None] = lambda output: None
    """Called with the output if nobody takes it, partial or complete; see ``discard``."""
    ahead: bool = False
    """Whether it was written ahead and no call has asked for it yet."""
    alone: object | None = None
    """The call that it belongs to, if that call has the engine alone; see `RequestQueue.enter_alone`."""
    canary: bool = False
    """Whether it is a health check's. It goes before all others: how long it takes is how well the engine works."""

    @classmethod
    def written_ahead(
        cls, search_id: str, token_ids: Sequence[int], params: Any, cache_salt: str, growth: int
    ) -> "EngineRequest":
        """A request that no call has made."""
        return cls(
            search_id,
            None,
            token_ids,
            params,
            cache_salt,
            Lane.DEMAND,
            _no_call,
            growth=growth,
            place=AHEAD_PLACE,
            priority=AHEAD_PLACE,
            ahead=True,
        )

    def discard(self, output: Any) -> None:
        """Reports an output that nobody takes; None and exceptions are none."""
        if output is not None and not isinstance(output, Exception):
            self.output = output
            self.on_discard(output)

    @property
    def owner(self) -> str | None:
        """Whose it is: the searches of one API key share a salt. None for a canary."""
        return None if self.canary else self.cache_salt

    @property
    def may_run_beside(self) -> bool:
        """Whether it may run beside a call that has the engine alone."""
        return self.canary or self.alone is not None


@dataclass(eq=False)
class _Queued:
    """Queued requests. Requests that have ended are dropped when they come first."""

    order: OwnerOrder
    heaps: dict[str | None, list[tuple[int, int, EngineRequest]]] = field(default_factory=dict)
    """The requests of each owner in the order in which they start; canaries have none."""

    def add(self, request: EngineRequest) -> None:
        turn = 2 * request.place + (not request.lane.first_steps)
        heapq.heappush(self.heaps.setdefault(request.owner, []), (turn, request.number, request))

    @property
    def first(self) -> EngineRequest | None:
        """The request that starts next. None where none may."""
        heaps = self.heaps
        if not heaps:
            return None
        for owner in [owner for owner, heap in heaps.items() if heap[0][2].ending is not None]:
            heap = heaps[owner]
            while heap and heap[0][2].ending is not None:
                heapq.heappop(heap)
            if not heap:
                del heaps[owner]
        if None in heaps:
            return heaps[None][0][2]
        owner = self.order.turn(heaps)
        return None if owner is None else heaps[owner][0][2]

    def start(self, request: EngineRequest) -> None:
        """Removes the request that starts next."""
        owner = request.owner
        heap = self.heaps[owner]
        heapq.heappop(heap)
        if not heap:
            del self.heaps[owner]
        if owner is not None:
            self.order.started(owner)


def _no_call(request: EngineRequest) -> None:
    """`EngineRequest.on_end` of a request that no call has made."""


class AheadSource(Protocol):
    """Where requests that are written ahead come from; see `deployments.engines.write_ahead`."""

    @property
    def waits(self) -> bool:
        """Whether there are requests to start."""
        ...

    @property
    def has_time(self) -> bool:
        """Whether the next one may start beside the requests in demand."""
        ...

    def next_request(self) -> EngineRequest | None:
        """The next request to start."""
        ...

    def give_up(self, requests: Sequence[EngineRequest]) -> None:
        """Ends started requests."""
        ...


class RequestQueue:
    """Starts requests in a fair order while the engine has slots and KV memory for them.

    Owners take turns, and so do the searches of each (`OwnerOrder`); at equal positions first steps of new searches go
    before later steps. Canaries go before all of them: a load balancer does not wait until others had their turns.
    Requests of
    flex searches start when no other request waits, or when `FLEX_RATIO` others have passed them. A request without KV
    memory holds back all requests behind it. Single-threaded: one event loop.

    A call may have the engine alone: its requests start when those of others have ended, and others wait until it has
    ended. Only canaries run beside it. Calls that want to be alone take turns, and between two of them as many requests
    of others start as the batch holds.

    Requests written ahead start while no others wait and few run, and end when others need their slot or memory.
    """

    def __init__(self, batch: int, clamp: KVClamp | None = None, surplus: float = 0.25) -> None:
        """
        Args:
            batch: maximum number of requests that the engine runs at a time.
            clamp: the check for KV memory; None for no check.
            surplus: number of requests that the engine holds beyond its batch, as a share of the batch. They start when
                a slot of the batch is free.
        """
        self.clamp = clamp
        self.ahead: AheadSource | None = None
        self._since_step = 0
        """Number of requests written ahead that started since the newest engine step."""
        self._batch = batch
        self._slots = batch + math.ceil(surplus * batch)
        self._order = OwnerOrder(batch)
        self._waiting = {False: _Queued(self._order), True: _Queued(self._order)}
        """Requests without reserved memory, by whether they are flex."""
        self._reserved = _Queued(self._order)
        """Requests whose memory was reserved on arrival. They start first: no other request can use their memory."""
        self._alone: dict[object, _Queued] = {}
        """Queued requests of the calls that have the engine alone, or wait for that; the first one's turn comes
        first."""
        self._has_turn = False
        """Whether the first of them has its turn: requests of others do not start."""
        self._others_first = 0
        """Number of requests of others that start before the next one of them has its turn."""
        self._beside = 0
        """Number of requests at the engine that may run beside a call that is alone."""
        self._failed: set[str] = set()
        """Searches whose requests failed at the engine."""
        self._aborted: set[str] = set()
        self._aborted_before: set[str] = set()
        """Searches with requests that were aborted at the engine since its last step, and since the one before: they
        are in its batch until it has read the abort."""
        self._since_flex = 0
        """Number of requests that started, since the last flex request did, while a flex request waited."""
        self._alive: dict[bool, dict[str, EngineRequest]] = {False: {}, True: {}}
        """Live requests by id, the newest last, by whether they were written ahead and no call has adopted them."""
        # Requests of different replicas may meet in one LMCache server's log: a prefix keeps them apart.
        self._id_prefix = uuid4().hex[:8]
        self._begun = 0
        """Number of requests queued so far: the newest one's arrival number."""
        self._short_until = 0
        """Arrival number up to which requests had to wait for memory, their own or that of a request before them."""
        self._endings: Counter[Ending] = Counter()
        self._running = 0
        self._short_of_memory = False
        """Whether the first request in the queue has a slot but no memory."""
        self._changed = asyncio.Event()
        self.waited = 0
        """Number of requests that had to wait for KV memory, their own or that of a request before them."""

    def __len__(self) -> int:
        """Number of requests that have not ended."""
        return sum(map(len, self._alive.values()))

    @property
    def demand(self) -> int:
        """Number of live requests that a call has made or adopted."""
        return len(self._alive[False])

    def demand_of(self, search_id: str) -> int:
        """Number of a search's requests among ``demand``."""
        return sum(request.search_id == search_id for request in self._alive[False].values())

    @property
    def queued(self) -> int:
        """Number of requests not yet handed to the engine."""
        return len(self) - self._running

    def submit(
        self, request: EngineRequest, *, reserve: bool = False, optional: bool = False, place: int | None = None
    ) -> bool:
        """Queues a request. Returns whether it was queued.

        Args:
            reserve: reserve its KV memory now, if there is enough and no unreserved request waits. Otherwise memory is
                reserved when the request is about to start.
            optional: do not queue the request if its memory was not reserved; nothing is changed then.
            place: the position of the finished request that this one continues. None: the search's next position.

        Raises:
            TooLarge: the request does not fit into an empty KV cache.
        """
        if request.alone is not None:
            reserve = optional = False  # It waits until nothing else runs: then there is memory for it.
        if self.clamp is not None:
            request.prefix = request.prefix or self.clamp.prefix(request.token_ids, request.cache_salt)
            request.needs = self.clamp.needs(request.prefix, request.growth)
            if reserve and not self._alone and not any(waiting.first for waiting in self._waiting.values()):
                request.hold = self.clamp.reserve(request.prefix, request.needs, overcommit=not optional)
            if optional and request.hold is None:
                return False
            self.clamp.add(request.needs)
        if request.owner is None:
            request.place = CANARY_PLACE
        elif place is None:
            request.place = self._order.position(request.owner, request.search_id)
        else:
            request.place = place
        self._register(request)
        if reserve and request.hold is None:
            self._short_until = request.number
        self._queue_of(request).add(request)
        self._changed.set()
        return True

    async def next(self) -> EngineRequest:
        """Waits until a request can start, and returns it like `start_next`."""
        while (request := self.start_next()) is None:
            self._changed.clear()
            await self._changed.wait()
        return request

    def start_next(self) -> EngineRequest | None:
        """Takes the next request for the engine and reserves its KV memory. None where no request waits, or where there
        is no slot or memory for it."""
        self._short_of_memory = False
        flex = self._waiting[True].first
        request = self._reserved.first or self._first_waiting
        if self._alone and self._turn(request):
            request = self._beside_or_alone(request)
            if request is None:
                return None
        if request is None:
            return self._start_ahead()
        if self._running >= self._batch:
            self._give_up_newest()
        if self._running >= self._slots:
            return None
        queue = self._queue_of(request)
        if request.hold is None:
            if not self._reserve(request):
                return None
            request.waited = request.number <= self._short_until
            self.waited += request.waited
            self._since_flex = self._since_flex + 1 if flex is not None and request is not flex else 0
        queue.start(request)
        request.started = True
        request.priority = self._priority(request)
        self._running += 1
        self._beside += request.may_run_beside
        self._others_first = max(0, self._others_first - 1)
        return request

    def enter_alone(self, call: object) -> None:
        """Queues a call that has the engine alone from its turn until `leave_alone`; its requests are submitted with
        ``EngineRequest.alone``."""
        self._alone[call] = _Queued(self._order)
        self._changed.set()

    def leave_alone(self, call: object) -> None:
        """Ends the call's turn, or its wait for one. Its requests have ended, and their aborts were sent."""
        if self._has_turn and next(iter(self._alone)) is call:
            self._has_turn = False
            self._others_first = self._batch
        del self._alone[call]
        self._changed.set()

    def _priority(self, request: EngineRequest) -> int:
        place = request.place
        if request.owner is not None:
            place = self._order.priority(request.owner, place)
        return 2 * place + (not request.lane.first_steps)

    def _turn(self, other: EngineRequest | None) -> bool:
        """Whether a call has the engine alone. ``other``: the first queued request of all other calls."""
        self._has_turn = self._has_turn or other is None or not self._others_first
        return self._has_turn

    def _beside_or_alone(self, other: EngineRequest | None) -> EngineRequest | None:
        """The next request while a call has its turn: its own, once those of others have ended."""
        while self._give_up_newest():
            pass
        if other is not None and (other.hold is not None or other.canary):
            return other  # memory that was promised on arrival is free again only when the request has run
        return None if self._running > self._beside else next(iter(self._alone.values())).first

    def _queue_of(self, request: EngineRequest) -> _Queued:
        if request.alone is not None:
            return self._alone[request.alone]
        return self._waiting[request.lane.flex] if request.hold is None else self._reserved

    @property
    def _first_waiting(self) -> EngineRequest | None:
        normal, flex = self._waiting[False].first, self._waiting[True].first
        return normal if flex is None or (normal is not None and self._since_flex < FLEX_RATIO) else flex

    def _start_ahead(self) -> EngineRequest | None:
        """Starts a request that is written ahead, if the engine has time and memory for it."""
        if self.ahead is None or self._running >= self._batch or not self.ahead.has_time:
            return None
        if self._since_step >= AHEAD_PER_STEP and self._running:
            return None
        if (request := self.ahead.next_request()) is None:
            return None
        if self.clamp is not None:
            request.prefix = self.clamp.prefix(request.token_ids, request.cache_salt)
            try:
                request.needs = self.clamp.needs(request.prefix, request.growth)
            except TooLarge:
                request.ending = Ending.FAILED
                return None
            request.hold = self.clamp.reserve_ahead(request.prefix, request.needs)
            if request.hold is None:
                request.ending = Ending.ABORTED
                return None
        self._register(request)
        self._since_step += 1
        self._order.occupy(request.cache_salt)
        request.started = True
        self._running += 1
        return request

    def adopt(self, request: EngineRequest) -> None:
        """Makes a request that was written ahead one in demand: its search's turn counts it, and nothing gives it up
        any more."""
        request.ahead = False
        if request.ending is None:
            self._alive[False][request.request_id] = self._alive[True].pop(request.request_id)
        request.place = self._order.position(request.cache_salt, request.search_id)
        if request.ending is Ending.FINISHED:
            self._order.served(request.cache_salt, request.place)
        elif self.clamp is not None and request.needs is not None:
            self.clamp.add(request.needs)

    def _give_up_newest(self) -> bool:
        """Ends the newest request that is written ahead. False if there is none."""
        if self.ahead is None or not self._alive[True]:
            return False
        self.ahead.give_up([next(reversed(self._alive[True].values()))])
        return True

    def stepped(self, withheld: int, preempted: int) -> None:
        """Records an engine step; to be called after every one, with what `KVClamp.stepped` takes."""
        if self.clamp is not None:
            self.clamp.stepped(withheld, preempted)
        self._since_step = 0
        if self._aborted or self._aborted_before:
            self._aborted_before, self._aborted = self._aborted, set()
        self.wake()

    def _register(self, request: EngineRequest) -> None:
        self._begun += 1
        request.number = self._begun
        request.request_id = f"{self._id_prefix}-{request.number}"
        self._alive[request.ahead][request.request_id] = request
        if request.owner is not None:
            self._order.enter(request.owner)

    def end(self, request: EngineRequest, ending: Ending) -> None:
        """Ends a request and frees its slot and memory for the next one.

        Raises:
            RequestError: the request has ended before, or was never queued.
        """
        if self._alive[request.ahead].pop(request.request_id, None) is None:
            raise RequestError(f"request {request.request_id!r} is {ending} but is not alive")
        request.ending = ending
        self._endings[ending] += 1
        self._running -= request.started
        self._beside -= request.started and request.may_run_beside
        if request.collector is not None and ending is not Ending.FINISHED:
            (self._failed if ending is Ending.FAILED else self._aborted).add(request.search_id)
        if request.ahead:
            if self.clamp is not None and request.hold is not None:
                self.clamp.release(request.hold)
        elif ending is Ending.FINISHED and request.owner is not None:
            self._order.served(request.owner, request.place)
        if self.clamp is not None and request.needs is not None and not request.ahead:
            waits = self._short_of_memory and self.queued > 0
            self.clamp.remove(request.needs, request.hold, others_wait=waits and ending is Ending.FINISHED)
        if request.owner is not None:
            self._order.leave(request.owner, request.started)
        self.wake()
        request.on_end(request)

    def drop(self, requests: Iterable[EngineRequest]) -> list[EngineRequest]:
        """Ends requests that nobody wants any more; outputs of those that have ended are discarded. Returns those that
        were alive, to be aborted at the engine."""
        requests = [*requests]
        alive = [request for request in requests if request.ending is None]
        for request in requests:
            if request.ending is None:
                self.end(request, Ending.ABORTED)
            elif request.ending is Ending.FINISHED:  # what an aborted one has written is discarded by its abort
                request.discard(request.output)
        return alive

    def wake(self) -> None:
        """Looks again whether a request can start."""
        if self.queued or (self.ahead is not None and self.ahead.waits):
            self._changed.set()

    def _reserve(self, request: EngineRequest) -> bool:
        """Reserves the KV memory of a request. False where there is too little."""
        if self.clamp is None:
            return True
        assert request.prefix is not None
        assert request.needs is not None
        request.hold = self.clamp.reserve(request.prefix, request.needs)
        while request.hold is None and self._give_up_newest():
            request.hold = self.clamp.reserve(request.prefix, request.needs)
        if request.hold is None:
            self._short_of_memory = True
            self._short_until = self._begun
        return request.hold is not None

    @property
    def _live(self) -> Iterator[EngineRequest]:
        return chain.from_iterable(requests.values() for requests in self._alive.values())

    @property
    def searches(self) -> Counter[str]:
        """Number of requests that each search has alive."""
        return Counter(request.search_id for request in self._live)

    @property
    def at_engine(self) -> frozenset[str]:
        """Searches with requests at the engine, written ahead or not, and those whose requests failed there. Once the
        engine is dead: the searches that may have ended it."""
        alive = {request.search_id for request in self._live if request.started}
        return frozenset(alive | self._failed | self._aborted | self._aborted_before)

    @property
    def counts(self) -> dict[str, int]:
        """Number of requests that were queued and that are alive, and of those that ended, by ending."""
        endings = {ending.value: self._endings[ending] for ending in Ending}
        return {"begun": self._begun, "alive": len(self), **endings}

    def restart(self) -> None:
        """Counts from zero again. Call it while no request is alive."""
        self._begun = self._short_until = self.waited = 0
        self._endings.clear()

    def check_integrity(self) -> list[str]:
        """Leak check of an idle engine: a sentence for every live request and every count that does not add up."""
        problems = [f"search {search} has {number} requests alive" for search, number in self.searches.items()]
        ended = sum(self._endings.values())
        if self._begun != ended + len(self):
            problems.append(f"{self._begun} requests began, {ended} ended, {len(self)} are alive")
        if not len(self) and self._running:
            problems.append(f"{self._running} slots of the batch are taken")
        if self._alone:
            problems.append(f"{len(self._alone)} calls have the engine alone, or wait for that")
        if not len(self) and self.clamp is not None and self.clamp.ledger.reserved:
            problems.append(f"{self.clamp.ledger.reserved} KV blocks are reserved")
        return problems
