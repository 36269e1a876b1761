"""The book of what is written ahead: what is adopted, what is given up, and what it may take from demand."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deployments.engines import write_ahead
from deployments.engines.request_queue import AHEAD_PER_STEP, Ending, EngineRequest, RequestQueue
from deployments.engines.segments import Until
from deployments.engines.settings import WriteAheadSetting
from deployments.engines.write_ahead import (
    CPU,
    GPU,
    LEAST_LINGER_S,
    MOST_LINGER_S,
    Device,
    SearchAhead,
    WriteAhead,
)
from kvstore.memory.clamp import AHEAD_FREE, KVClamp, StepLengths
from kvstore.memory.ledger import KVLedger
from search.ports import (
    Ahead,
    AheadSamples,
    Child,
    ExpandItem,
    ExpandRequest,
    Lane,
    Sampling,
    StopCondition,
    branch_seed,
)
from search.tree import NodeId, Step, StepEnd

BLOCK = 4
BATCH = 12
SEED = 7
STEP_TOKENS = 8
PATH_TOKENS = 40
MAX_DEPTH = 4
SOLUTION_TOKENS = 30
SETTING = 2.0
WIDTH = 3
PROMPT = (1, 2, 3)


@dataclass
class Params:
    """Stands in for vLLM's ``SamplingParams``."""

    seed: int | None = None
    max_tokens: int | None = None


class Clock:
    """Time, and the timers of an event loop."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, list[Callable[[], None]]]] = []

    def monotonic(self) -> float:
        return self.now

    def get_running_loop(self) -> "Clock":
        return self

    def call_later(self, delay: float, callback: Callable[..., None], *args: Any) -> Any:
        due = [lambda: callback(*args)]
        self._timers.append((self.now + delay, due))
        return SimpleNamespace(cancel=due.clear)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        ripe = [due for when, due in self._timers if when <= self.now]
        self._timers = [(when, due) for when, due in self._timers if when > self.now]
        for due in ripe:
            for callback in due:
                callback()


def output(*token_ids: int) -> Any:
    """What vLLM returns of a request that has written these tokens."""
    return SimpleNamespace(outputs=[SimpleNamespace(token_ids=token_ids)])


class Engine:
    """The queue and its book, with an engine that ends requests when the test says so."""

    def __init__(
        self, clock: Clock, setting: WriteAheadSetting = SETTING, blocks: int | None = None, device: Device = CPU
    ) -> None:
        self.clock = clock
        self.device = device
        self.clamp = KVClamp(KVLedger(blocks, BLOCK)) if blocks else None
        self.queue = RequestQueue(BATCH, self.clamp)
        self.book = WriteAhead(self.queue, setting, {until: StepLengths() for until in Until}, self._aborted, device)
        self.running: list[EngineRequest] = []
        self.begun: list[EngineRequest] = []
        """Every request that was started ahead."""
        self.adopted: set[EngineRequest] = set()
        self.wasted = 0
        """Tokens of those that were given up."""
        self.since_step = 0
        self._numbers = count(100)

    def _aborted(self, requests: Sequence[EngineRequest]) -> None:
        for each in requests:
            assert each.ending is Ending.ABORTED
            assert each.ahead, "what is in demand is aborted by its call"
            self.wasted += 1
            each.discard(output(next(self._numbers)))

    def start(self) -> list[EngineRequest]:
        """Starts whatever can start, as the engine's feeder does."""
        started: list[EngineRequest] = []
        while True:
            waiting, demand, running = self.queue.queued, self.queue.demand, len(self.alive)
            if (request := self.queue.start_next()) is None:
                break
            request.collector = object()
            if request.ahead:
                self.since_step += 1
                self.begun.append(request)
                assert waiting == 0, "demand goes first"
                own = sum(each.search_id == request.search_id and not each.ahead for each in self.alive)
                assert demand - (own if request.params.max_tokens == SOLUTION_TOKENS else 0) <= self.device.beside
                assert running < BATCH
                assert self.since_step <= AHEAD_PER_STEP or running == 0
                if self.clamp is not None:
                    assert self.clamp.ledger.free >= int(AHEAD_FREE * self.clamp.ledger.capacity) or running == 0
            started.append(request)
            self.running.append(request)
        assert self.queue.queued == 0 or not self.ahead, "demand waits beside what nobody asked for"
        return started

    @property
    def alive(self) -> list[EngineRequest]:
        """The started requests that have not ended."""
        self.running = [each for each in self.running if each.ending is None]
        return self.running

    @property
    def ahead(self) -> list[EngineRequest]:
        """Those of them that nobody has asked for."""
        return [each for each in self.alive if each.ahead]

    def step(self) -> None:
        self.since_step = 0
        self.queue.stepped(0, 0)

    def finish(self, request: EngineRequest, tokens: int = 2) -> None:
        request.output = output(*(next(self._numbers) for _ in range(tokens)))
        self.queue.end(request, Ending.FINISHED)

    def submit(self, search_id: str = "other", growth: int = 1) -> EngineRequest:
        """Queues a request of a search that nothing is written ahead for."""
        token_ids = (next(self._numbers),)
        request = EngineRequest(
            search_id, None, token_ids, Params(), "", Lane.DEMAND, lambda ended: None, growth=growth
        )
        assert self.queue.submit(request)
        return request


