"""The queue of an engine: the order of requests, slots and KV memory; and every request ends once."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from deployments.engines import fair_order
from deployments.engines.fair_order import TURN
from deployments.engines.request_queue import FLEX_RATIO, Ending, EngineRequest, RequestError, RequestQueue
from kvstore.memory.clamp import MAX_OVERCOMMIT, KVClamp
from kvstore.memory.ledger import KVLedger, TooLarge
from search.ports import Lane

BLOCK = 4
_numbers = count()


def request(
    search_id: str = "search",
    path: Sequence[int] = (),
    growth: int = 1,
    lane: Lane = Lane.DEMAND,
    owner: str = "",
    canary: bool = False,
) -> EngineRequest:
    """A request with a prefix of its own unless ``path`` is given."""
    token_ids = path or (1000 + next(_numbers),)
    return EngineRequest(
        search_id, None, token_ids, None, owner, lane, lambda ended: None, growth=growth, canary=canary
    )


def clamped(blocks: int, batch: int = 1000) -> RequestQueue:
    return RequestQueue(batch, KVClamp(KVLedger(blocks, BLOCK)), surplus=0)


def submitted(queue: RequestQueue, *requests: EngineRequest) -> list[EngineRequest]:
    for each in requests:
        assert queue.submit(each)
    return list(requests)


def started(queue: RequestQueue) -> list[EngineRequest]:
    """Starts every request that can start now."""
    return list(iter(queue.start_next, None))


def names(requests: Sequence[EngineRequest]) -> str:
    return " ".join(each.search_id for each in requests)


# Slots and order.


def test_requests_start_while_slots_are_free_and_each_end_starts_the_next() -> None:
    queue = RequestQueue(4, surplus=0.5)
    submitted(queue, *(request() for _ in range(10)))
    running = started(queue)
    assert (len(running), queue.queued, len(queue)) == (6, 4, 10)
    queue.end(running[0], Ending.FINISHED)
    queue.end(running[1], Ending.ABORTED)
    assert (len(started(queue)), queue.queued) == (2, 2)


def test_a_new_search_starts_before_the_later_turns_of_a_wide_one() -> None:
    queue = RequestQueue(1, surplus=0)
    submitted(queue, *(request("wide") for _ in range(3 * TURN)))
    order = []
    for turn in range(3 * TURN + 2):
        [running] = started(queue)
        order.append(running.search_id)
        queue.end(running, Ending.FINISHED)
        if turn == 2:
            submitted(queue, request("new"), request("new"))
    assert order[TURN : TURN + 2] == ["wide"] * 2 or "new" in order[: TURN + 2]
    assert [place for place, name in enumerate(order) if name == "new"][-1] <= 2 * TURN


def test_a_search_of_another_owner_waits_for_one_turn_however_many_searches_there_are() -> None:
    queue = RequestQueue(1, surplus=0)
    submitted(queue, *(request(f"one of many {search}", owner="many") for search in range(16) for _ in range(TURN)))
    [running] = started(queue)
    submitted(queue, *(request("single", owner="single") for _ in range(4)))
    order = []
    while queue.demand:
        queue.end(running, Ending.FINISHED)
        order += [running.search_id]
        running = queue.start_next() or running
    assert [number for number, name in enumerate(order) if name == "single"] == [*range(TURN, TURN + 4)]


def test_an_owner_leaves_slots_of_the_batch_to_others_while_there_are_any() -> None:
    queue = RequestQueue(16)
    submitted(queue, *(request("alone", owner="wide") for _ in range(20)))
    alone = started(queue)
    assert len(alone) == 20, "the whole batch, and those that start next"
    for each in alone:
        queue.end(each, Ending.FINISHED)
    submitted(queue, request("other", owner="narrow"), *(request("wide", owner="wide") for _ in range(40)))
    running = started(queue)
    assert Counter(each.search_id for each in running) == {"other": 1, "wide": 14}
    submitted(queue, request("other", owner="narrow"), request("canary", canary=True))
    assert names(started(queue)) == "canary other", "they need not wait until one of the wide search ends"
    queue.end(running[-1], Ending.FINISHED)
    assert names(started(queue)) == "wide"


def test_an_owner_has_the_whole_batch_again_when_others_have_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    queue = RequestQueue(16)
    monkeypatch.setattr(queue._order, "_clock_s", lambda: now[0])
    queue.end(*submitted(queue, request(owner="narrow")), Ending.ABORTED)
    submitted(queue, *(request(owner="wide") for _ in range(40)))
    assert len(started(queue)) == 14
    queue.end(*submitted(queue, request(canary=True)), Ending.ABORTED)
    now[0] = fair_order.OTHERS_S
    assert len(started(queue)) == 6


def test_a_narrow_search_does_not_wait_behind_a_wide_one_of_its_owner_while_another_owner_is_served() -> None:
    queue = RequestQueue(1, surplus=0)
    submitted(queue, *(request("wide", owner="slow") for _ in range(8 * TURN)))
    submitted(queue, *(request("other", owner="quick") for _ in range(8 * TURN)))
    for _ in range(4 * TURN):
        [running] = started(queue)
        queue.end(running, Ending.FINISHED)
    submitted(queue, request("narrow", owner="slow"))
    order = []
    for _ in range(4 * TURN):
        [running] = started(queue)
        order += [running.search_id]
        queue.end(running, Ending.FINISHED)
    assert "narrow" in order[: 3 * TURN], "one turn of each owner, and one of the wide search"


@given(
    waiting=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(1, 40)), max_size=20),
    slots=st.integers(1, 8),
)
def test_owners_that_wait_are_served_equally(waiting: list[tuple[str, str, int]], slots: int) -> None:
    queue = RequestQueue(slots, surplus=0)
    for owner, search, many in waiting:
        submitted(queue, *(request(owner + search, owner=owner) for _ in range(many)))
    left = Counter({owner: sum(many for name, _, many in waiting if name == owner) for owner in "abc"})
    begun: Counter[str] = Counter()
    while running := started(queue):
        for each in running:
            begun[each.owner] += 1
            left[each.owner] -= 1
            queue.end(each, Ending.FINISHED)
        served = [begun[owner] for owner in "abc" if left[owner]]
        assert not served or max(served) - min(served) <= TURN
    assert not left.total()


def test_priorities_of_owners_are_comparable() -> None:
    queue = RequestQueue(1, surplus=0)
    submitted(queue, *(request("long", owner="long") for _ in range(4 * TURN)))
    for _ in range(3 * TURN):
        [running] = started(queue)
        queue.end(running, Ending.FINISHED)
    submitted(queue, request("new", owner="new"), request("first", owner="new", lane=Lane.FIRST_STEPS))
    [first] = started(queue)
    queue.end(first, Ending.FINISHED)
    [new] = started(queue)
    queue.end(new, Ending.FINISHED)
    [later] = started(queue)
    assert (first.search_id, new.search_id, later.search_id) == ("first", "new", "long")
    assert running.priority < first.priority < new.priority
    assert abs(later.priority - new.priority) <= 2 * TURN


def test_owners_leave_nothing_behind_where_all_requests_are_aborted() -> None:
    queue = RequestQueue(1)
    for number in range(1000):
        queue.end(*submitted(queue, request(f"search {number}", owner="aborts")), Ending.ABORTED)
    assert not queue._order._owners["aborts"].order._packets


def test_a_request_that_continues_a_finished_one_has_its_place() -> None:
    queue = RequestQueue(1, surplus=0)
    submitted(queue, *(request("wide") for _ in range(2 * TURN)))
    [first] = started(queue)
    queue.end(first, Ending.FINISHED)
    queue.submit(verdict := request("wide"), place=first.place)
    submitted(queue, request("new"))
    for _ in range(TURN - 1):
        [running] = started(queue)
        queue.end(running, Ending.FINISHED)
    assert started(queue) == [verdict], "behind the rest of its turn, before the next turns of all searches"


def test_at_equal_turns_first_steps_of_a_new_search_go_first() -> None:
    queue = RequestQueue(10)
    submitted(queue, request("old"), request("new", lane=Lane.FIRST_STEPS), request("older"))
    assert names(started(queue)) == "new old older"


def test_a_canary_goes_before_all_others_and_takes_no_turn_from_them() -> None:
    queue = RequestQueue(1, surplus=0)
    submitted(queue, *(request(f"new {number}", lane=Lane.FIRST_STEPS) for number in range(20)))
    order = []
    for _ in range(3):
        submitted(queue, request("canary", canary=True))
        for _ in range(2):
            [running] = started(queue)
            order.append(running.search_id)
            queue.end(running, Ending.FINISHED)
    assert order == ["canary", "new 0", "canary", "new 1", "canary", "new 2"]


@pytest.mark.parametrize("lane", [Lane.FLEX_DEMAND, Lane.FLEX_FIRST_STEPS])
def test_under_contention_one_request_in_eight_is_flex(lane: Lane) -> None:
    queue = RequestQueue(1, surplus=0)
    submitted(queue, *(request("flex", lane=lane) for _ in range(10)))
    order = []
    for number in range(10 * (FLEX_RATIO + 1)):
        submitted(queue, request(f"other {number}"))
        [running] = started(queue)
        order.append(running.search_id)
        queue.end(running, Ending.FINISHED)
    assert [place for place, name in enumerate(order) if name == "flex"] == list(range(FLEX_RATIO, 80, FLEX_RATIO + 1))


def test_alone_flex_requests_do_not_wait() -> None:
    queue = RequestQueue(4, surplus=0)
    submitted(queue, *(request("flex", lane=Lane.FLEX_DEMAND) for _ in range(4)))
    assert len(started(queue)) == 4


async def test_a_waiting_feeder_gets_the_next_request_once_it_can_start() -> None:
    queue = RequestQueue(1, surplus=0)
    waiting = asyncio.create_task(queue.next())
    await asyncio.sleep(0)
    [first, second] = submitted(queue, request(), request())
    assert await waiting is first
    waiting = asyncio.create_task(queue.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.end(first, Ending.FAILED)
    assert await waiting is second


# Every request ends once.


@pytest.mark.parametrize("first", Ending)
@pytest.mark.parametrize("second", Ending)
def test_a_request_ends_exactly_once(first: Ending, second: Ending) -> None:
    queue = RequestQueue(4)
    told: list[EngineRequest] = []
    one = request()
    one.on_end = told.append
    submitted(queue, one)
    queue.end(one, first)
    with pytest.raises(RequestError, match=one.request_id):
        queue.end(one, second)
    assert queue.counts["begun"] == queue.counts[first.value] == 1
    assert told == [one]


def test_ids_are_unique_across_queues() -> None:
    queues = [RequestQueue(4), RequestQueue(4)]
    requests = [each for queue in queues for each in submitted(queue, *(request() for _ in range(100)))]
    assert len({each.request_id for each in requests}) == 200


def test_integrity_names_the_searches_that_left_requests_behind() -> None:
    queue = clamped(10)
    left = submitted(queue, request("tidy"), request("sloppy"), request("sloppy"))
    queue.end(left[0], Ending.ABORTED)
    assert queue.check_integrity() == ["search sloppy has 2 requests alive"]
    started(queue)
    for each in left[1:]:
        queue.end(each, Ending.FAILED)
    assert queue.check_integrity() == []


# KV memory.


def test_memory_is_given_in_order_and_no_small_request_passes_a_large_one() -> None:
    queue = clamped(4)
    first, large, small = submitted(queue, request(growth=10), request(growth=15), request())
    assert started(queue) == [first]
    queue.end(first, Ending.FINISHED)
    assert started(queue) == [large], "it needs all four"
    queue.end(large, Ending.FINISHED)
    assert started(queue) == [small]
    queue.end(small, Ending.FINISHED)
    assert queue.check_integrity() == []
    assert (queue.waited, large.waited, small.waited) == (2, True, True)


def test_an_aborted_request_frees_memory_for_those_behind_it() -> None:
    queue = clamped(4)
    first, large, small = submitted(queue, request(growth=10), request(growth=15), request())
    assert started(queue) == [first]
    queue.end(large, Ending.ABORTED)
    assert started(queue) == [small]


def test_an_optional_request_is_refused_without_memory_and_leaves_nothing_behind() -> None:
    queue = clamped(4)

    def optional(growth: int = 1) -> EngineRequest | None:
        asked = request(growth=growth)
        return asked if queue.submit(asked, reserve=True, optional=True) else None

    first = optional(growth=10)
    assert first is not None
    assert optional(growth=8) is None
    second, third = optional(), optional()
    assert second is not None
    assert third is not None, "half of the two blocks that the first reserved to grow by are free"
    assert optional() is None
    queue.end(third, Ending.ABORTED)
    needed = request(growth=9)
    assert queue.submit(needed, reserve=True)
    queue.end(second, Ending.ABORTED)
    assert optional() is None, "one that is needed waits"
    assert started(queue) == [first]
    queue.end(first, Ending.FINISHED)
    assert started(queue) == [needed]
    queue.end(needed, Ending.FINISHED)
    assert queue.check_integrity() == []
    assert queue.clamp is not None
    assert queue.clamp.pressure == 0
    with pytest.raises(TooLarge):
        queue.submit(request(path=range(40)), reserve=True, optional=True)


def test_a_request_with_reserved_memory_may_overtake_one_without() -> None:
    """Otherwise each would wait for the other: one for memory, the other for its turn."""
    queue = clamped(4)
    reserved = request("late", growth=12)
    assert queue.submit(reserved, reserve=True, place=TURN)
    early = request("early", growth=12)
    assert queue.submit(early, reserve=True)
    assert early.place < reserved.place
    assert started(queue) == [reserved]
    queue.end(reserved, Ending.FINISHED)
    assert started(queue) == [early]


def test_blocks_withheld_by_the_cache_become_free_gradually() -> None:
    queue = clamped(10)
    clamp = queue.clamp
    assert clamp is not None
    [first, second] = submitted(queue, request(growth=10), request(growth=7))
    clamp.stepped(6, preempted=0)
    assert started(queue) == [first]
    assert clamp.ledger.free == 10 - 3 - 6
    clamp.stepped(0, preempted=0)
    assert clamp.ledger.withheld == 5, "the others may be held again in the next step"
    assert started(queue) == [second]
    for _ in range(100):
        clamp.stepped(0, preempted=0)
    assert clamp.ledger.withheld == 0


def busy(requests: int) -> tuple[RequestQueue, KVClamp, list[EngineRequest]]:
    """A queue with a hundred blocks and ``requests`` requests of two blocks, and those that run."""
    queue = clamped(100)
    submitted(queue, *(request(growth=2 * BLOCK - 1) for _ in range(requests)))
    assert queue.clamp is not None
    return queue, queue.clamp, started(queue)


def turn_over(
    queue: RequestQueue, clamp: KVClamp, running: list[EngineRequest], times: int, preempted: int = 0
) -> None:
    """Ends every running request ``times`` times over and replaces it by a new one; ``preempted`` are preempted each
    time."""
    for _ in range(times):
        for _ in range(len(running)):
            queue.end(running.pop(0), Ending.FINISHED)
            submitted(queue, request(growth=2 * BLOCK - 1))
            running += started(queue)
        clamp.stepped(0, preempted)
        running += started(queue)


def test_overcommit_grows_while_requests_wait_for_memory() -> None:
    queue, clamp, running = busy(60)
    assert (len(running), queue.queued) == (49, 11)

    turn_over(queue, clamp, running, times=20)

    assert queue.queued == 0
    assert [clamp.ledger.held, clamp.ledger.growth] == [60, 60]
    assert clamp.ledger.reserved == 100
    overcommit = clamp.overcommit
    assert 20 <= overcommit < 24
    assert clamp.pressure == 90 / 100
    turn_over(queue, clamp, running, times=20)
    assert clamp.overcommit == overcommit, "none waited"
    for each in running:
        queue.end(each, Ending.FINISHED)
    assert queue.check_integrity() == []


def test_overcommit_shrinks_if_too_many_requests_are_preempted() -> None:
    queue, clamp, running = busy(200)
    turn_over(queue, clamp, running, times=20)
    before = clamp.overcommit
    turn_over(queue, clamp, running, times=10, preempted=1)
    assert clamp.overcommit > before, "few of them were"
    for _ in range(20):
        clamp.stepped(0, preempted=clamp.running // 4)
    assert clamp.overcommit == 0.0
    turn_over(queue, clamp, running, times=1)
    assert clamp.running <= 51


def test_requests_that_wait_for_slots_only_cause_no_overcommit() -> None:
    queue = clamped(100, batch=4)
    submitted(queue, *(request() for _ in range(20)))
    for _ in range(10):
        for each in started(queue):
            queue.end(each, Ending.FINISHED)
    assert queue.clamp is not None
    assert queue.clamp.overcommit == 0.0


# Calls that have the engine alone.


def alone_in(queue: RequestQueue, search_id: str, count: int = 1) -> tuple[object, list[EngineRequest]]:
    call = object()
    queue.enter_alone(call)
    asked = [request(search_id) for _ in range(count)]
    for each in asked:
        each.alone = call
    return call, submitted(queue, *asked)


def finish(queue: RequestQueue, *ended: EngineRequest) -> None:
    for each in ended:
        queue.end(each, Ending.FINISHED)


def test_a_call_alone_starts_when_the_others_have_ended_and_others_wait_for_its_end() -> None:
    queue = RequestQueue(4, surplus=0)
    submitted(queue, request("a"), request("a"))
    before = started(queue)
    call, _ = alone_in(queue, "suspect", 2)
    submitted(queue, request("b"))
    assert started(queue) == []
    finish(queue, before[0])
    assert started(queue) == []
    finish(queue, before[1])
    suspect = started(queue)
    assert names(suspect) == "suspect suspect"
    finish(queue, *suspect)
    assert started(queue) == [], "it may ask for more yet"
    queue.leave_alone(call)
    assert names(started(queue)) == "b"


def test_canaries_run_beside_a_call_alone() -> None:
    queue = RequestQueue(4, surplus=0)
    submitted(queue, request("probe", canary=True))
    [canary] = started(queue)
    _, [suspect] = alone_in(queue, "suspect")
    assert started(queue) == [suspect]
    submitted(queue, request("probe", canary=True), request("a"))
    assert [each.canary for each in started(queue)] == [True]
    finish(queue, canary)


def test_between_two_calls_alone_others_fill_a_batch() -> None:
    queue = RequestQueue(2, surplus=0)
    order = []
    first, [suspect] = alone_in(queue, "first")
    second, _ = alone_in(queue, "second")
    submitted(queue, *(request("a") for _ in range(4)))
    assert started(queue) == [suspect]
    finish(queue, suspect)
    queue.leave_alone(first)
    while running := started(queue):
        order.append(names(running))
        finish(queue, *running)
        if "second" in order[-1]:
            queue.leave_alone(second)
    assert order == ["a a", "second", "a a"]


def test_nobody_waits_for_a_call_alone_that_is_gone() -> None:
    queue = RequestQueue(2, surplus=0)
    submitted(queue, request("a"))
    [running] = started(queue)
    call, [suspect] = alone_in(queue, "suspect")
    submitted(queue, request("b"))
    assert started(queue) == []
    queue.end(suspect, Ending.ABORTED)
    queue.leave_alone(call)
    assert names(started(queue)) == "b"
    finish(queue, running)


def test_the_searches_at_a_dead_engine_are_those_that_were_handed_to_it() -> None:
    queue = RequestQueue(2, surplus=0)
    submitted(queue, request("runs"), request("failed"), request("waits"))
    running = started(queue)
    running[1].collector = object()
    queue.end(running[1], Ending.FAILED)
    queue.end(submitted(queue, request("refused"))[0], Ending.FAILED)
    assert queue.at_engine == {"runs", "failed"}


def test_an_aborted_request_is_at_the_engine_until_that_has_read_the_abort() -> None:
    queue = RequestQueue(2, surplus=0)
    submitted(queue, request("left"), request("left early"), request("stays"))
    [left, early] = started(queue)
    left.collector = object()
    for each in (left, early):
        queue.end(each, Ending.ABORTED)
    assert queue.at_engine == {"left"}
    queue.stepped(0, 0)
    assert queue.at_engine == {"left"}
    queue.stepped(0, 0)
    assert queue.at_engine == frozenset()


paths = st.lists(st.integers(0, 1), min_size=1, max_size=40)


class Queue(RuleBasedStateMachine):
    """Requests are submitted, start, end and are aborted in the queue: one can always run, and nothing is left over."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = clamped(12, batch=6)
        self.alive: list[EngineRequest] = []
        self.running: list[EngineRequest] = []
        self.calls: list[object] = []
        """Calls that have the engine alone, or wait for that."""

    @rule()
    def enter(self) -> None:
        self.calls.append(object())
        self.queue.enter_alone(self.calls[-1])

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), path=paths, growth=st.integers(0, 30), reserve=st.booleans(), optional=st.booleans())
    def submit_alone(self, data: st.DataObject, path: list[int], growth: int, reserve: bool, optional: bool) -> None:
        asked = request("alone", path, growth)
        asked.alone = data.draw(st.sampled_from(self.calls))
        assert self.queue.submit(asked, reserve=reserve, optional=reserve and optional), "it waits for memory"
        self.alive.append(asked)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        call = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        for each in [each for each in self.alive if each.alone is call]:
            self.alive.remove(each)
            if each in self.running:
                self.running.remove(each)
            self.queue.end(each, Ending.ABORTED)
        self.queue.leave_alone(call)

    @invariant()
    def a_call_that_is_alone_is_alone(self) -> None:
        alone = {each.alone for each in self.running} - {None}
        beside = [each for each in self.running if each.alone is None and not each.canary]
        assert not alone or (len(alone) == 1 and not beside)

    @rule(
        path=paths,
        growth=st.integers(0, 30),
        search=st.sampled_from("abc"),
        lane=st.sampled_from(Lane),
        canary=st.booleans(),
        reserve=st.booleans(),
        optional=st.booleans(),
    )
    def submit(
        self, path: list[int], growth: int, search: str, lane: Lane, canary: bool, reserve: bool, optional: bool
    ) -> None:
        alone, before = not self.alive and not self.calls, self.queue.clamp.ledger.reserved  # type: ignore[union-attr]
        asked = request(search, path, growth, lane, canary=canary)
        if self.queue.submit(asked, reserve=reserve, optional=reserve and optional):
            self.alive.append(asked)
        else:
            assert not alone
            assert self.queue.clamp.ledger.reserved == before  # type: ignore[union-attr]

    @rule()
    def start(self) -> None:
        begun = started(self.queue)
        assert all(each.hold is not None for each in begun)
        self.running += begun
        others = [each for each in self.alive if each.alone is None]
        assert not others or self.running or self.calls, "one always runs"
        turns = [each for each in self.alive if self.calls and each.alone is self.calls[0]]
        assert not turns or self.running, "nobody waits for ever for a call to be alone"

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        ended = self.alive.pop(data.draw(st.integers(0, len(self.alive) - 1)))
        finished = ended in self.running and data.draw(st.booleans())
        if ended in self.running:
            self.running.remove(ended)
        self.queue.end(ended, Ending.FINISHED if finished else Ending.ABORTED)

    @rule(withheld=st.integers(0, 14), preempted=st.integers(0, 3))
    def step(self, withheld: int, preempted: int) -> None:
        self.queue.clamp.stepped(withheld, preempted)  # type: ignore[union-attr]

    @invariant()
    def counts_agree(self) -> None:
        clamp = self.queue.clamp
        assert clamp is not None
        assert len(self.queue) == len(self.alive)
        requested = sum(each.needs.fixed + each.needs.growth / 2 for each in self.alive if each.needs)
        assert clamp.pressure == (clamp.ledger.shared + requested) / clamp.ledger.capacity
        assert self.queue.queued == len(self.alive) - len(self.running)
        assert clamp.running == sum(each.hold is not None for each in self.alive)
        assert len(self.running) <= 6
        assert clamp.ledger.reserved <= clamp.ledger.capacity
        assert 0.0 <= clamp.overcommit <= MAX_OVERCOMMIT * clamp.ledger.capacity

    def teardown(self) -> None:
        for each in self.alive:
            self.queue.end(each, Ending.ABORTED)
        for call in self.calls:
            self.queue.leave_alone(call)
        assert self.queue.check_integrity() == []


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=50, deadline=None)


@given(waits=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 20)), min_size=1, max_size=8))
@settings(max_examples=50)
def test_every_submitted_request_starts(waits: list[tuple[str, int]]) -> None:
    queue = clamped(8, batch=3)
    for search, number in waits:
        submitted(queue, *(request(search, growth=5) for _ in range(number)))
    left = sum(number for _, number in waits)
    while left:
        running = started(queue)
        assert running
        for each in running:
            queue.end(each, Ending.FINISHED)
            left -= 1
    assert queue.check_integrity() == []
