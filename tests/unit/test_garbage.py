"""When a controller collects everything: while nothing runs."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from deployments.loop import garbage
from deployments.loop.garbage import GarbagePolicy


class Everything:
    """Collections of all generations since it was made."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        self.count += phase == "stop" and info["generation"] == 2


@pytest.fixture
def collections() -> Iterator[Everything]:
    thresholds = gc.get_threshold()
    counted = Everything()
    gc.callbacks.append(counted)
    yield counted
    gc.callbacks.remove(counted)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "QUIET_S", 0.0)
    monkeypatch.setattr(garbage, "IDLE_INTERVAL_S", 0.0)


async def ended(policy: GarbagePolicy) -> None:
    policy.place_freed()
    policy.place_freed()
    await asyncio.sleep(0.01)


async def test_growing_trees_are_never_looked_at(collections: Everything) -> None:
    policy = GarbagePolicy(is_busy=lambda: True)
    policy.start()
    assert collections.count == 1
    kept = [[[number]] for number in range(200_000)]
    await ended(policy)
    assert collections.count == 1
    assert len(kept) == 200_000


async def test_everything_is_collected_once_when_nothing_runs(collections: Everything) -> None:
    policy = GarbagePolicy(is_busy=lambda: False)
    policy.start()
    await ended(policy)
    assert collections.count == 2


async def test_and_no_more_often_than_it_need_be(collections: Everything, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "IDLE_INTERVAL_S", 60.0)
    policy = GarbagePolicy(is_busy=lambda: False)
    policy.start()
    await ended(policy)
    assert collections.count == 1


async def test_or_when_memory_has_grown_though_something_runs(
    collections: Everything, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "BUSY_INTERVAL_S", 0.0)
    held = 100 << 20
    policy = GarbagePolicy(is_busy=lambda: True, resident_bytes=lambda: held)
    policy.start()
    await ended(policy)
    assert collections.count == 1
    held += garbage.BUSY_GROWTH_BYTES
    await ended(policy)
    await ended(policy)
    assert collections.count == 2
    held += garbage.BUSY_GROWTH_BYTES
    await ended(policy)
    assert collections.count == 3


async def test_but_not_all_the_time(collections: Everything) -> None:
    held = 100 << 20
    policy = GarbagePolicy(is_busy=lambda: True, resident_bytes=lambda: held)
    policy.start()
    held += garbage.BUSY_GROWTH_BYTES
    await ended(policy)
    assert collections.count == 1
