"""A replica whose engine is dead ends its process in any case; one whose engine only refused a call stays."""

import asyncio
from collections.abc import Sequence
from typing import ClassVar

import pytest
import pytest_asyncio

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
    notes: ClassVar[list[str]] = ["model: odd"]
    model_runners: ClassVar[dict[str, str]] = {"model": "vllm.Runner"}

    def __init__(self) -> None:
        self.failure: ScorerError | None = None
        self.dead = False

    async def start(self, stat_loggers: Sequence[object]) -> None:
        pass

    async def score(self, request: ScoreRequest, alone: bool = False) -> list[list[float]]:
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


class Exits:
    """The exits of the process, which do not happen."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.words: list[frozenset[str]] = []
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def exit(self, status: int) -> None:
        self.statuses.append(status)
        self._loop.call_soon_threadsafe(self._event.set)

    async def come(self) -> None:
        await asyncio.wait_for(self._event.wait(), 10)


@pytest_asyncio.fixture
async def exits(monkeypatch: pytest.MonkeyPatch) -> Exits:
    found = Exits()

    class NoTimer:
        def __init__(self, *_: object) -> None: ...

        def start(self) -> None: ...

    monkeypatch.setattr(replica.os, "_exit", found.exit)
    monkeypatch.setattr(replica.threading, "Timer", NoTimer)
    monkeypatch.setattr(replica, "leave_last_words", found.words.append)
    monkeypatch.setattr(replica, "LOOK_EVERY_S", 0.01)
    return found


def prm_replica() -> tuple[PrmReplica, Engine]:
    made, engine = PrmReplica.__new__(PrmReplica), Engine()
    made._engine = engine  # type: ignore[assignment]
    made._telemetry = EngineTelemetry(UNSEEN, "WARNING")
    return made, engine


async def test_a_replica_whose_engine_is_dead_says_what_was_in_the_batch_and_exits_once(exits: Exits) -> None:
    made, engine = prm_replica()
    assert await made.score(REQUEST) == []
    engine.failure, engine.dead, engine.at_engine = ScorerError("the engine failed"), True, frozenset({"search"})
    calls = [asyncio.create_task(made.score(REQUEST)) for _ in range(3)]
    await exits.come()
    calls.append(asyncio.create_task(made.score(REQUEST)))
    await asyncio.sleep(0)
    assert not any(call.done() for call in calls), "the end of the process ends them, also one that comes too late"
    assert exits.words == [{"search"}]
    assert exits.statuses == [replica.FAILED]
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)


async def test_a_refused_call_does_not_end_the_replica(exits: Exits) -> None:
    made, engine = prm_replica()
    engine.failure = ScorerRefused("too long")
    with pytest.raises(ScorerRefused):
        await made.score(REQUEST)
    assert exits.statuses == []


async def test_a_replica_without_calls_ends_with_its_engine_too(exits: Exits) -> None:
    made, engine = prm_replica()
    await made._start(1)
    await asyncio.sleep(0.05)
    assert exits.statuses == []
    engine.dead = True
    await exits.come()
    await asyncio.wait_for(made._watch, 10)
    assert exits.statuses == [replica.FAILED]


async def test_a_replica_reports_its_pressure() -> None:
    made, _ = prm_replica()
    assert await made.record_autoscaling_stats() == {PRESSURE: 0.25}


async def test_the_status_tells_the_model_runner_and_the_notes() -> None:
    made, _ = prm_replica()
    assert await made.stats() == {
        "model_runners": {"model": "vllm.Runner"},
        "notes": ["model: odd"],
        "histograms": {},
    }