class Wanted(SimpleNamespace):
    """A branch that a call asks for."""

    parent: NodeId
    index: int
    token_ids: tuple[int, ...]
    seed: int | None
    max_tokens: int


def wanted(parent: NodeId, index: int, token_ids: tuple[int, ...], /, **changes: Any) -> Wanted:
    """A branch as the search asks for it, but for ``changes``."""
    max_tokens = min(STEP_TOKENS, PATH_TOKENS - len(token_ids))
    as_asked = {"seed": branch_seed(SEED, parent, index), "max_tokens": max_tokens}
    return Wanted(**{"parent": parent, "index": index, "token_ids": token_ids, **as_asked, **changes})


@dataclass
class Call:
    """One call of a search, as `GenerationEngine.expand` makes it."""

    engine: Engine
    search_id: str = "search"
    salt: str = ""
    temperature: float = 0.8
    logprobs: bool = False
    merges: bool = True
    children: float = 1
    most: int = WIDTH
    whole: bool = False
    """Whether it asks for whole solutions."""
    later: tuple[int, int] | None = None
    """Where it asks for whole solutions in rounds: index and number of those of later rounds."""
    seed: int = SEED
    thoughts: tuple[tuple[NodeId, str], ...] = ()
    open: dict[EngineRequest, Wanted] = field(default_factory=dict)
    """Requests whose output the search does not have yet."""
    adopted: dict[EngineRequest, Wanted] = field(default_factory=dict)
    _context: "AbstractContextManager[SearchAhead | None] | None" = None
    ahead: SearchAhead | None = None

    @property
    def request(self) -> ExpandRequest:
        limits = STEP_TOKENS, PATH_TOKENS, MAX_DEPTH
        ahead: Ahead | AheadSamples | None
        ahead = Ahead(self.seed, self.children, self.most, *limits, self.merges, self.thoughts)
        if self.whole:
            ahead = self.later and AheadSamples(self.seed, *self.later, SOLUTION_TOKENS)
        return ExpandRequest(
            self.search_id,
            (ExpandItem((), PROMPT, ()),),
            Sampling(self.temperature),
            StopCondition.SOLUTION if self.whole else StopCondition.STEP,
            Lane.DEMAND,
            60.0,
            self.logprobs,
            self.salt,
            ahead=ahead,
        )

    def begin(self, *branches: Wanted) -> "Call":
        template, book = Params(), self.engine.book
        self._context = book.call(self.request, template)  # type: ignore[arg-type]
        self.ahead = self._context.__enter__()
        for branch in branches:
            params = copy(template)
            params.max_tokens = branch.max_tokens
            params.seed = branch.seed if self.temperature > 0 else None
            begun = None
            if self.ahead is not None:
                begun = self.ahead.adopt(branch.parent, branch.index, branch.token_ids, params)  # type: ignore[arg-type]
            if begun is None:
                begun = EngineRequest(
                    self.search_id, None, branch.token_ids, params, self.salt, Lane.DEMAND, lambda ended: None
                )
                assert self.engine.queue.submit(begun)
            else:
                self._check(begun, branch)
            self.open[begun] = branch
        if self.ahead is not None:
            self.ahead.give_up_rest()
        return self

    def _check(self, begun: EngineRequest, branch: Wanted) -> None:
        """An adopted request writes what the branch would."""
        assert begun in self.engine.begun
        assert begun not in self.engine.adopted, "adopted before"
        assert not begun.ahead
        assert begun.ending in (None, Ending.FINISHED)
        assert (begun.search_id, begun.cache_salt) == (self.search_id, self.salt)
        assert begun.token_ids == branch.token_ids
        assert begun.params.max_tokens == branch.max_tokens
        assert begun.params.seed == (branch.seed if self.temperature > 0 else None)
        self.engine.adopted.add(begun)
        self.adopted[begun] = branch

    def take(self, request: EngineRequest, text: str = "", end: StepEnd = StepEnd.DELIMITER) -> tuple[int, ...]:
        """The search gets a finished request's step. Returns the path with it."""
        branch = self.open.pop(request)
        new = request.output.outputs[0].token_ids
        path = (*branch.token_ids, *new)
        step = Step(new, text or f"step {new}\n\n", end)
        if self.ahead is not None:
            self.ahead.wrote([(Child(branch.parent, branch.index, (step,), 0), path)])
        return path

    def write(self, text: str = "", end: StepEnd = StepEnd.DELIMITER) -> list[tuple[NodeId, tuple[int, ...]]]:
        """The engine finishes all requests, in the order of the branches, and the search takes them."""
        self.engine.start()
        written: list[tuple[NodeId, tuple[int, ...]]] = []
        for request, branch in list(self.open.items()):
            if request.ending is None:
                self.engine.finish(request)
            written.append(((*branch.parent, branch.index), self.take(request, text, end)))
        return written

    def end(self) -> None:
        assert self._context is not None
        assert not self.open
        self._context.__exit__(None, None, None)

    def close(self) -> None:
        """Its caller is gone: its own requests are aborted, and the generator is closed."""
        for request in self.open:
            if request.ending is None:
                self.engine.queue.end(request, Ending.ABORTED)
        assert self._context is not None
        assert not self._context.__exit__(GeneratorExit, GeneratorExit(), None)


