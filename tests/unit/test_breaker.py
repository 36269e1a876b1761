"""The PRM's circuit breaker: no call waits for a PRM that is gone, and a slow one is left alone."""

import asyncio
from types import SimpleNamespace

import pytest

from deployments.calls.breaker import Breaker, CircuitOpen

pytestmark = pytest.mark.asyncio

PATIENCE_S = 0.1


class Deployment:
    """A deployment that is called and observed."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.answers = asyncio.Event()
        self.alive = True
        self.looks = self.probes = 0
        self.breaker = Breaker("it", self.look, self.probe, patience_s, every_s=0.01)

    async def look(self) -> float:
        self.looks += 1
        if not self.alive:
            raise ConnectionError
        return 0.0

    async def probe(self) -> None:
        self.probes += 1
        await asyncio.sleep(0)
        if not self.answers.is_set():
            raise ConnectionError

    async def call(self) -> str:
        async with self.breaker.call():
            await self.answers.wait()
            return "answer"


@pytest.fixture
def deployment() -> Deployment:
    return Deployment()


async def test_answered_calls_cause_no_health_checks(deployment: Deployment) -> None:
    deployment.answers.set()
    assert [await deployment.call() for _ in range(100)] == ["answer"] * 100
    assert deployment.looks == deployment.probes == 0


async def test_a_slow_but_alive_deployment_is_awaited(deployment: Deployment) -> None:
    calling = asyncio.create_task(deployment.call())
    await asyncio.sleep(4 * PATIENCE_S)
    assert deployment.looks
    assert not deployment.breaker.open
    assert not calling.done()
    deployment.answers.set()
    assert await calling == "answer"


async def test_all_calls_to_a_lost_deployment_fail_at_once_and_later_ones_immediately(
    deployment: Deployment,
) -> None:
    deployment.alive = False
    calls = await asyncio.gather(*(deployment.call() for _ in range(8)), return_exceptions=True)
    assert [type(call) for call in calls] == [CircuitOpen] * 8
    assert str(calls[0]) == "it is unavailable: no heartbeat for 0.1 s"
    looks = deployment.looks
    with pytest.raises(CircuitOpen):
        await deployment.call()
    assert deployment.looks == looks


async def test_a_successful_probe_closes_the_breaker(deployment: Deployment) -> None:
    deployment.alive = False
    with pytest.raises(CircuitOpen):
        await deployment.call()
    deployment.answers.set()
    async with asyncio.timeout(10):
        while deployment.breaker.open:
            await asyncio.sleep(0.01)
    assert deployment.probes
    assert await deployment.call() == "answer"


async def test_replies_to_other_calls_are_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("deployments.calls.breaker.time", SimpleNamespace(monotonic=lambda: now))
    deployment = Deployment(patience_s=1.0)
    deployment.alive = False
    waiting = asyncio.create_task(deployment.call())
    for _ in range(40):
        async with deployment.breaker.call():
            now += 0.05
            looks = deployment.looks
            while deployment.looks == looks:  # and it opens if the silence is too long
                await asyncio.sleep(0.001)
    assert not deployment.breaker.open
    assert not waiting.done()
    deployment.answers.set()
    assert await waiting == "answer"


async def test_errors_and_cancellation_pass_through_the_breaker(deployment: Deployment) -> None:
    with pytest.raises(KeyError):
        async with deployment.breaker.call():
            raise KeyError
    with pytest.raises(TimeoutError):
        async with deployment.breaker.call():
            raise TimeoutError
    calling = asyncio.create_task(deployment.call())
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert not deployment.breaker.open
