"""Slots: a limited number at once, in order of arrival, and none is lost, whoever gives up and when."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from deployments.service.slots import NoSlot, Owner, Refused, Slot, Slots
from search.run.report import SearchCost

pytestmark = pytest.mark.asyncio

ANNE, BEN = Owner("anne"), Owner("ben")


async def turns() -> None:
    """Lets every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def hold(slots: Slots, release: asyncio.Event, order: list[str], owner: Owner = ANNE, flex: bool = False) -> None:
    async with slots.hold(owner, flex):
        order.append(owner.name)
        await release.wait()


async def test_without_a_free_place_requests_are_refused() -> None:
    freed = 0

    def on_freed() -> None:
        nonlocal freed
        freed += 1

    slots = Slots(2, on_freed=on_freed)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(slots.hold(ANNE))
        with pytest.raises(NoSlot) as raised:
            slots.check(BEN)
        assert raised.value.reason is Refused.PLACES
        assert raised.value.retry_after_s >= 1
        with pytest.raises(NoSlot):
            await stack.enter_async_context(slots.hold(BEN))
    assert (slots.held, freed, slots.check_integrity()) == (0, 2, [])
    async with slots.hold(BEN):
        assert slots.held == 1
        assert len(slots.check_integrity()) == 1


async def test_the_queue_is_served_in_order() -> None:
    slots = Slots(1, queue=3, queue_s=60)
    events = [asyncio.Event() for _ in range(5)]
    order: list[str] = []
    tasks = []
    for index in range(4):
        tasks.append(asyncio.create_task(hold(slots, events[index], order, Owner(str(index)))))
        await turns()
    assert (order, slots.waiting) == (["0"], 3)
    with pytest.raises(NoSlot):
        slots.check(ANNE)
    events[0].set()
    # A request that arrives while a slot is passed on does not overtake the queue.
    tasks.append(asyncio.create_task(hold(slots, events[4], order, Owner("4"))))
    for event in events[1:]:
        await turns()
        event.set()
    await asyncio.gather(*tasks)
    assert order == ["0", "1", "2", "3", "4"]
    assert slots.check_integrity() == []


async def test_a_waiter_that_times_out_is_refused_and_the_next_gets_its_place() -> None:
    slots = Slots(1, queue=2, queue_s=0.01)
    async with slots.hold(ANNE):
        with pytest.raises(NoSlot) as raised:
            async with slots.hold(BEN):
                pytest.fail("there was no slot")
    assert raised.value.reason is Refused.QUEUE
    async with slots.hold(BEN):
        assert slots.waiting == 0


@pytest.mark.parametrize("promised", [False, True])
async def test_a_waiter_that_is_cancelled_leaves_its_place_to_the_next(promised: bool) -> None:
    slots = Slots(1, queue=2, queue_s=60)
    events = [asyncio.Event() for _ in range(3)]
    order: list[str] = []
    tasks = []
    for index in range(3):
        tasks.append(asyncio.create_task(hold(slots, events[index], order, Owner(str(index)))))
        await turns()
    if promised:
        # Its turn has come, but its task has not run yet.
        events[0].set()
        while slots.waiting == 2:
            await asyncio.sleep(0)
    tasks[1].cancel()
    events[0].set()
    await turns()
    assert tasks[1].cancelled()
    assert order == ["0", "2"]
    events[2].set()
    await asyncio.gather(tasks[0], tasks[2])
    assert slots.check_integrity() == []


async def test_an_owners_limit_includes_queued_requests() -> None:
    slots = Slots(2, queue=4, queue_s=60)
    some = Owner("some", slots=3)
    release = asyncio.Event()
    order: list[str] = []
    tasks = [asyncio.create_task(hold(slots, release, order, some)) for _ in range(3)]
    await turns()
    with pytest.raises(NoSlot, match=r"3 concurrent requests .*limits\.places") as raised:
        slots.check(some)
    assert raised.value.reason is Refused.OWNER
    slots.check(BEN)
    release.set()
    await asyncio.gather(*tasks)
    slots.check(some)
    assert slots.check_integrity() == []