@contextmanager
def clocked() -> Iterator[Clock]:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_ahead, "asyncio", clock)
        patch.setattr(write_ahead, "time", clock)
        yield clock


@pytest.fixture
def clock() -> Iterator[Clock]:
    with clocked() as clock:
        yield clock


def first_call(engine: Engine, branches: int = 1, **kind: Any) -> list[tuple[NodeId, tuple[int, ...]]]:
    """The first steps of a search, each with its own text. Nothing is begun below them yet."""
    call = Call(engine, **kind).begin(*(wanted((), index, PROMPT) for index in range(branches)))
    written = call.write()
    call.end()
    return written


def assert_idle(engine: Engine) -> None:
    assert engine.queue.check_integrity() == []
    assert engine.book.check_integrity() == []
    counts, queue = engine.book.counts, engine.queue.counts
    assert queue["begun"] == sum(queue[ending.value] for ending in Ending)
    assert counts["ahead_adopted"] == len(engine.adopted)
    assert engine.clamp is None or engine.clamp.running == engine.clamp.pressure == 0


# What is adopted.


def test_children_of_a_step_are_begun_and_adopted_finished_or_not(clock: Clock) -> None:
    engine = Engine(clock)
    [(node, path)] = first_call(engine)
    begun = engine.start()
    assert [each.params for each in begun] == [Params(branch_seed(SEED, node, index), STEP_TOKENS) for index in (0, 1)]
    assert {each.token_ids for each in begun} == {path}
    engine.finish(begun[0])
    call = Call(engine).begin(*(wanted(node, index, path) for index in range(3)))
    assert list(call.adopted) == begun
    assert engine.queue.demand == 2, "one runs, and one that was not begun waits"
    call.write()
    call.end()
    counts = engine.book.counts
    assert (counts["ahead_begun"], counts["ahead_adopted"], counts["ahead_adopted_finished"]) == (2, 2, 1)
    assert counts["ahead_unused_tokens"] == 0


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ({"search_id": "another"}, {}),
        ({"salt": "another"}, {}),
        ({"temperature": 0.9}, {}),
        ({"temperature": 0.0}, {}),
        ({"logprobs": True}, {}),
        ({}, {"seed": 1}),
        ({}, {"max_tokens": STEP_TOKENS - 1}),
        ({}, {"token_ids": (*PROMPT, 1, 1)}),
        ({}, {"parent": (1,)}),
        ({}, {"index": 2}),
        ({}, {"index": -1}),
    ],
)
def test_only_a_branch_that_would_write_the_same_adopts(
    clock: Clock, kind: dict[str, Any], changes: dict[str, Any]
) -> None:
    engine = Engine(clock)
    [(node, path)] = first_call(engine)
    begun = engine.start()
    call = Call(engine, **kind).begin(wanted(node, 0, path, **changes))
    assert not call.adopted
    if call.search_id == "search":
        assert all(each.ending is Ending.ABORTED for each in begun)
    call.write()
    call.end()
    clock.pass_time(MOST_LINGER_S)
    assert_idle(engine)


def test_greedy_children_have_no_seed(clock: Clock) -> None:
    engine = Engine(clock)
    [(node, path)] = first_call(engine, temperature=0.0)
    [begun, _] = engine.start()
    call = Call(engine, temperature=0.0).begin(wanted(node, 0, path))
    assert list(call.adopted) == [begun]


def test_nothing_is_adopted_twice(clock: Clock) -> None:
    engine = Engine(clock)
    [(node, path)] = first_call(engine)
    [begun, _] = engine.start()
    call = Call(engine).begin(wanted(node, 0, path), wanted(node, 0, path))
    assert list(call.adopted) == [begun]


def test_a_child_that_failed_or_was_given_up_is_written_anew(clock: Clock) -> None:
    engine = Engine(clock)
    [(node, path)] = first_call(engine)
    failed, _ = engine.start()
    engine.queue.end(failed, Ending.FAILED)
    call = Call(engine).begin(wanted(node, 0, path), wanted(node, 1, path))
    assert [branch.index for branch in call.adopted.values()] == [1]


def test_a_step_gets_the_tokens_that_its_path_leaves(clock: Clock) -> None:
    engine = Engine(clock)
    long = tuple(range(PATH_TOKENS - 5))
    call = Call(engine).begin(wanted((), 0, long))
    [(node, path)] = call.write()
    call.end()
    begun = engine.start()
    assert {each.params.max_tokens for each in begun} == {3}
    assert len(Call(engine).begin(wanted(node, 0, path)).adopted) == 1


# Which steps are continued.


