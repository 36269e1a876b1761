"""A set of engine requests that belong to one call: submitted, awaited and aborted together.

vLLM offers an async generator per request, which wants a task per branch. Here all requests of a call
share one event instead: a call costs one task whatever its width.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from vllm import PoolingParams, PoolingRequestOutput, RequestOutput, SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import RequestOutputCollector

from deployments.engines.branches import BranchRegistry, Ending
from deployments.engines.fair_order import FairOrder, priority
from kvstore.clamp import KVClamp, Ticket
from kvstore.ledger import Prefix, TooLarge
from search.ports import Lane

Output: TypeAlias = RequestOutput | PoolingRequestOutput
Label = TypeVar("Label")


class EngineCallError(RuntimeError):
    """The engine could not do what it was asked: it died, refused the request, or time ran out."""


class RequestRefused(EngineCallError):
    """The engine will not take a request, for reasons of the request."""


class NeverFits(RequestRefused):
    """No memory would be enough for it, however long it waited."""


class Asked(Protocol):
    """What the requests of `search.ports` share."""

    @property
    def search_id(self) -> str: ...

    @property
    def deadline_s(self) -> float: ...

    @property
    def cache_salt(self) -> str: ...

    @property
    def lane(self) -> Lane: ...


class Finished(NamedTuple, Generic[Label]):
    label: Label
    output: Output


class _Request(NamedTuple, Generic[Label]):
    label: Label
    collector: RequestOutputCollector
    place: int


class _Wanted(NamedTuple, Generic[Label]):
    """A request that the engine does not have yet."""

    label: Label
    token_ids: list[int]
    params: SamplingParams | PoolingParams
    place: int
    priority: int


class _Ready:
    """In place of the event of a request's collector, which vLLM sets when the request has finished: its room is the
    next one's from then on, not when its output is looked at."""

    def __init__(self, changed: asyncio.Event, ticket: Ticket | None) -> None:
        self._changed = changed
        self._ticket = ticket

    def set(self) -> None:
        self._changed.set()
        if self._ticket is not None:
            self._ticket.close(finished=True)


