"""Admission by lane, then by arrival, never beyond capacity, and no trace of who gave up."""

import asyncio
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.gate import PASSED_BY, UNTOLD, Gate, Slot
from search.ports import Headroom, Lane
from search.reach import AHEAD, FEWEST, FORGET_S, Reach


class Caller:
    """Asks for admission in a task of its own and holds it until told to leave."""

    def __init__(self, gate: Gate, lane: Lane, weight: int, admitted: list["Caller"], owner: int | None = None) -> None:
        self.lane = lane
        self.weight = weight
        self._owner = owner
        self.leave = asyncio.Event()
        self.task = asyncio.create_task(self._call(gate, admitted))

    async def _call(self, gate: Gate, admitted: list["Caller"]) -> None:
        async with gate.admit(self.lane, self.weight, self._owner, in_parts=self._owner is not None) as slot:
            self.weight = slot.weight
            admitted.append(self)
            try:
                await self.leave.wait()
            finally:
                admitted.remove(self)


async def settle() -> None:
    """Lets every task run until all of them wait for something."""
    for _ in range(40):
        await asyncio.sleep(0)


def test_serves_by_lane_then_by_arrival() -> None:
    async def main() -> None:
        gate = Gate(4)
        order: list[str] = []

        async def call(name: str, lane: Lane) -> None:
            async with gate.admit(lane, 4):
                order.append(name)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for name, lane in [("first", Lane.SPECULATIVE), ("s", Lane.SPECULATIVE), ("e", Lane.EAGER)]:
                group.create_task(call(name, lane))
            group.create_task(call("d1", Lane.DEMAND))
            group.create_task(call("d2", Lane.DEMAND))
        assert order == ["first", "d1", "d2", "e", "s"]
        assert gate.usage == 0

    asyncio.run(main())


def test_room_frees_branch_by_branch() -> None:
    async def main() -> None:
        gate = Gate(4)
        admitted: list[Caller] = []
        async with gate.admit(Lane.DEMAND, 4) as slot:
            waiting = Caller(gate, Lane.EAGER, 2, admitted)
            await settle()
            assert gate.waiting == dict.fromkeys(Lane, 0) | {Lane.EAGER: 1}
            slot.release()
            await settle()
            assert admitted == []
            slot.release()
            await settle()
            assert admitted == [waiting]
            assert gate.usage == 4
            slot.release(100)
            assert gate.usage == 2
        waiting.leave.set()
        await waiting.task
        assert gate.usage == 0

    asyncio.run(main())


def test_a_call_larger_than_the_gate_is_admitted_alone() -> None:
    async def main() -> None:
        gate = Gate(2)
        admitted: list[Caller] = []
        small = Caller(gate, Lane.DEMAND, 1, admitted)
        large = Caller(gate, Lane.DEMAND, 9, admitted)
        later = Caller(gate, Lane.DEMAND, 1, admitted)
        await settle()
        assert admitted == [small]
        small.leave.set()
        await settle()
        assert admitted == [large]
        large.leave.set()
        await settle()
        assert admitted == [later]
        later.leave.set()
        await later.task

    asyncio.run(main())


def test_speculation_stays_below_its_watermark() -> None:
    async def main() -> None:
        gate = Gate(10, speculative_share=0.5)
        admitted: list[Caller] = []
        callers = [Caller(gate, Lane.DEMAND, 3, admitted), Caller(gate, Lane.SPECULATIVE, 3, admitted)]
        await settle()
        assert admitted == callers[:1]
        callers.append(Caller(gate, Lane.DEMAND, 3, admitted))
        await settle()
        assert admitted == [callers[0], callers[2]]
        callers[0].leave.set()
        callers[2].leave.set()
        await settle()
        assert admitted == [callers[1]]
        callers[1].leave.set()
        await asyncio.gather(*(caller.task for caller in callers))

    asyncio.run(main())