@pytest.mark.parametrize(
    ("end", "text", "parent", "prefix"),
    [
        (StepEnd.END_OF_SEQUENCE, "", (), PROMPT),
        (StepEnd.LENGTH, "", (), PROMPT),
        (StepEnd.DELIMITER, "So it is $\\boxed{4}$.\n\n", (), PROMPT),
        (StepEnd.DELIMITER, "", (0,) * (MAX_DEPTH - 1), PROMPT),
        (StepEnd.DELIMITER, "", (), tuple(range(PATH_TOKENS - 2))),
    ],
    ids=["end", "cut off", "boxed", "deepest", "full"],
)
def test_a_step_that_ends_its_path_is_not_continued(
    clock: Clock, end: StepEnd, text: str, parent: NodeId, prefix: tuple[int, ...]
) -> None:
    engine = Engine(clock)
    call = Call(engine).begin(wanted(parent, 0, prefix))
    call.write(text, end)
    call.end()
    assert engine.start() == []
    if len(parent) == MAX_DEPTH - 1:
        call = Call(engine, search_id="less deep").begin(wanted(parent[1:], 0, prefix))
        call.write()
        assert engine.start() != []


BOX = "Perhaps \\boxed{4}.\n\n"


@pytest.mark.parametrize(
    ("thoughts", "text", "continued"),
    [
        ({(): "<think>"}, BOX, True),
        ({(): "<reasoning>"}, f"Or 3.</think>{BOX}", True),
        ({(): "<think>"}, f"Or 3.</think>{BOX}", False),
        ({(1,): "<think>"}, BOX, False),
        ({}, f"<think>{BOX}", True),
    ],
)
def test_a_step_with_a_box_in_a_thought_is_continued(
    clock: Clock, thoughts: dict[NodeId, str], text: str, continued: bool
) -> None:
    engine = Engine(clock)
    call = Call(engine, thoughts=tuple(thoughts.items())).begin(wanted((), 0, PROMPT))
    call.write(text)
    assert bool(engine.start()) is continued


def test_of_equal_siblings_the_lowest_is_continued_whatever_comes_first(clock: Clock) -> None:
    engine = Engine(clock)
    call = Call(engine, most=16).begin(*(wanted((), index, PROMPT) for index in range(3)))
    engine.start()
    first, second, third = list(call.open)
    for each in (first, second, third):
        engine.finish(each)
    call.take(second, "same\n\n")
    outdated = engine.start()
    assert len(outdated) == 2
    call.take(third, "same\n\n")
    more = engine.start()
    assert len(more) == 2, "two copies may expect twice as many"
    assert {each.token_ids for each in (*outdated, *more)} == {outdated[0].token_ids}
    path = call.take(first, "same\n\n")
    assert all(each.ending is Ending.ABORTED for each in (*outdated, *more))
    engine.step()
    begun = engine.start()
    assert [each.params.seed for each in begun] == [branch_seed(SEED, (0,), index) for index in range(6)]
    assert {each.token_ids for each in begun} == {path}
    call.end()
    assert len(Call(engine).begin(wanted((0,), 5, path), wanted((1,), 0, outdated[0].token_ids)).adopted) == 1


def test_siblings_that_are_not_merged_are_each_continued(clock: Clock) -> None:
    engine = Engine(clock)
    call = Call(engine, merges=False).begin(wanted((), 0, PROMPT), wanted((), 1, PROMPT))
    written = call.write("same\n\n")
    call.end()
    begun = engine.start()
    assert Counter(each.token_ids for each in begun) == {path: 2 for _, path in written}
    assert len(Call(engine, merges=False).begin(*(wanted(node, 0, path) for node, path in written)).adopted) == 2


def test_first_children_of_all_steps_come_before_second_ones(clock: Clock) -> None:
    engine = Engine(clock, setting=3.0)
    written = first_call(engine, branches=4)
    begun = engine.start()
    assert len(begun) == AHEAD_PER_STEP
    assert [each.token_ids for each in begun] == 2 * [path for _, path in written]


@pytest.mark.parametrize(("setting", "children", "most", "expected"), [(2.0, 1, 3, 2), (0.4, 2, 3, 1), (16.0, 1, 3, 3)])
def test_the_setting_is_a_multiple_of_the_expected_children(
    clock: Clock, setting: float, children: int, most: int, expected: int
) -> None:
    engine = Engine(clock, setting)
    first_call(engine, children=children, most=most)
    assert len(engine.start()) == expected


# What is given up.


def test_what_the_next_call_does_not_ask_for_is_given_up(clock: Clock) -> None:
    engine = Engine(clock)
    written = first_call(engine, branches=3)
    begun = engine.start()
    assert len(begun) == 6
    engine.finish(begun[5], tokens=4)
    node, path = written[0]
    call = Call(engine).begin(wanted(node, 0, path))
    assert engine.ahead == []
    assert engine.alive == begun[:1]
    assert engine.book.counts["ahead_unused_tokens"] == 4 + 4 * 1
    assert call.ahead is not None
    assert call.ahead.take_unused_tokens() == 8
    assert call.ahead.take_unused_tokens() == 0
    call.write()
    call.end()


def test_a_call_that_is_closed_leaves_nothing_of_its_search(clock: Clock) -> None:
    engine = Engine(clock)
    written = first_call(engine, branches=2)
    engine.start()
    call = Call(engine).begin(*(wanted(node, 0, path) for node, path in written))
    for request in call.open:
        engine.finish(request)
    call.take(next(iter(call.open)))
    engine.step()
    assert any(each.ahead for each in engine.start())
    call.close()
    assert_idle(engine)
    engine.step()
    assert engine.start() == [], "what is not begun is not begun any more"