class EngineCall(Generic[Label]):
    """The requests of one call. An async context manager: what is unfinished on leaving is aborted.

    Every request is one branch of the registry. Labels are the caller's names for its requests.
    """

    def __init__(
        self,
        engine: AsyncLLM,
        registry: BranchRegistry,
        order: FairOrder,
        request: Asked,
        on_discard: Callable[[Output], None] = lambda output: None,
        clamp: KVClamp | None = None,
    ) -> None:
        """
        Args:
            order: says which of the engine's requests goes first.
            on_discard: gets what an aborted request had brought forth so far.
            clamp: holds back requests for which the engine has no room; None where it takes all.
        """
        self.search_id = request.search_id
        self._engine = engine
        self._registry = registry
        self._order = order
        self._lane = request.lane
        self._deadline_s = request.deadline_s
        self._cache_salt = request.cache_salt or None
        self._on_discard = on_discard
        self._clamp = clamp
        self._held_back: dict[Ticket, _Wanted[Label]] = {}
        """What waits for the clamp, or for ``wait`` to hand it over."""
        self._granted: list[Ticket] = []
        """Of these, what is to be handed over."""
        self.held_back = 0
        """Requests that had to wait for the clamp."""
        self._tickets: dict[str, Ticket] = {}
        """Of the requests that the engine has."""
        self._pending: dict[str, _Request[Label] | None] = {}
        self._changed = asyncio.Event()
        self._stopped: str | None = None
        self._aborting: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def _speculates(self) -> bool:
        return self._lane is Lane.SPECULATIVE

    @property
    def pending(self) -> int:
        """Requests that were neither taken nor aborted."""
        return len(self._pending) + len(self._held_back)

    async def __aenter__(self) -> "EngineCall[Label]":
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._deadline_s, self.stop, f"not done within {self._deadline_s:g} s")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self.stop("the caller is gone")
        await self.aborted()  # the aborts themselves go on if this wait is cancelled once more

    async def submit(
        self,
        label: Label,
        token_ids: list[int],
        params: SamplingParams | PoolingParams,
        *,
        prefix: Prefix | None = None,
        growth: int = 1,
    ) -> None:
        """Hands one request to the engine, in the order of its place and the call's lane; later, from ``wait``, where
        the clamp holds it back.

        Args:
            prefix: ``token_ids`` as the clamp wants them, where the caller has them for several requests, or the
                engine is not to share any of it.
            growth: tokens that it is expected to write; for the clamp.

        Raises:
            RequestRefused: the engine will not take it.
            EngineCallError: the engine is dead, or the call was stopped.
        """
        if self._stopped:
            raise EngineCallError(self._stopped)
        place = self._order.place(self.search_id)
        wanted = _Wanted(label, token_ids, params, place, priority(place, self._lane))
        ticket = None
        if self._clamp is not None:
            prefix = prefix or self._clamp.prefix(token_ids, self._cache_salt or "")
            try:
                ticket = self._clamp.ask(wanted.priority, prefix, growth, self._woken, self._speculates)
            except TooLarge as error:
                raise _never_fits(error) from None
            if not ticket.granted:
                self._held_back[ticket] = wanted
                self.held_back += 1
                return
        await self._hand_over(wanted, ticket)

    def take_on(
        self,
        label: Label,
        token_ids: list[int],
        params: SamplingParams | PoolingParams,
        *,
        prefix: Prefix,
        growth: int,
        waits: bool,
    ) -> bool:
        """As ``submit``, but for the handing over, which ``wait`` does.

        Args:
            waits: whether it may be held back; otherwise False says that it would be, and nothing was done.

        Raises:
            NeverFits: the engine could never take it.
        """
        assert self._clamp is not None
        place = self._order.next_place(self.search_id)
        order = priority(place, self._lane)
        try:
            if waits:
                ticket = self._clamp.ask(order, prefix, growth, self._woken, self._speculates)
            elif (now := self._clamp.ask_now(order, prefix, growth, self._speculates)) is not None:
                ticket = now
            else:
                return False
        except TooLarge as error:
            raise _never_fits(error) from None
        self._order.place(self.search_id)
        self._held_back[ticket] = _Wanted(label, token_ids, params, place, order)
        if ticket.granted:
            self._granted.append(ticket)
        else:
            self.held_back += 1
        return True

    def _woken(self, ticket: Ticket) -> None:
        self._granted.append(ticket)
        self._changed.set()

    async def _hand_over(self, wanted: _Wanted[Label], ticket: Ticket | None) -> None:
        request_id = self._registry.begin(self.search_id)
        self._pending[request_id] = None
        if ticket is not None:
            self._tickets[request_id] = ticket
        prompt = tokens_input(wanted.token_ids, cache_salt=self._cache_salt)
        try:
            collector = await self._engine.add_request(request_id, prompt, wanted.params, priority=wanted.priority)
        except Exception as error:
            if self._pending.pop(request_id, self) is not self:
                self._end(request_id, Ending.FAILED)
            if isinstance(error, ValueError | TypeError | VLLMClientError):
                raise RequestRefused(f"the engine refused a request: {error}") from error
            raise EngineCallError(f"the engine failed: {error!r}") from error
        if request_id not in self._pending:
            # Stopped meanwhile, perhaps before the engine had heard of the request.
            await self._engine.abort(collector.request_id, internal=True)
        else:
            # The collector wakes whoever waits on its event: give it ours.
            collector.ready = _Ready(self._changed, ticket)
            if collector.output is not None:  # it came before
                collector.ready.set()
            self._pending[request_id] = _Request(wanted.label, collector, wanted.place)

    async def wait(self, within_s: float | None = None) -> list[Finished[Label]]:
        """Takes what has finished, waiting until there is something, or ``within_s`` have passed.

        Raises:
            EngineCallError: the engine died or the call was stopped; all its requests have ended.
        """
        while True:
            self._changed.clear()
            await self._hand_over_granted()
            if finished := self.take():
                return finished
            if self._stopped:
                raise EngineCallError(self._stopped)
            try:
                async with asyncio.timeout(within_s):
                    await self._changed.wait()
            except TimeoutError:
                return []

    async def take_within(self, seconds: float) -> list[Finished[Label]]:
        """What finishes in the next ``seconds``; what the clamp grants meanwhile is handed over at once.

        Raises:
            EngineCallError: as ``take``.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self._held_back and not self._stopped:
            self._changed.clear()
            await self._hand_over_granted()
            try:
                async with asyncio.timeout_at(until):
                    await self._changed.wait()
            except TimeoutError:
                break
        await asyncio.sleep(max(0.0, until - loop.time()))
        return self.take()

    def take(self) -> list[Finished[Label]]:
        """What has finished and was not taken yet, without waiting.

        Raises:
            EngineCallError: a request failed; the others are being aborted.
        """
        finished: list[Finished[Label]] = []
        for request_id, request in list(self._pending.items()):
            if request is None or (output := request.collector.output) is None:
                continue
            del self._pending[request_id]
            if isinstance(output, Exception):
                self._end(request_id, Ending.FAILED)
                self.stop(f"the engine failed: {output!r}")
                raise EngineCallError(self._stopped) from output
            self._end(request_id, Ending.FINISHED)
            self._order.served(request.place)
            finished.append(Finished(request.label, output))
        return finished

    def stop(self, reason: str) -> None:
        """Aborts every pending request, now; whoever waits is told why. Does nothing if already stopped."""
        self._stopped = self._stopped or reason
        self._changed.set()
        held_back, self._held_back = self._held_back, {}
        for ticket in held_back:
            ticket.close()
        if not self._pending:
            return
        aborted, self._pending = self._pending, {}
        for request_id in aborted:
            self._end(request_id, Ending.ABORTED)
        task = asyncio.get_running_loop().create_task(self._abort(aborted))
        self._aborting.add(task)
        task.add_done_callback(self._aborting.discard)

    async def _hand_over_granted(self) -> None:
        granted, self._granted = self._granted, []
        for ticket in granted:
            if wanted := self._held_back.pop(ticket, None):  # gone where the call was stopped meanwhile
                await self._hand_over(wanted, ticket)

    def _end(self, request_id: str, ending: Ending) -> None:
        self._registry.end(request_id, ending)
        if ticket := self._tickets.pop(request_id, None):
            ticket.close()

    async def aborted(self) -> None:
        """Waits until every abort so far has been sent to the engine."""
        if self._aborting:
            await asyncio.wait(self._aborting)

    async def _abort(self, requests: dict[str, "_Request[Label] | None"]) -> None:
        await self._engine.abort(list(requests))
        for request in requests.values():
            output = request.collector.output if request else None
            if output is not None and not isinstance(output, Exception):
                self._on_discard(output)


def _never_fits(error: TooLarge) -> NeverFits:
    return NeverFits(f"a path {error}; generator.kv_cache_memory_bytes gives it that many")
