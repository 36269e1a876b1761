"""Slots that owners and their searches take in turns."""

import asyncio
from collections import Counter
from itertools import product

import hypothesis.strategies as st
import pytest
from hypothesis import given

from search.tools.fair_slots import FLEX_RATIO, FairSlots, Requester

MINE, YOURS = Requester("mine", "a"), Requester("yours", "b")

REQUESTERS = {
    "".join(name): Requester(name[0], name[1], name[2] == "flex") for name in product("ab", "xy", ("", "flex"))
}


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


class Work:
    """Pieces of work that end when they are told."""

    def __init__(self, slots: int, turn: int = 1) -> None:
        self.slots = FairSlots(slots, turn)
        self.began: list[Requester | None] = []
        self.held: list[asyncio.Event] = []
        self.most = 0

    async def do(self, requester: Requester | None) -> None:
        async with self.slots.hold(requester):
            ends = asyncio.Event()
            self.began.append(requester)
            self.held.append(ends)
            self.most = max(self.most, len(self.held))
            try:
                await ends.wait()
            finally:
                self.held.remove(ends)

    async def drain(self) -> None:
        await settle()
        while self.held:
            self.held[0].set()
            await settle()


async def test_an_owner_waits_for_one_piece_of_work_of_another_and_not_for_all() -> None:
    work = Work(1)
    async with asyncio.TaskGroup() as group:
        for requester in [MINE] * 50 + [YOURS] * 3:
            group.create_task(work.do(requester))
        await settle()
        await work.drain()
    assert work.began[:7] == [MINE, MINE, YOURS, MINE, YOURS, MINE, YOURS]
    assert Counter(work.began) == {MINE: 50, YOURS: 3}


async def test_the_searches_of_an_owner_take_its_turns_in_turn() -> None:
    work = Work(1)
    first, second = Requester("mine", "first"), Requester("mine", "second")
    async with asyncio.TaskGroup() as group:
        for requester in [first, first, first, first, second, second, YOURS, YOURS, YOURS]:
            group.create_task(work.do(requester))
        await settle()
        await work.drain()
    assert work.began == [first, first, YOURS, second, YOURS, first, YOURS, second, first]


async def test_one_that_is_cancelled_costs_its_owner_no_turn() -> None:
    work = Work(1)
    tasks = [asyncio.create_task(work.do(requester)) for requester in (MINE, MINE, MINE, YOURS)]
    await settle()
    tasks[1].cancel()
    await work.drain()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert work.began == [MINE, MINE, YOURS]


async def test_a_turn_may_have_several_pieces_of_work_of_one_search() -> None:
    work = Work(1, turn=3)
    other = Requester("mine", "other")
    async with asyncio.TaskGroup() as group:
        for requester in [MINE] * 8 + [other] * 2 + [YOURS] * 4:
            group.create_task(work.do(requester))
        await settle()
        await work.drain()
    # The first one waited for nobody. A turn ends early where its search has no more work.
    assert work.began == [MINE] * 4 + [YOURS] * 3 + [other] * 2 + [YOURS] + [MINE] * 4


async def test_an_owner_with_many_small_searches_gets_no_longer_turns() -> None:
    work = Work(1, turn=16)
    async with asyncio.TaskGroup() as group:
        for number in range(40):
            group.create_task(work.do(Requester("mine", str(number))))
        for number in range(3):
            group.create_task(work.do(Requester("yours", str(number))))
        await settle()
        await work.drain()
    assert [requester.owner for requester in work.began[:7]] == ["mine", *["mine", "yours"] * 3]


async def test_flex_yields_but_is_not_passed_for_ever() -> None:
    work = Work(1)
    flex = Requester("mine", "flex", flex=True)
    async with asyncio.TaskGroup() as group:
        for requester in [MINE, flex, flex, flex, *[YOURS] * 10, *[MINE] * 10]:
            group.create_task(work.do(requester))
        await settle()
        await work.drain()
    places = [place for place, requester in enumerate(work.began) if requester.flex]
    assert places == [1 + FLEX_RATIO, 2 + 2 * FLEX_RATIO, 23]


async def test_a_health_check_goes_first() -> None:
    work = Work(1)
    async with asyncio.TaskGroup() as group:
        for requester in [*[Requester(search_id=str(number)) for number in range(30)], None]:
            group.create_task(work.do(requester))
        await settle()
        await work.drain()
    assert work.began.index(None) == 1


async def test_those_that_were_cancelled_are_not_kept() -> None:
    slots = FairSlots(1)
    await slots.acquire(MINE)
    requesters = [None, MINE, YOURS, Requester("mine", "flex", flex=True)]
    tasks = [asyncio.create_task(slots.acquire(each)) for each in requesters for _ in range(3)]
    await settle()
    assert slots.waiting == 12
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert slots.waiting == 0
    assert not slots._first
    assert not any(line._owners for line in slots._lines.values())


@pytest.mark.parametrize("settled", [False, True])
async def test_a_slot_given_to_one_that_is_cancelled_goes_on(settled: bool) -> None:
    slots = FairSlots(1)
    await slots.acquire(MINE)
    cancelled, next_one = (asyncio.create_task(slots.acquire(requester)) for requester in (MINE, YOURS))
    await settle()
    if settled:
        cancelled.cancel()
        slots.release()
    else:
        slots.release()
        cancelled.cancel()
    await asyncio.wait_for(next_one, 5)
    assert cancelled.cancelled()


@given(
    slots=st.integers(1, 4),
    turn=st.integers(1, 3),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("begin"), st.sampled_from(["", *REQUESTERS])),
            st.tuples(st.just("end"), st.integers(0, 9)),
            st.tuples(st.just("cancel"), st.integers(0, 30)),
        ),
        max_size=60,
    ),
    settles=st.booleans(),
)
def test_no_slot_is_lost_and_none_is_held_twice(
    slots: int, turn: int, steps: list[tuple[object, ...]], settles: bool
) -> None:
    async def run() -> None:
        work, tasks = Work(slots, turn), list[asyncio.Task[None]]()
        for what, *which in steps:
            if what == "begin":
                tasks.append(asyncio.create_task(work.do(REQUESTERS.get(str(which[0])))))
            elif what == "end" and work.held:
                work.held[int(str(which[0])) % len(work.held)].set()
            elif what == "cancel" and tasks:
                tasks[int(str(which[0])) % len(tasks)].cancel()
            if settles:
                await settle()
        await work.drain()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
        assert work.most <= slots
        assert work.slots.waiting == 0
        await asyncio.wait_for(asyncio.gather(*(work.slots.acquire(MINE) for _ in range(slots))), 5)

    asyncio.run(run())