def test_a_call_that_fails_at_once_leaves_nothing_of_its_search(clock: Clock) -> None:
    engine = Engine(clock)
    first_call(engine)
    assert len(engine.start()) == 2
    request = Call(engine).request
    with pytest.raises(RuntimeError), engine.book.call(request, Params()):  # type: ignore[arg-type]
        raise RuntimeError("one of its branches was refused, before the rest was given up")
    assert_idle(engine)


def test_a_search_that_does_not_come_again_is_forgotten(clock: Clock) -> None:
    engine = Engine(clock)
    first_call(engine)
    assert len(engine.start()) == 2
    clock.pass_time(LEAST_LINGER_S - 0.1)
    assert len(engine.ahead) == 2
    clock.pass_time(0.2)
    assert_idle(engine)
    assert engine.book.counts["ahead_unused_tokens"] == 2


def test_a_call_in_progress_is_not_forgotten(clock: Clock) -> None:
    engine = Engine(clock)
    [(node, path)] = first_call(engine)
    engine.start()
    call = Call(engine).begin(wanted(node, 0, path))
    clock.pass_time(10 * MOST_LINGER_S)
    [(node, path)] = call.write()
    call.end()
    engine.step()
    engine.start()
    assert Call(engine).begin(wanted(node, 0, path)).adopted


def test_searches_with_long_waits_are_kept_for_longer(clock: Clock) -> None:
    engine = Engine(clock)
    [(node, path)] = first_call(engine)
    clock.pass_time(1.5)
    call = Call(engine).begin(wanted(node, 0, path))
    call.write()
    call.end()
    engine.start()
    clock.pass_time(7.0)
    assert engine.ahead
    clock.pass_time(1.0)
    assert_idle(engine)


def test_the_setting_can_change_at_any_time(clock: Clock) -> None:
    engine = Engine(clock)
    [(node, path)] = first_call(engine)
    engine.start()
    engine.book.setting = "off"
    call = Call(engine).begin(wanted(node, 0, path))
    assert call.ahead is None
    assert engine.ahead == []
    call.write()
    call.end()
    assert engine.start() == []
    assert_idle(engine)


def test_a_search_that_goes_on_with_whole_solutions_adopts_no_steps(clock: Clock) -> None:
    engine = Engine(clock)
    [(node, path)] = first_call(engine)
    assert len(engine.start()) == 2
    call = Call(engine, whole=True).begin(wanted(node, 0, path))
    assert not call.adopted
    assert engine.ahead == []
    call.write()
    call.end()
    assert_idle(engine)


# Beside demand.


def begun_ahead(engine: Engine) -> list[EngineRequest]:
    """What an idle engine begins below the eight steps of a first call."""
    first_call(engine, branches=8)
    begun: list[EngineRequest] = []
    while started := engine.start():
        begun += started
        engine.step()
    return begun


def test_demand_takes_the_slots_of_what_is_written_ahead_the_newest_first(clock: Clock) -> None:
    engine = Engine(clock)
    begun = begun_ahead(engine)
    assert len(begun) == BATCH
    demand = [engine.submit() for _ in range(3)]
    assert engine.start() == demand
    assert engine.ahead == begun[:-3]
    assert engine.queue.demand == 3


def test_what_demand_ended_is_not_counted_again_when_the_rest_is_given_up(clock: Clock) -> None:
    engine = Engine(clock)
    begun = begun_ahead(engine)
    demand = [engine.submit() for _ in range(3)]
    assert engine.start() == demand
    assert engine.book.counts["ahead_unused_tokens"] == 3, "one token each"
    Call(engine).begin()
    assert engine.ahead == []
    assert engine.book.counts["ahead_unused_tokens"] == len(begun)


def test_on_a_gpu_children_are_begun_beside_a_few_requests_in_demand(clock: Clock) -> None:
    engine = Engine(clock, device=CPU._replace(beside=2))
    first_call(engine, branches=2)
    demand = [engine.submit() for _ in range(2)]
    assert engine.start()[:2] == demand
    assert engine.ahead
    engine.book.give_up(engine.ahead)
    last = engine.submit()
    engine.step()
    assert engine.start() == [last]
    assert not engine.ahead


def test_demand_takes_the_memory_of_what_is_written_ahead(clock: Clock) -> None:
    engine = Engine(clock, blocks=20)
    first_call(engine, branches=8)
    while engine.start():
        engine.step()
    assert engine.clamp is not None
    assert engine.clamp.ledger.free >= int(AHEAD_FREE * 20)
    assert engine.ahead
    large = engine.submit(growth=20 * BLOCK - 1)
    assert engine.start() == [large]
    assert engine.ahead == []
    assert not large.waited


def test_nothing_is_begun_beside_demand(clock: Clock) -> None:
    engine = Engine(clock)
    demand = [engine.submit() for _ in range(2)]
    assert engine.start() == demand
    first_call(engine)
    engine.finish(demand[0])
    assert engine.start() == []
    engine.finish(demand[1])
    assert len(engine.start()) == 2