class Search:
    """Wants so many branches at a time, in parts, and finishes them when told to."""

    def __init__(self, gate: Gate, name: str, width: int) -> None:
        self._gate = gate
        self._name = name
        self.slots: list[Slot] = []
        self.waits = 0
        self.calls = 0
        self._leave = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.want(width)

    @property
    def held(self) -> int:
        return sum(slot.weight for slot in self.slots)

    def want(self, width: int, lane: Lane = Lane.DEMAND) -> None:
        self.waits += width
        task = asyncio.create_task(self._call(width, lane))
        self._tasks.add(task)

    def finish(self, count: int) -> None:
        for slot in self.slots:
            done = min(count, slot.weight)
            slot.release(done)
            count -= done

    async def end(self) -> None:
        self._leave.set()
        await asyncio.gather(*self._tasks)

    async def _call(self, width: int, lane: Lane) -> None:
        async with self._gate.admit(lane, width, self._name, in_parts=True) as slot:
            self.calls += 1
            self.waits -= slot.weight
            self.slots.append(slot)
            if slot.weight < width:
                self.waits -= width - slot.weight
                self.want(width - slot.weight, lane)
            await self._leave.wait()


def test_a_wide_search_leaves_room_for_others() -> None:
    async def main() -> None:
        gate = Gate(64)
        wide = Search(gate, "wide", 256)
        await settle()
        assert (wide.held, wide.calls) == (48, 1)
        small = [Search(gate, f"small {number}", 4) for number in range(4)]
        await settle()
        assert [each.held for each in small] == [4] * 4
        # First come those who have less, also with their first steps.
        late = Search(gate, "late", 4)
        late.want(4, Lane.EAGER)
        await settle()
        assert late.held == 0
        wide.finish(8)
        await settle()
        assert late.held == 8
        assert wide.held == 40
        for each in small:
            each.finish(4)
        await settle()
        assert wide.held == 40, "a quarter is for others"
        late.finish(8)
        await settle()
        assert wide.held == 40, "not for a call of a few"
        wide.finish(2)
        await settle()
        assert wide.held == 48
        for each in (wide, late, *small):
            await each.end()
        assert gate.usage == 0

    asyncio.run(main())


def test_wide_searches_come_to_share_alike() -> None:
    async def main() -> None:
        gate = Gate(64)
        searches = [Search(gate, f"{number}", 1000) for number in range(3)]
        rng = random.Random(3)
        for _ in range(200):
            await settle()
            rng.choice(searches).finish(1)
        for _ in range(400):
            await settle()
            max(searches, key=lambda each: each.held).finish(1)
        held = [each.held for each in searches]
        assert max(held) - min(held) <= 2 * 64 // 16
        assert gate.usage <= 64
        for each in searches:
            for task in each._tasks:
                task.cancel()
            await asyncio.gather(*each._tasks, return_exceptions=True)
        assert gate.usage == 0
        assert not any(gate.waiting.values())

    asyncio.run(main())


@pytest.mark.parametrize("make", [lambda: Gate(0), lambda: Gate(1, speculative_share=1.5)])
def test_refuses_senseless_settings(make: Callable[[], Gate]) -> None:
    with pytest.raises(ValueError, match="must be"):
        make()


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 1 << 32), capacity=st.integers(1, 8) | st.integers(32, 64))
def test_never_over_capacity_and_nothing_is_left(seed: int, capacity: int) -> None:
    rng = random.Random(seed)

    def check(gate: Gate, admitted: list[Caller]) -> None:
        assert gate.usage == sum(caller.weight for caller in admitted)
        assert gate.usage <= capacity or len(admitted) == 1
        # Whoever waits in front of all others really has no room: a look at everybody lets nobody in.
        assert gate.usage > 0 or not any(gate.waiting.values())
        before = len(admitted), gate.waiting
        gate.resize(gate.capacity)
        assert before == (len(admitted), gate.waiting)

    async def main() -> None:
        gate = Gate(capacity)
        admitted: list[Caller] = []
        callers: list[Caller] = []
        for _ in range(40):
            action = rng.random()
            if action < 0.5 or not callers:
                owner = rng.choice([None, 1, 2, 3])
                callers.append(Caller(gate, rng.choice(list(Lane)), rng.randint(1, capacity + 2), admitted, owner))
            elif action < 0.75:
                rng.choice(callers).leave.set()
            else:
                victim = rng.choice(callers)
                # At the very moment of admission, too: the room is taken then, and must come back.
                if admitted and rng.random() < 0.5:
                    admitted[0].leave.set()
                victim.task.cancel()
            if rng.random() < 0.6:
                await settle()
                check(gate, admitted)
        for caller in callers:
            caller.leave.set()
        await asyncio.gather(*(caller.task for caller in callers), return_exceptions=True)
        assert gate.usage == 0
        assert not any(gate.waiting.values())

    asyncio.run(main())


