"""A replica whose engine is dead ends its process in any case; one whose engine only refused a call stays."""

import asyncio
from collections.abc import Sequence
from typing import ClassVar

import pytest

from deployments import replica
from deployments.config import UNSEEN
from deployments.engines.histograms import Histogram
from deployments.prm import PrmReplica
from deployments.scaling.pressure import PRESSURE
from deployments.telemetry.engine_telemetry import EngineTelemetry
from search.errors import ScorerError, ScorerRefused
from search.ports import ScoreRequest

pytestmark = pytest.mark.asyncio

REQUEST = ScoreRequest("search", "question", (), 1.0)


class Engine:
    """Starts and scores as the test says."""

    silent_s = 0.0
    at_engine: frozenset[str] = frozenset()
    histograms: ClassVar[dict[str, Histogram]] = {}
    pressure = 0.25

    def __init__(self) -> None:
        self.failure: ScorerError | None = None
        self.dead = False

    async def start(self, stat_loggers: Sequence[object]) -> None:
        pass

    async def score(self, request: ScoreRequest) -> list[list[float]]:
        if self.failure:
            raise self.failure
        return []

    def stats(self) -> dict[str, int]:
        return {}

    def check_alive(self) -> None:
        if self.dead:
            raise ScorerError("the engine is dead")

    def shutdown(self) -> None:
        if self.dead:
            self.dead = False
            raise OSError("no such process")


class Exited(BaseException):
    pass


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Exit statuses with which the process would have ended."""
    statuses: list[int] = []

    def leave(status: int) -> None:
        statuses.append(status)
        raise Exited

    class NoTimer:
        def __init__(self, *_: object) -> None: ...

        def start(self) -> None: ...

    monkeypatch.setattr(replica.os, "_exit", leave)
    monkeypatch.setattr(replica.threading, "Timer", NoTimer)
    monkeypatch.setattr(replica, "LOOK_EVERY_S", 0.01)
    return statuses


def prm_replica() -> tuple[PrmReplica, Engine]:
    made, engine = PrmReplica.__new__(PrmReplica), Engine()
    made._engine = engine  # type: ignore[assignment]
    made._telemetry = EngineTelemetry(UNSEEN, "WARNING")
    return made, engine


async def test_a_call_that_fails_with_its_engine_ends_the_replica(exits: list[int]) -> None:
    made, engine = prm_replica()
    assert await made.score(REQUEST) == []
    engine.failure, engine.dead = ScorerError("the engine failed"), True
    with pytest.raises(Exited):
        await made.score(REQUEST)
    assert exits == [replica.FAILED]


async def test_a_refused_call_does_not_end_the_replica(exits: list[int]) -> None:
    made, engine = prm_replica()
    engine.failure = ScorerRefused("too long")
    with pytest.raises(ScorerRefused):
        await made.score(REQUEST)
    assert exits == []


async def test_a_replica_without_calls_ends_with_its_engine_too(exits: list[int]) -> None:
    made, engine = prm_replica()
    await made._start(1)
    await asyncio.sleep(0.05)
    assert exits == []
    engine.dead = True
    with pytest.raises(Exited):
        await asyncio.wait_for(made._watch, 10)
    assert exits == [replica.FAILED]


async def test_a_replica_reports_its_pressure() -> None:
    made, _ = prm_replica()
    assert await made.record_autoscaling_stats() == {PRESSURE: 0.25}