def test_children_that_are_never_begun_are_not_kept(clock: Clock) -> None:
    """Under steady demand no child is ever begun: the list of those to begin must not grow for ever."""
    engine = Engine(clock)
    for _ in range(2):
        engine.submit()
    engine.start()
    for number in range(2000):
        first_call(engine, search_id=f"search {number}", branches=4)
        if number % 20 == 0:
            clock.pass_time(MOST_LINGER_S)
    assert len(engine.book._wanted) < 2000


# Whole solutions of later rounds.


def solutions(engine: Engine, indices: range, n: int = 12, search_id: str = "search", seed: int = SEED) -> Call:
    """A call that asks for these solutions of ``n``."""
    asked = [
        wanted((), index, PROMPT, max_tokens=SOLUTION_TOKENS, seed=branch_seed(seed, (), index)) for index in indices
    ]
    later = indices.stop, n - indices.stop
    return Call(engine, search_id, whole=True, later=later, seed=seed).begin(*asked)


def written_ahead(requests: Sequence[EngineRequest]) -> list[int]:
    """The indices of solutions that were written ahead."""
    index = {branch_seed(SEED, (), number): number for number in range(20)}
    return [index[each.params.seed] for each in requests if each.ahead]


def test_solutions_of_all_later_rounds_are_begun_and_adopted_in_their_rounds(clock: Clock) -> None:
    engine = Engine(clock)
    first = solutions(engine, range(4))
    assert written_ahead(engine.start()) == [*range(4, 12)], "at once, beside the demand of their own search"
    early = dict(zip(range(4, 12), engine.begun, strict=True))
    engine.finish(early[5])
    engine.finish(early[9])
    first.write()
    first.end()
    second = solutions(engine, range(4, 8))
    assert [branch.index for branch in second.adopted.values()] == [4, 5, 6, 7]
    assert [*second.adopted] == [early[index] for index in range(4, 8)]
    second.write()
    second.end()
    third = solutions(engine, range(8, 12))
    assert [*third.adopted] == [early[index] for index in range(8, 12)]
    third.write()
    third.end()
    assert engine.book.counts["ahead_begun"] == engine.book.counts["ahead_adopted"] == 8
    assert engine.book.counts["ahead_unused_tokens"] == 0
    clock.pass_time(MOST_LINGER_S)
    assert_idle(engine)


def test_no_solutions_are_begun_beside_the_demand_of_others(clock: Clock) -> None:
    engine = Engine(clock)
    other = engine.submit()
    call = solutions(engine, range(4))
    assert written_ahead(engine.start()) == []
    engine.finish(other)
    assert written_ahead(engine.start()) == [*range(4, 12)]
    call.write()


def test_two_searches_do_not_write_ahead_beside_each_other(clock: Clock) -> None:
    engine = Engine(clock)
    calls = solutions(engine, range(4)), solutions(engine, range(4), search_id="another")
    assert written_ahead(engine.start()) == []
    calls[1].write()
    assert calls[1].ahead is not None
    assert calls[1].ahead.samples_at_last() == 0
    assert written_ahead(engine.start()) == [*range(4, 12)]


def test_children_of_steps_are_begun_before_solutions(clock: Clock) -> None:
    engine = Engine(clock, device=CPU._replace(beside=4))
    others = [engine.submit() for _ in range(5)]
    call = solutions(engine, range(2), n=4)
    [(_, path)] = first_call(engine, search_id="steps")
    assert not engine.begun
    for other in others[:3]:
        engine.finish(other)
    assert [each.token_ids for each in engine.start()] == [path, path, PROMPT, PROMPT]
    call.write()


def test_nothing_is_begun_between_the_last_solution_of_a_round_and_the_next_round(clock: Clock) -> None:
    """The search may be decided: then nobody asks for more."""
    engine = Engine(clock)
    other = engine.submit()
    call = solutions(engine, range(4))
    call.write()
    assert call.ahead is not None
    assert call.ahead.samples_at_last() == 0
    engine.finish(other)
    call.end()
    assert engine.start() == []
    call = solutions(engine, range(4, 8))
    assert written_ahead(engine.start()) == [*range(8, 12)]
    call.write()


def test_the_last_solutions_say_how_many_were_begun(clock: Clock) -> None:
    engine = Engine(clock)
    call = solutions(engine, range(4))
    engine.start()
    engine.finish(engine.begun[0])
    engine.book.give_up([engine.begun[1]])
    call.write()
    assert call.ahead is not None
    assert call.ahead.samples_at_last() == 7


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_search_that_has_ended_gives_everything_up_and_learns_its_tokens(leaves: bool) -> None:
    """Those that the engine has finished, and those that it is still writing. ``leaves``: the search has its answer
    before its last call has ended."""
    with clocked() as clock:
        engine = Engine(clock)
        call = solutions(engine, range(4))
        engine.start()
        engine.finish(engine.begun[0], tokens=5)
        call.write()
        call.close() if leaves else call.end()
        waited: list[int] = []

        async def aborted() -> None:
            waited.append(engine.wasted)

        assert await engine.book.release("search", aborted) == 5 + 7 * 1
        assert waited == [7]
        assert await engine.book.release("search", aborted) == 0
        assert engine.alive == []
        assert_idle(engine)