def test_who_yields_comes_behind_all_others_and_before_speculation() -> None:
    async def main() -> None:
        gate = Gate(4)
        order: list[Lane] = []

        async def call(lane: Lane) -> None:
            async with gate.admit(lane, 4):
                order.append(lane)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group, gate.admit(Lane.DEMAND, 4):
            for lane in reversed(Lane):
                group.create_task(call(lane))
            await settle()
        assert order == sorted(Lane)

    asyncio.run(main())


class Account(Gate):
    """A gate that books who was let in past whom."""

    def __init__(self, capacity: int) -> None:
        self.others = 0
        """Branches that do not yield and were let in."""
        self.past_others = 0
        """Branches that yield and were let in although others waited."""
        self.admissions: list[tuple[Lane, int]] = []
        super().__init__(capacity)

    def _count(self, lane: Lane, granted: int) -> None:
        super()._count(lane, granted)
        self.admissions.append((lane, granted))
        if not lane.yields:
            self.others += granted
        elif self.waiting[Lane.DEMAND] + self.waiting[Lane.EAGER]:
            self.past_others += granted


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 1 << 32), capacity=st.integers(1, 12))
def test_who_yields_gets_an_eighth_and_never_less(seed: int, capacity: int) -> None:
    """Of what is let in while others wait, at most that; and no call is passed by more than its own part allows,
    however many others come and go on coming."""
    rng = random.Random(seed)
    widest = capacity + 2

    async def main() -> None:
        gate = Account(capacity)
        admitted: list[Caller] = []
        others: list[Caller] = []
        yielding: list[Caller] = []
        for number in range(6):
            lane = rng.choice([Lane.FLEX_DEMAND, Lane.FLEX_EAGER])
            yielding.append(Caller(gate, lane, rng.randint(1, widest), admitted, rng.choice([None, 100 + number])))
        wanted = sum(caller.weight for caller in yielding)
        await settle()
        while any(caller in admitted or not caller.task.done() for caller in yielding):
            while sum(not caller.task.done() for caller in others) < 8:
                lane = rng.choice([Lane.DEMAND, Lane.EAGER])
                others.append(Caller(gate, lane, rng.randint(1, widest), admitted, rng.choice([None, 1, 2, 3])))
                await asyncio.sleep(0)
            await settle()
            rng.choice(admitted).leave.set()
            await settle()
            assert gate.past_others * PASSED_BY <= gate.others
            # One call more may be let in than is needed to reach the mark.
            assert gate.others <= PASSED_BY * wanted + (len(yielding) + 1) * widest
        for caller in others:
            caller.leave.set()
        await asyncio.gather(*(caller.task for caller in (*others, *yielding)))
        assert gate.usage == 0
        assert not any(gate.waiting.values())

    asyncio.run(main())


YIELDING = {Lane.DEMAND: Lane.FLEX_DEMAND, Lane.EAGER: Lane.FLEX_EAGER, Lane.SPECULATIVE: Lane.SPECULATIVE}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32), capacity=st.integers(1, 8))
def test_among_themselves_those_who_yield_are_served_as_all_others(seed: int, capacity: int) -> None:
    async def admissions(lanes: dict[Lane, Lane]) -> list[tuple[Lane, int]]:
        rng = random.Random(seed)
        gate = Account(capacity)
        admitted: list[Caller] = []
        callers: list[Caller] = []
        for _ in range(30):
            if rng.random() < 0.6 or not admitted:
                lane, weight = rng.choice(list(lanes)), rng.randint(1, capacity + 2)
                callers.append(Caller(gate, lanes[lane], weight, admitted, rng.choice([None, 1, 2, 3])))
            else:
                rng.choice(admitted).leave.set()
            await settle()
        for caller in callers:
            caller.leave.set()
        await asyncio.gather(*(caller.task for caller in callers))
        return gate.admissions

    usual = asyncio.run(admissions({lane: lane for lane in YIELDING}))
    assert [(YIELDING[lane], weight) for lane, weight in usual] == asyncio.run(admissions(YIELDING))


