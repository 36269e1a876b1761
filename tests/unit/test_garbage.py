"""A controller runs full garbage collections only while it is idle."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from deployments.loop import garbage
from deployments.loop.garbage import GarbagePolicy


class FullCollections:
    """Number of full collections since its creation."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        self.count += phase == "stop" and info["generation"] == 2


@pytest.fixture
def collections() -> Iterator[FullCollections]:
    thresholds = gc.get_threshold()
    counted = FullCollections()
    gc.callbacks.append(counted)
    yield counted
    gc.callbacks.remove(counted)
    gc.set_threshold(*thresholds)  # what was frozen stays so, as it was collected just before


@pytest.fixture(autouse=True)
def without_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "QUIET_S", 0.0)
    monkeypatch.setattr(garbage, "IDLE_INTERVAL_S", 0.0)


async def ended(policy: GarbagePolicy) -> None:
    policy.place_freed()
    policy.place_freed()
    await asyncio.sleep(0.01)


async def test_a_busy_controller_runs_no_full_collection(collections: FullCollections) -> None:
    policy = GarbagePolicy(is_busy=lambda: True)
    policy.start()
    assert collections.count == 1
    kept = [[[number]] for number in range(200_000)]
    await ended(policy)
    assert collections.count == 1
    assert len(kept) == 200_000


async def test_an_idle_controller_runs_one_full_collection(collections: FullCollections) -> None:
    policy = GarbagePolicy(is_busy=lambda: False)
    policy.start()
    await ended(policy)
    assert collections.count == 2


async def test_full_collections_of_an_idle_controller_have_a_minimum_interval(
    collections: FullCollections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "IDLE_INTERVAL_S", 60.0)
    policy = GarbagePolicy(is_busy=lambda: False)
    policy.start()
    await ended(policy)
    assert collections.count == 1


async def test_a_busy_controller_collects_when_memory_has_grown(
    collections: FullCollections, monkeypatch: pytest.MonkeyPatch
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


async def test_full_collections_of_a_busy_controller_have_a_minimum_interval(collections: FullCollections) -> None:
    held = 100 << 20
    policy = GarbagePolicy(is_busy=lambda: True, resident_bytes=lambda: held)
    policy.start()
    held += garbage.BUSY_GROWTH_BYTES
    await ended(policy)
    assert collections.count == 1