def test_solutions_whose_place_demand_has_taken_are_requested_like_others(clock: Clock) -> None:
    engine = Engine(clock)
    first = solutions(engine, range(4))
    engine.start()
    demand = [engine.submit() for _ in range(6)]
    assert engine.start() == demand
    first.write()
    first.end()
    second = solutions(engine, range(4, 8))
    assert [branch.index for branch in second.adopted.values()] == [4, 5]
    assert len(second.open) == 4


@pytest.mark.parametrize("changes", [{"temperature": 0.5}, {"logprobs": True}, {"salt": "other"}])
def test_solutions_of_another_kind_are_not_adopted(clock: Clock, changes: dict[str, Any]) -> None:
    engine = Engine(clock)
    first = solutions(engine, range(4))
    engine.start()
    first.write()
    first.end()
    branch = wanted((), 4, PROMPT, max_tokens=SOLUTION_TOKENS)
    call = Call(engine, whole=True, later=(5, 7), **changes).begin(branch)
    assert not call.adopted
    assert not engine.ahead


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_whatever_happens_solutions_are_those_that_are_asked_for(data: st.DataObject) -> None:
    """Two votes in rounds take turns beside other demand; `Call` checks what it adopts."""
    with clocked() as clock:
        engine = Engine(clock, blocks=data.draw(st.sampled_from([None, 60])), device=CPU._replace(beside=2))
        written = dict.fromkeys("ab", 0)
        calls: dict[str, Call] = {}
        others: list[EngineRequest] = []
        for _ in range(data.draw(st.integers(1, 25))):
            name = data.draw(st.sampled_from("ab"))
            what = data.draw(st.sampled_from(["call", "start", "finish", "end", "end", "submit", "wait", "close"]))
            if what == "call" and name not in calls and written[name] < 12:
                number = data.draw(st.integers(1, min(4, 12 - written[name])))
                begin = written[name]
                calls[name] = solutions(engine, range(begin, begin + number), search_id=name)
                written[name] += number
            elif what == "start":
                engine.step()
                engine.start()
            elif what == "finish" and engine.alive:
                engine.finish(data.draw(st.sampled_from(engine.alive)))
            elif what == "end" and name in calls:
                call = calls.pop(name)
                call.write()
                assert call.ahead is not None
                call.ahead.samples_at_last()
                call.end()
            elif what == "submit":
                others.append(engine.submit())
            elif what == "wait":
                clock.pass_time(data.draw(st.floats(0, MOST_LINGER_S)))
            elif what == "close" and name in calls:
                calls.pop(name).close()
                assert not engine.queue.searches[name]
        for call in calls.values():
            call.close()
        for each in others:
            if each.ending is None:
                engine.queue.end(each, Ending.ABORTED)
        clock.pass_time(MOST_LINGER_S + 1)
        assert_idle(engine)
        assert engine.start() == []


# Whatever happens.