def test_a_change_lets_in_who_waits_and_takes_nothing_away() -> None:
    async def main() -> None:
        gate = Gate(4)
        admitted: list[Caller] = []
        first, second, third = (Caller(gate, Lane.DEMAND, 3, admitted) for _ in range(3))
        await settle()
        assert admitted == [first]

        gate.resize(6)
        await settle()
        assert admitted == [first, second]
        gate.resize(3)
        first.leave.set()
        await settle()
        assert (admitted, gate.usage) == ([second], 3)
        second.leave.set()
        await settle()
        assert admitted == [third]
        third.leave.set()
        await asyncio.gather(first.task, second.task, third.task)
        assert gate.usage == 0
        with pytest.raises(ValueError, match="at least 1"):
            gate.resize(0)

    asyncio.run(main())


def told(branches: int, replica: str = "one") -> Headroom:
    return Headroom(10, 20, 0, 0, branches, replica)


def test_a_gate_without_a_number_is_as_wide_as_the_generators_say() -> None:
    async def main() -> None:
        gate = Gate()
        assert gate.capacity == UNTOLD
        gate.saw(told(64))
        assert gate.capacity == 64 * AHEAD
        gate.saw(told(64, "two"))
        assert gate.capacity == 128 * AHEAD
        gate.saw(told(20))
        assert gate.capacity == 84 * AHEAD
        gate.saw(told(0, "says nothing"))
        assert gate.capacity == 84 * AHEAD

        gate.resize(None)
        assert gate.capacity == 84 * AHEAD, "what was told is known still"
        gate.resize(7)
        gate.saw(told(64))
        assert gate.capacity == 7, "a number is a number"

    asyncio.run(main())


def test_who_waits_comes_in_as_soon_as_there_is_room_at_a_generator() -> None:
    async def main() -> None:
        gate = Gate()
        gate.saw(told(FEWEST))
        admitted: list[Caller] = []
        first, second = (Caller(gate, Lane.DEMAND, FEWEST * AHEAD, admitted) for _ in range(2))
        await settle()
        assert admitted == [first]
        gate.saw(told(FEWEST, "another"))
        await settle()
        assert admitted == [first, second]
        for caller in (first, second):
            caller.leave.set()
        await asyncio.gather(first.task, second.task)

    asyncio.run(main())


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 300), st.floats(0, 40)), max_size=30))
def test_only_the_last_word_of_replicas_that_still_speak_counts(words: list[tuple[str, int, float]]) -> None:
    reach, now = Reach(), 0.0
    last: dict[str, tuple[int, float]] = {}
    for replica, branches, pause in words:
        now += pause
        found = reach.saw(told(branches, replica), now)
        if all(now - at > FORGET_S for _, at in last.values()):  # all were silent: nobody was asked
            last = {each: (number, now) for each, (number, _) in last.items()}
        if branches:
            last[replica] = branches, now
        last = {each: (number, at) for each, (number, at) in last.items() if now - at <= FORGET_S}
        speaking = [number for number, _ in last.values()]
        assert found == (max(FEWEST, AHEAD * sum(speaking)) if speaking else None)


def test_a_replica_is_forgotten_when_others_speak_and_not_when_nobody_is_asked() -> None:
    reach = Reach()
    reach.saw(told(64, "one"), 0.0)
    assert reach.saw(told(64, "two"), 1.0) == 128 * AHEAD
    later = 1.0 + FORGET_S + 1.0
    assert reach.saw(told(64, "two"), later) == 128 * AHEAD, "after a quiet minute both are there still"
    assert reach.saw(told(64, "two"), later + FORGET_S) == 128 * AHEAD
    assert reach.saw(told(64, "two"), later + FORGET_S + 1.0) == 64 * AHEAD, "one has not spoken while two has"
