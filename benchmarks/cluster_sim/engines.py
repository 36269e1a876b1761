"""Simulated replicas: the ports of `search.ports` on an engine that only counts time.

The generator's branches pass through the real queue, clamp and ledger, and the real `WriteAhead` begins children. Its
engine batches like vLLM: every step writes one token of each running request, and prefills the requests that join.
Blocks of prefixes stay cached until their memory is needed.
"""

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from benchmarks.cluster_sim.costs import CallCosts, EngineCosts
from benchmarks.cluster_sim.processors import Processor, Program
from benchmarks.cluster_sim.workload import Language
from deployments.engines.backlog import Backlog
from deployments.engines.fair_order import FairOrder
from deployments.engines.request_queue import Ending, EngineRequest, RequestQueue
from deployments.engines.segments import Until
from deployments.engines.settings import WriteAheadSetting
from deployments.engines.write_ahead import CPU, Device, SearchAhead, WriteAhead
from kvstore.memory.clamp import KVClamp, StepLengths
from kvstore.memory.ledger import KVLedger, Prefix
from search.errors import GeneratorError
from search.ports import (
    AheadSamples,
    Branch,
    Child,
    ChildGroup,
    ExpandItem,
    ExpandRequest,
    Headroom,
    ScoreRequest,
    StopCondition,
    branch_seed,
)
from search.tree import NodeId, Step, StepEnd

BATCH_TOKENS = 4096
"""Most prompt tokens of a step; as `deployments.engines.arguments` sets it on a CPU."""
GROUP_S = 0.004
"""As `deployments.engines.generation.GROUP_S`."""
SCORING_DELAY_S = 0.5
"""As ``prm.scoring_delay_s``."""


class PrefixCache:
    """Keys of the cached blocks, least recently used first."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._keys: OrderedDict[int, None] = OrderedDict()

    def cached(self, keys: Sequence[int]) -> int:
        """Number of leading blocks of a prefix that are cached."""
        for found, key in enumerate(keys):
            if key not in self._keys:
                return found
            self._keys.move_to_end(key)
        return len(keys)

    def keep(self, keys: Sequence[int]) -> None:
        for key in keys:
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self._blocks:
            self._keys.popitem(last=False)


@dataclass(eq=False, slots=True)
class Request:
    """One request of an engine."""

    priority: int
    prompt: Prefix
    tokens: int
    """Tokens that it will write."""
    finished: Callable[["Request"], None]
    """Called once the replica's process has handled the last output."""
    written: int = 0
    cached_tokens: int = 0
    aborted: bool = False


class Engine:
    """Runs requests in steps while there are any."""

    def __init__(self, processor: Processor, replica: Program, costs: EngineCosts) -> None:
        self.program = Program(processor)
        self._replica = replica
        self._costs = costs
        self._cache = PrefixCache(costs.blocks)
        self.on_step: Callable[[Sequence[Request]], None] = lambda running: None
        """Called after every step with the running requests."""
        self._waiting: list[tuple[int, int, Request]] = []
        self._arrivals = count()
        self._running: list[Request] = []
        self._stepping = False
        self.steps = self.joined = self.generated_tokens = self.computed_tokens = 0
        self.discarded_tokens = 0
        """Generated tokens that belong to aborted requests."""
        self.joining_s = 0.0
        """CPU seconds spent on requests that join the batch, prefill included."""

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, request: Request) -> None:
        heapq.heappush(self._waiting, (request.priority, next(self._arrivals), request))
        if not self._stepping:
            self._stepping = True
            self.program.post(self._costs.engine.call_s)
            # Requests of the same moment join the same step.
            asyncio.get_running_loop().call_soon(self._step)

    def cached(self, keys: Sequence[int]) -> None:
        """Caches the blocks that a finished request leaves behind."""
        self._cache.keep(keys)

    def _step(self) -> None:
        self._running = [request for request in self._running if self._is_wanted(request)]
        curve = self._costs.engine
        joined = self._join()
        self._stepping = bool(self._running)
        if self._stepping:
            read = sum(request.prompt.tokens - request.cached_tokens for request in joined)
            self.computed_tokens += read
            self.steps += 1
            batch = len(self._running)
            joining = curve.token_s * read + curve.request_s * len(joined)
            if 0 < len(joined) < batch:
                joining += curve.join_s
            self.joined += len(joined)
            self.joining_s += joining
            self.program.post(curve.step(batch) + joining, partial(self._stepped, batch))

    def _join(self) -> list[Request]:
        joined: list[Request] = []
        budget = BATCH_TOKENS
        while self._waiting and len(self._running) < self._costs.max_num_seqs:
            request = self._waiting[0][2]
            if request.aborted:
                heapq.heappop(self._waiting)
                continue
            keys = request.prompt.keys
            request.cached_tokens = self._cache.cached(keys) * self._costs.block_size
            if (read := request.prompt.tokens - request.cached_tokens) > budget and joined:
                break
            heapq.heappop(self._waiting)
            self._cache.keep(keys)
            budget -= read
            joined.append(request)
            self._running.append(request)
        return joined

    def _stepped(self, batch: int) -> None:
        done: list[Request] = []
        unfinished: list[Request] = []
        for request in self._running:
            request.written += 1
            (done if request.written >= request.tokens else unfinished).append(request)
        self.generated_tokens += len(self._running)
        self.on_step(self._running)
        self._running = unfinished
        self._replica.post(self._costs.replica.step(batch), partial(self._deliver, done))
        self._step()

    def _deliver(self, done: Sequence[Request]) -> None:
        for request in done:
            if self._is_wanted(request):
                request.finished(request)

    def _is_wanted(self, request: Request) -> bool:
        if request.aborted:
            self.discarded_tokens += request.written
        return not request.aborted