async def test_flex_requests_leave_a_share_of_the_places_to_others() -> None:
    """Both at work and in the queue. Flex requests get none of the reserved share, whoever has the other slots."""
    slots = Slots(4, queue=4, queue_s=60, flex_share=0.75)
    release, order = asyncio.Event(), list[str]()
    tasks = [asyncio.create_task(hold(slots, release, order, Owner(f"flex {i}"), flex=True)) for i in range(6)]
    await turns()
    assert (slots.held, slots.waiting) == (3, 3)
    with pytest.raises(NoSlot, match="fewer than 3 slots") as raised:
        slots.check(ANNE, flex=True)
    assert raised.value.reason is Refused.FLEX
    tasks += [asyncio.create_task(hold(slots, release, order, Owner(f"other {i}"))) for i in range(2)]
    await turns()
    assert (slots.held, slots.waiting) == (4, 4)
    with pytest.raises(NoSlot) as raised:
        slots.check(ANNE)
    assert raised.value.reason is Refused.PLACES
    release.set()
    await asyncio.gather(*tasks)
    assert order == [f"flex {i}" for i in range(3)] + ["other 0", "other 1"] + [f"flex {i}" for i in range(3, 6)]
    assert slots.check_integrity() == []


async def test_a_flex_request_that_times_out_gets_its_own_reason() -> None:
    slots = Slots(2, queue=2, queue_s=0.01, flex_share=0.5)
    async with slots.hold(ANNE):
        with pytest.raises(NoSlot) as raised:
            async with slots.hold(BEN, flex=True):
                pytest.fail("there was no slot")
        assert raised.value.reason is Refused.FLEX
        async with slots.hold(BEN):
            assert slots.held == 2


async def test_with_one_place_flex_requests_may_use_it() -> None:
    slots = Slots(1, flex_share=0.75)
    async with slots.hold(ANNE, flex=True):
        assert slots.held == 1


@pytest.mark.parametrize("share", [1.0, 0.5])
async def test_random_arrivals_and_departures_leave_nothing(share: float) -> None:
    rng = random.Random(5)
    slots = Slots(4, queue=6, queue_s=0.01, flex_share=share)
    most = {False: 0, True: 0}

    async def one() -> None:
        await asyncio.sleep(rng.random() * 0.05)
        flex = rng.random() < 0.5
        try:
            async with slots.hold(Owner(str(rng.randrange(3)), 5), flex):
                most[flex] = max(most[flex], slots.held)
                await asyncio.sleep(rng.random() * 0.02)
        except NoSlot:
            pass

    tasks = [asyncio.create_task(one()) for _ in range(300)]
    for task in rng.sample(tasks, 60):
        await asyncio.sleep(0.001)
        task.cancel()
    await asyncio.wait(tasks)
    assert 0 < most[False] <= 4
    assert 0 < most[True] <= 4 * share
    assert (slots.held, slots.waiting, slots.check_integrity()) == (0, 0, [])
    for owner in range(3):
        slots.check(Owner(str(owner), 1))


async def test_resizing_admits_waiters_and_interrupts_nothing() -> None:
    slots, release, order = Slots(1, queue=2, queue_s=60), asyncio.Event(), list[str]()
    tasks = [asyncio.create_task(hold(slots, release, order, owner)) for owner in (ANNE, BEN, ANNE)]
    await turns()
    assert order == ["anne"]

    slots.resize(2, 2, 60)
    await turns()
    assert order == ["anne", "ben"]
    slots.resize(1, 0, 60)
    await turns()
    assert (slots.held, slots.waiting, slots.count) == (2, 1, 1)
    with pytest.raises(NoSlot):
        slots.check(BEN)

    release.set()
    await asyncio.gather(*tasks)
    assert slots.check_integrity() == []


async def test_a_request_counts_what_was_written_for_it_whether_it_was_asked_for_or_not() -> None:
    cost = SearchCost(generated_tokens=100, thinking_tokens=40, unused_tokens=30, hook_tokens=7)
    searches = [cost, SearchCost(unused_tokens=2), SearchCost(context_prompt_tokens=40)]
    assert Slot(Owner("a"), charged=5, searches=searches).tokens == 5 + 100 + 30 + 7 + 2 + 40
