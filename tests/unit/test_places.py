"""Places: a limited number at once, in order of arrival, and none is lost, whoever gives up and when."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from deployments.service.places import NoPlace, Owner, Places, Refused

pytestmark = pytest.mark.asyncio

ANNE, BEN = Owner("anne"), Owner("ben")


async def turns() -> None:
    """Lets every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def hold(
    places: Places, release: asyncio.Event, order: list[str], owner: Owner = ANNE, flex: bool = False
) -> None:
    async with places.hold(owner, flex):
        order.append(owner.name)
        await release.wait()


async def test_without_a_free_place_requests_are_refused() -> None:
    freed = 0

    def on_freed() -> None:
        nonlocal freed
        freed += 1

    places = Places(2, on_freed=on_freed)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(places.hold(ANNE))
        with pytest.raises(NoPlace) as raised:
            places.check(BEN)
        assert raised.value.reason is Refused.PLACES
        assert raised.value.retry_after_s >= 1
        with pytest.raises(NoPlace):
            await stack.enter_async_context(places.hold(BEN))
    assert (places.held, freed, places.check_integrity()) == (0, 2, [])
    async with places.hold(BEN):
        assert places.held == 1
        assert len(places.check_integrity()) == 1


async def test_the_queue_is_served_in_order() -> None:
    places = Places(1, queue=3, queue_s=60)
    events = [asyncio.Event() for _ in range(5)]
    order: list[str] = []
    tasks = []
    for index in range(4):
        tasks.append(asyncio.create_task(hold(places, events[index], order, Owner(str(index)))))
        await turns()
    assert (order, places.waiting) == (["0"], 3)
    with pytest.raises(NoPlace):
        places.check(ANNE)
    events[0].set()
    # A request that arrives while a place is passed on does not overtake the queue.
    tasks.append(asyncio.create_task(hold(places, events[4], order, Owner("4"))))
    for event in events[1:]:
        await turns()
        event.set()
    await asyncio.gather(*tasks)
    assert order == ["0", "1", "2", "3", "4"]
    assert places.check_integrity() == []


async def test_a_waiter_that_times_out_is_refused_and_the_next_gets_its_place() -> None:
    places = Places(1, queue=2, queue_s=0.01)
    async with places.hold(ANNE):
        with pytest.raises(NoPlace) as raised:
            async with places.hold(BEN):
                pytest.fail("there was no place")
    assert raised.value.reason is Refused.QUEUE
    async with places.hold(BEN):
        assert places.waiting == 0


@pytest.mark.parametrize("promised", [False, True])
async def test_a_waiter_that_is_cancelled_leaves_its_place_to_the_next(promised: bool) -> None:
    places = Places(1, queue=2, queue_s=60)
    events = [asyncio.Event() for _ in range(3)]
    order: list[str] = []
    tasks = []
    for index in range(3):
        tasks.append(asyncio.create_task(hold(places, events[index], order, Owner(str(index)))))
        await turns()
    if promised:
        # Its turn has come, but its task has not run yet.
        events[0].set()
        while places.waiting == 2:
            await asyncio.sleep(0)
    tasks[1].cancel()
    events[0].set()
    await turns()
    assert tasks[1].cancelled()
    assert order == ["0", "2"]
    events[2].set()
    await asyncio.gather(tasks[0], tasks[2])
    assert places.check_integrity() == []


async def test_an_owners_limit_includes_queued_requests() -> None:
    places = Places(2, queue=4, queue_s=60)
    some = Owner("some", places=3)
    release = asyncio.Event()
    order: list[str] = []
    tasks = [asyncio.create_task(hold(places, release, order, some)) for _ in range(3)]
    await turns()
    with pytest.raises(NoPlace, match=r"3 requests .*limits\.places") as raised:
        places.check(some)
    assert raised.value.reason is Refused.OWNER
    places.check(BEN)
    release.set()
    await asyncio.gather(*tasks)
    places.check(some)
    assert places.check_integrity() == []


async def test_flex_requests_leave_a_share_of_the_places_to_others() -> None:
    """Both at work and in the queue. Flex requests get none of the reserved share, whoever has the other places."""
    places = Places(4, queue=4, queue_s=60, flex_share=0.75)
    release, order = asyncio.Event(), list[str]()
    tasks = [asyncio.create_task(hold(places, release, order, Owner(f"flex {i}"), flex=True)) for i in range(6)]
    await turns()
    assert (places.held, places.waiting) == (3, 3)
    with pytest.raises(NoPlace, match="fewer than 3 places") as raised:
        places.check(ANNE, flex=True)
    assert raised.value.reason is Refused.FLEX
    tasks += [asyncio.create_task(hold(places, release, order, Owner(f"other {i}"))) for i in range(2)]
    await turns()
    assert (places.held, places.waiting) == (4, 4)
    with pytest.raises(NoPlace) as raised:
        places.check(ANNE)
    assert raised.value.reason is Refused.PLACES
    release.set()
    await asyncio.gather(*tasks)
    assert order == [f"flex {i}" for i in range(3)] + ["other 0", "other 1"] + [f"flex {i}" for i in range(3, 6)]
    assert places.check_integrity() == []


async def test_a_flex_request_that_times_out_gets_its_own_reason() -> None:
    places = Places(2, queue=2, queue_s=0.01, flex_share=0.5)
    async with places.hold(ANNE):
        with pytest.raises(NoPlace) as raised:
            async with places.hold(BEN, flex=True):
                pytest.fail("there was no place")
        assert raised.value.reason is Refused.FLEX
        async with places.hold(BEN):
            assert places.held == 2


async def test_with_one_place_flex_requests_may_use_it() -> None:
    places = Places(1, flex_share=0.75)
    async with places.hold(ANNE, flex=True):
        assert places.held == 1


@pytest.mark.parametrize("share", [1.0, 0.5])
async def test_random_arrivals_and_departures_leave_nothing(share: float) -> None:
    rng = random.Random(5)
    places = Places(4, queue=6, queue_s=0.01, flex_share=share)
    most = {False: 0, True: 0}

    async def one() -> None:
        await asyncio.sleep(rng.random() * 0.05)
        flex = rng.random() < 0.5
        try:
            async with places.hold(Owner(str(rng.randrange(3)), 5), flex):
                most[flex] = max(most[flex], places.held)
                await asyncio.sleep(rng.random() * 0.02)
        except NoPlace:
            pass

    tasks = [asyncio.create_task(one()) for _ in range(300)]
    for task in rng.sample(tasks, 60):
        await asyncio.sleep(0.001)
        task.cancel()
    await asyncio.wait(tasks)
    assert 0 < most[False] <= 4
    assert 0 < most[True] <= 4 * share
    assert (places.held, places.waiting, places.check_integrity()) == (0, 0, [])
    for owner in range(3):
        places.check(Owner(str(owner), 1))


async def test_resizing_admits_waiters_and_interrupts_nothing() -> None:
    places, release, order = Places(1, queue=2, queue_s=60), asyncio.Event(), list[str]()
    tasks = [asyncio.create_task(hold(places, release, order, owner)) for owner in (ANNE, BEN, ANNE)]
    await turns()
    assert order == ["anne"]

    places.resize(2, 2, 60)
    await turns()
    assert order == ["anne", "ben"]
    places.resize(1, 0, 60)
    await turns()
    assert (places.held, places.waiting, places.count) == (2, 1, 1)
    with pytest.raises(NoPlace):
        places.check(BEN)

    release.set()
    await asyncio.gather(*tasks)
    assert places.check_integrity() == []