@dataclass(eq=False)
class _Call:
    """The branches of one call."""

    request: ExpandRequest
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    finished: list[Child] = field(default_factory=list)
    open: set[EngineRequest] = field(default_factory=set)
    stopped: bool = False
    written: dict[tuple[int, ...], list[NodeId]] = field(default_factory=dict)
    """The steps that it has written, by the token ids of their paths."""


class _Branch(NamedTuple):
    """The label of a call's request in the queue."""

    call: _Call
    child: Child


@dataclass
class _Params:
    """Stands for vLLM's ``SamplingParams``."""

    call: _Call
    """The call that the parameters come from; for a request written ahead, the one that wrote its parent."""
    seed: int | None = None
    max_tokens: int = 0


class _Output(NamedTuple):
    """Stands for vLLM's ``RequestOutput``, whose tokens are ``outputs[0].token_ids``."""

    outputs: tuple[Step, ...]
    cached_tokens: int


class SimulatedGenerator:
    """`search.ports.Generator`: one replica."""

    def __init__(
        self,
        processor: Processor,
        language: Language,
        costs: EngineCosts,
        calls: CallCosts,
        write_ahead: WriteAheadSetting = "auto",
        device: Device = CPU,
    ) -> None:
        self.program = Program(processor)
        self._language = language
        self._costs = costs
        self._calls = calls.generator
        self.engine = Engine(processor, self.program, costs)
        self._clamp = KVClamp(KVLedger(costs.blocks, costs.block_size))
        self.engine.on_step = self._stepped
        self._queue = RequestQueue(costs.max_num_seqs, self._clamp)
        self._feeding: asyncio.Task[None] | None = None
        self._lengths = {until: StepLengths() for until in Until}
        self.write_ahead = WriteAhead(self._queue, write_ahead, self._lengths, _abort, device)
        self.ongoing = 0
        """Open calls, which Serve's routers compare."""
        self.written_tokens = 0

    @property
    def headroom(self) -> Headroom:
        """As `deployments.engines.generation.GenerationEngine` reports it."""
        engine, ledger = self.engine, self._clamp.ledger
        return Headroom(ledger.free, ledger.capacity, engine.running, engine.waiting + self._queue.queued)

    @property
    def pressure(self) -> float:
        """As `deployments.engines.generation.GenerationEngine.pressure`."""
        return max(len(self._queue) / self._costs.max_num_seqs, self._clamp.pressure)

    async def expand(self, request: ExpandRequest) -> AsyncGenerator[ChildGroup, None]:
        """See ``search.ports.Generator``.

        Raises:
            GeneratorError: branches are missing at the deadline.
        """
        if isinstance(request.ahead, AheadSamples):
            request = request._replace(ahead=None)  # Only steps are written ahead here.
        call = _Call(request)
        self.ongoing += 1
        if self._feeding is None:
            self._feeding = asyncio.create_task(self._feed())
        timer = asyncio.get_running_loop().call_later(request.deadline_s, self._stop, call)
        try:
            template: Any = _Params(call)
            with self.write_ahead.call(request, template) as ahead:
                missing = sum(len(item.branches) for item in request.expansions)
                new = self._take_over(call, ahead)
                curve = self._costs.replica
                await self.program.work(self._calls["call"] + curve.call_s + len(new) * curve.request_s)
                self._submit(call, new)
                while missing:
                    await call.arrived.wait()
                    if call.stopped:
                        raise GeneratorError(
                            f"{missing} branches unfinished: deadline of {request.deadline_s:g} s exceeded"
                        )
                    if call.open:
                        await asyncio.sleep(GROUP_S)
                    call.arrived.clear()
                    done, call.finished = call.finished, []
                    missing -= len(done)
                    await self.program.work(self._calls["group"] + self._calls["child"] * len(done))
                    unused = ahead.take_unused_tokens() if ahead is not None else 0
                    if ahead is not None:
                        # Before the yield: on Serve a replica goes on while its caller reads the group.
                        ahead.wrote(_paths(call, done))
                    yield ChildGroup(tuple(done), self.headroom, unused)
        finally:
            timer.cancel()
            self.ongoing -= 1
            for queued in tuple(call.open):
                if queued.collector is not None:
                    queued.collector.aborted = True
                self._queue.end(queued, Ending.ABORTED)

    def _take_over(self, call: _Call, ahead: SearchAhead | None) -> list[tuple[ExpandItem, Branch]]:
        """Makes the branches that were begun before the call the call's. Returns the others."""
        asked = [(item, branch) for item in call.request.expansions for branch in item.branches]
        if ahead is None:
            return asked
        new: list[tuple[ExpandItem, Branch]] = []
        for item, branch in asked:
            seed = branch.seed if call.request.sampling.temperature > 0 else None
            params: Any = _Params(call, seed, branch.max_tokens)
            begun = ahead.adopt(item.parent, branch.index, item.prefix, params)
            if begun is None:
                new.append((item, branch))
                continue
            child = self._language.child(call.request.search_id, item, branch, call.request.stop_condition)
            begun.label, begun.on_end = _Branch(call, child._replace(ahead=True)), self._on_end
            call.open.add(begun)
            if begun.ending is not None:
                self._on_end(begun)
        ahead.give_up_rest()
        return new

    def _submit(self, call: _Call, new: Sequence[tuple[ExpandItem, Branch]]) -> None:
        request = call.request
        lengths = self._lengths[Until(request.stop_condition)]
        prefixes = {item.parent: self._clamp.prefix(item.prefix, request.cache_salt) for item, _ in new}
        for item, branch in new:
            queued = EngineRequest(
                request.search_id,
                _Branch(call, self._language.child(request.search_id, item, branch, request.stop_condition)),
                item.prefix,
                None,
                request.cache_salt,
                request.lane,
                self._on_end,
                prefixes[item.parent],
                lengths.expected(branch.max_tokens),
            )
            self._queue.submit(queued)
            call.open.add(queued)

    async def _feed(self) -> None:
        """Like `deployments.engines.engine_calls.feed`."""
        while True:
            queued = await self._queue.next()
            if queued.ahead:
                child = self._child_ahead(queued)
                await self.program.work(self._costs.replica.request_s)  # a call has paid for its own requests
                if queued.ending is not None:
                    continue
            else:
                child = queued.label.child
            assert queued.prefix is not None
            tokens = sum(len(step.token_ids) for step in child.steps)
            finished = partial(self._finished, queued, child)
            queued.collector = Request(queued.priority, queued.prefix, tokens, finished)
            self.engine.add(queued.collector)

    def _child_ahead(self, queued: EngineRequest) -> Child:
        """The child that a request of no call writes: the one with its seed."""
        params, tokens = queued.params, tuple(queued.token_ids)
        about = params.call.request.ahead
        parent, index = next(
            (parent, index)
            for index in range(about.most_children)
            for parent in params.call.written[tokens]
            if params.seed in (None, branch_seed(about.seed, parent, index))
        )
        branch = Branch(index, params.seed or 0, params.max_tokens)
        return self._language.child(queued.search_id, ExpandItem(parent, tokens, ()), branch, StopCondition.STEP)

    def _finished(self, queued: EngineRequest, child: Child, request: Request) -> None:
        written = [token for step in child.steps for token in step.token_ids]
        self.engine.cached(self._clamp.prefix((*queued.token_ids, *written), queued.cache_salt).keys)
        queued.output = _Output(child.steps, request.cached_tokens)
        self._queue.end(queued, Ending.FINISHED)

    def _on_end(self, queued: EngineRequest) -> None:
        """A request of a call has ended; perhaps before the call took it over."""
        call, child = queued.label
        call.open.discard(queued)
        if queued.ending is Ending.FINISHED:
            assert queued.output.outputs == child.steps, "another child was written ahead than was asked for"
            tokens = sum(len(step.token_ids) for step in child.steps)
            self._lengths[Until(call.request.stop_condition)].add(tokens)
            self.written_tokens += tokens
            call.finished.append(child._replace(cached_tokens=queued.output.cached_tokens))
            call.arrived.set()

    def _stepped(self, running: Sequence[Request]) -> None:
        """Reports a step to the queue, as an engine does. A preemption is not simulated, only reported."""
        size = self._costs.block_size
        own = sum(-(-(one.prompt.tokens + one.written) // size) - len(one.prompt.keys) for one in running)
        used = self._clamp.ledger.shared + own
        self._queue.stepped(0, int(used > self._costs.blocks))

    def _stop(self, call: _Call) -> None:
        call.stopped = True
        call.arrived.set()

    def check_integrity(self) -> list[str]:
        """What is left in a replica that should be idle: open calls, requests, promised blocks."""
        engine = self.engine
        left = {
            "calls are open": self.ongoing,
            "requests run or wait": engine.running + engine.waiting,
        }
        return [
            *(f"{number} {what}" for what, number in left.items() if number),
            *self._queue.check_integrity(),
            *self.write_ahead.check_integrity(),
        ]


def _paths(call: _Call, done: Sequence[Child]) -> list[tuple[Child, tuple[int, ...]]]:
    """Finished steps with the token ids of their paths, which the call takes note of."""
    prefixes = {item.parent: item.prefix for item in call.request.expansions}
    paths = [(child, (*prefixes[child.parent], *child.steps[0].token_ids)) for child in done]
    for child, path in paths:
        call.written.setdefault(path, []).append((*child.parent, child.index))
    return paths


def _abort(requests: Sequence[EngineRequest]) -> None:
    """Like `deployments.engines.engine_calls.Aborts.begin`."""
    for queued in requests:
        if queued.collector is not None:
            queued.collector.aborted = True
            written = Step(tuple(range(queued.collector.written)), "", StepEnd.LENGTH)
            queued.discard(_Output((written,), 0))


class SimulatedScorer:
    """`search.ports.StepScorer`: one replica. An item is one pass over the uncached part of its path."""

    name = "simulated-prm"

    def __init__(
        self, processor: Processor, language: Language, costs: EngineCosts, calls: CallCosts, least_s: float = 0.0
    ) -> None:
        """``least_s``: shortest time of a call, seconds."""
        self.program = Program(processor)
        self._language = language
        self._costs = costs
        self._least_s = least_s
        self._calls = calls.prm
        self.engine = Engine(processor, self.program, costs)
        self._order = FairOrder()
        self.ongoing = 0
        self._items = 0
        self._backlog = Backlog(lambda: asyncio.get_running_loop().time())

    @property
    def pressure(self) -> float:
        """As `deployments.engines.scoring.ScoringEngine` reports it."""
        return max(self._items / self._costs.max_num_seqs, self._backlog.seconds / SCORING_DELAY_S)

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        """See ``search.ports.StepScorer``."""
        with self._backlog.call():
            loop = asyncio.get_running_loop()
            until = loop.time() + self._least_s
            rewards = await self._score(request)
            if self._least_s:
                await asyncio.sleep(until - loop.time())
            return rewards

    async def _score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        self.ongoing += 1
        self._items += len(request.items)
        try:
            curve = self._costs.replica
            items = len(request.items)
            await self.program.work(
                self._calls["call"] + curve.call_s + (self._calls["item"] + curve.request_s) * items
            )
            remaining, done = items, asyncio.get_running_loop().create_future()

            def finished(_: Request) -> None:
                nonlocal remaining
                remaining -= 1
                if not remaining and not done.done():
                    done.set_result(None)

            for item in request.items:
                tokens = self._language.path_tokens(request.search_id, item.steps)
                prefix = Prefix.of(tokens, self._costs.block_size, request.cache_salt)
                self.engine.add(Request(self._order.position(request.search_id), prefix, 1, finished))
            await done
        finally:
            self.ongoing -= 1
            self._items -= len(request.items)
        return [
            [self._language.reward(request.search_id, text) for text in item.steps[-item.unscored :]]
            for item in request.items
        ]