class Book(RuleBasedStateMachine):
    """Calls of several searches begin, go on, end and are closed beside other demand, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self._clocked = clocked()
        self.clock = self._clocked.__enter__()
        self.engine = Engine(self.clock, blocks=60)
        self.calls: dict[str, Call] = {}
        self.open: dict[str, list[tuple[NodeId, tuple[int, ...]]]] = {}
        """For each search its steps that can be continued."""
        self.others: list[EngineRequest] = []

    @initialize(beside=st.sampled_from([0, 3]))
    def device(self, beside: int) -> None:
        self.engine = Engine(self.clock, blocks=60, device=CPU._replace(beside=beside))

    @rule(data=st.data(), search_id=st.sampled_from("ab"), salt=st.sampled_from(["", "", "", "salt"]))
    def call(self, data: st.DataObject, search_id: str, salt: str) -> None:
        if search_id in self.calls:
            return
        branches: list[Wanted] = []
        for node, path in self.open.pop(search_id, []) or [((), PROMPT)]:
            for index in range(data.draw(st.integers(0, 3))):
                changes = data.draw(
                    st.sampled_from([*[{}] * 12, {"seed": 1}, {"max_tokens": 1}, {"token_ids": (*path, 0)}])
                )
                branches.append(wanted(node, index, path, **changes))
        earlier = [each for each in self.engine.begun if each.search_id == search_id and each.ahead]
        self.calls[search_id] = Call(self.engine, search_id, salt, most=4).begin(*branches)
        assert all(each.ending for each in earlier if each.ahead), "what was not adopted is given up"

    @precondition(lambda self: self.engine.alive)
    @rule(data=st.data(), tokens=st.integers(1, 6))
    def finish(self, data: st.DataObject, tokens: int) -> None:
        request = data.draw(st.sampled_from(self.engine.alive))
        fails = request.ahead and data.draw(st.booleans())
        if fails:
            self.engine.queue.end(request, Ending.FAILED)
        else:
            self.engine.finish(request, tokens)

    @precondition(lambda self: any(each.ending for call in self.calls.values() for each in call.open))
    @rule(data=st.data(), text=st.sampled_from(["", "same\n\n"]), end=st.sampled_from(StepEnd))
    def take(self, data: st.DataObject, text: str, end: StepEnd) -> None:
        done = [(call, each) for call in self.calls.values() for each in call.open if each.ending]
        call, request = data.draw(st.sampled_from(done))
        branch = call.open[request]
        path = call.take(request, text, end)
        self.open.setdefault(call.search_id, []).append(((*branch.parent, branch.index), path))

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), seconds=st.floats(0, 3))
    def end(self, data: st.DataObject, seconds: float) -> None:
        call = data.draw(st.sampled_from(list(self.calls.values())))
        self.clock.pass_time(seconds)
        if not call.open:
            call.end()
            del self.calls[call.search_id]

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        call = self.calls.pop(data.draw(st.sampled_from(list(self.calls))))
        call.close()
        self.open.pop(call.search_id, None)
        assert not self.engine.queue.searches[call.search_id]
        assert (
            f"requests written ahead for search {call.search_id} were not aborted"
            not in self.engine.book.check_integrity()
        )

    @rule(growth=st.integers(1, 60))
    def submit(self, growth: int) -> None:
        self.others.append(self.engine.submit(growth=growth))

    @rule()
    def step(self) -> None:
        self.engine.step()

    @rule()
    def start(self) -> None:
        self.engine.start()

    @rule(seconds=st.floats(0, 2 * MOST_LINGER_S))
    def wait(self, seconds: float) -> None:
        self.clock.pass_time(seconds)
        if seconds > MOST_LINGER_S:
            assert {each.search_id for each in self.engine.ahead} <= set(self.calls)

    @invariant()
    def counts_agree(self) -> None:
        engine, queue = self.engine, self.engine.queue
        counts = queue.counts
        assert counts["begun"] == counts["alive"] + sum(counts[ending.value] for ending in Ending)
        assert len(queue) - queue.queued == len(engine.alive)
        assert queue.demand == len(queue) - len(engine.ahead)
        clamp = engine.clamp
        assert clamp is not None
        assert clamp.running == len(engine.alive)
        ids = [each.request_id for each in engine.begun]
        assert len(set(ids)) == len(ids)
        assert engine.book.counts["ahead_begun"] >= len(engine.begun)

    def teardown(self) -> None:
        for call in self.calls.values():
            call.close()
        for each in self.others:
            if each.ending is None:
                self.engine.queue.end(each, Ending.ABORTED)
        self.clock.pass_time(MOST_LINGER_S + 1)
        assert_idle(self.engine)
        self.engine.step()
        assert self.engine.start() == []
        finished = [each for each in self.engine.begun if each.ahead and each.ending is Ending.FINISHED]
        unused = self.engine.wasted + sum(len(each.output.outputs[0].token_ids) for each in finished)
        assert self.engine.book.counts["ahead_unused_tokens"] == unused, "every token is counted once"
        self._clocked.__exit__(None, None, None)


TestBook = Book.TestCase
TestBook.settings = settings(max_examples=40, deadline=None)


# How far.


def auto_after(clock: Clock, turn_s: float) -> WriteAhead:
    """The book under ``auto`` after a call of one second and a second call ``turn_s`` later."""
    engine = Engine(clock, setting="auto")
    call = Call(engine, most=16).begin(wanted((), 0, PROMPT))
    clock.pass_time(1.0)
    [(node, path)] = call.write()
    call.end()
    assert engine.book.extent == 0
    assert engine.start() == []
    clock.pass_time(turn_s)
    Call(engine, most=16).begin(wanted(node, 0, path))
    return engine.book


def test_auto_begins_once_it_knows_how_long_rewards_take(clock: Clock) -> None:
    assert auto_after(clock, 0.5).extent == pytest.approx(1.5 + 1.5 * 0.5)


def test_auto_begins_nothing_where_rewards_come_soon(clock: Clock) -> None:
    assert auto_after(clock, 0.9 * CPU.least_turn_s).extent == 0


def test_votes_do_not_change_how_far_auto_goes(clock: Clock) -> None:
    book = auto_after(clock, 0.5)
    before = book.extent
    engine = Engine(clock, setting="auto")
    engine.book = book
    engine.queue = book._queue
    for begin in (0, 4):
        vote = solutions(engine, range(begin, begin + 4), search_id="vote")
        clock.pass_time(9.0)
        vote.write()
        vote.end()
    assert book.extent == before > 0


def test_nothing_but_solutions_is_written_ahead_where_there_is_no_time_for_steps(clock: Clock) -> None:
    engine = Engine(clock, setting="auto", device=CPU._replace(least_turn_s=math.inf))
    steps = Call(engine, search_id="steps").begin(wanted((), 0, PROMPT))
    assert steps.ahead is None
    steps.write()
    steps.end()
    vote = solutions(engine, range(4))
    assert written_ahead(engine.start()) == [*range(4, 12)]
    vote.write()


def test_auto_on_a_gpu_begins_from_the_first_step_on(clock: Clock) -> None:
    engine = Engine(clock, setting="auto", device=GPU)
    first_call(engine, branches=2)
    assert engine.book.extent == 4
    assert engine.start()
    assert engine.ahead
