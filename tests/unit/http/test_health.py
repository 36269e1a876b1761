"""/health answers at once: with the last round of canaries while the next one is slow, and with the new one once it
ends."""

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


def health_of(canary: Canary, timeout_s: float = 20.0, every_s: float = 0.0) -> Health:
    return Health({"generator": canary}, HttpSettings(canary_timeout_s=timeout_s, canary_every_s=every_s))


async def ok(of: Health) -> bool:
    async with asyncio.timeout(20):
        return (await of.components())["generator"].ok


async def test_during_a_slow_round_the_last_result_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PATIENCE_S", 0.01)
    canary = Canary()
    health_check = health_of(canary)
    assert await ok(health_check)
    canary.free.clear()
    canary.error = RuntimeError("dead")
    assert await ok(health_check), "as of the round before"
    assert await ok(health_check)
    assert canary.rounds == 2, "one round at a time"
    canary.free.set()
    monkeypatch.setattr(health, "PATIENCE_S", 10)
    assert not await ok(health_check)


async def test_the_first_round_is_awaited_and_a_hang_is_reported() -> None:
    canary = Canary()
    canary.free.clear()
    assert not await ok(health_of(canary, timeout_s=0.05))


async def test_a_client_that_hangs_up_does_not_cancel_the_round() -> None:
    canary = Canary()
    canary.free.clear()
    health_check = health_of(canary, every_s=60)
    asking = asyncio.create_task(ok(health_check))
    while not canary.rounds:
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    canary.free.set()
    assert await ok(health_check)
    assert canary.rounds == 1


async def test_a_canary_cancelled_by_its_replica_is_a_failure() -> None:
    canary = Canary()
    canary.error = asyncio.CancelledError()
    assert not await ok(health_of(canary))
