"""Health is told at once: of the last round of canaries where the next one takes its time, and of that when it ends."""

import asyncio

import pytest

from deployments.config import HttpSettings
from deployments.http import health
from deployments.http.health import Health

pytestmark = pytest.mark.asyncio


class Canary:
    def __init__(self) -> None:
        self.rounds = 0
        self.free = asyncio.Event()
        self.free.set()
        self.error: BaseException | None = None

    async def __call__(self) -> float:
        self.rounds += 1
        await self.free.wait()
        if self.error is not None:
            raise self.error
        return 0.001


def looked_after(canary: Canary, timeout_s: float = 20.0, every_s: float = 0.0) -> Health:
    return Health({"generator": canary}, HttpSettings(canary_timeout_s=timeout_s, canary_every_s=every_s))


async def ok(of: Health) -> bool:
    async with asyncio.timeout(20):
        return (await of.components())["generator"].ok


async def test_a_slow_round_keeps_nobody_waiting_and_is_the_next_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PATIENCE_S", 0.01)
    canary = Canary()
    looked = looked_after(canary)
    assert await ok(looked)
    canary.free.clear()
    canary.error = RuntimeError("dead")
    assert await ok(looked), "as of the round before"
    assert await ok(looked)
    assert canary.rounds == 2, "one round at a time"
    canary.free.set()
    monkeypatch.setattr(health, "PATIENCE_S", 10)
    assert not await ok(looked)


async def test_the_first_round_is_waited_for_and_a_hang_is_told_of() -> None:
    canary = Canary()
    canary.free.clear()
    assert not await ok(looked_after(canary, timeout_s=0.05))


async def test_who_asks_and_leaves_does_not_end_the_round() -> None:
    canary = Canary()
    canary.free.clear()
    looked = looked_after(canary, every_s=60)
    asking = asyncio.create_task(ok(looked))
    while not canary.rounds:
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    canary.free.set()
    assert await ok(looked)
    assert canary.rounds == 1


async def test_a_replica_that_is_stopped_under_the_canary_is_a_failure_of_the_replica() -> None:
    canary = Canary()
    canary.error = asyncio.CancelledError()
    assert not await ok(looked_after(canary))
