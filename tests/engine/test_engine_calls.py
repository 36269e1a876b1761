"""The requests of one call without an engine: each is taken once, and looking for them costs the same for each."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.engines import engine_calls
from deployments.engines.engine_calls import EngineCall, EngineCallError
from deployments.engines.request_queue import Ending, EngineRequest, RequestQueue
from search.ports import ExpandRequest, Lane, Sampling, StopCondition

pytestmark = pytest.mark.asyncio
REQUEST = ExpandRequest("search", (), Sampling(), StopCondition.STEP, Lane.DEMAND, 60.0)


class Engine:
    """The queue of an engine whose requests end as the test says, and a call on it."""

    def __init__(self, batch: int = 1000) -> None:
        self.queue = RequestQueue(batch)
        self.discarded: list[Any] = []
        engine: Any = SimpleNamespace()
        self.call: EngineCall[int] = EngineCall(engine, self.queue, REQUEST, self.discarded.append)
        self.running: list[EngineRequest] = []

    def submit(self, labels: Sequence[int]) -> None:
        params: Any = None
        for label in labels:
            assert self.call.submit(label, (label,), params)
        self.running += iter(self.queue.start_next, None)

    def end(self, index: int, ending: Ending = Ending.FINISHED, output: object = None) -> int:
        request = self.running.pop(index)
        request.output = output
        self.queue.end(request, ending)
        label: int = request.label
        return label


@given(st.lists(st.sampled_from(("submit", "take")) | st.integers(0, 30), max_size=60))
async def test_requests_are_taken_once_in_the_order_of_their_endings(events: list[str | int]) -> None:
    engine, submitted = Engine(), 0
    ended: list[int] = []
    taken: list[int] = []
    for event in events:
        if event == "submit":
            engine.submit(range(submitted, submitted + 3))
            submitted += 3
        elif event == "take":
            taken += [each.label for each in engine.call.take()]
            assert taken == ended
        elif engine.running:
            ended.append(engine.end(int(event) % len(engine.running)))
        assert engine.call.pending == submitted - len(taken)
    taken += [each.label for each in engine.call.take()]
    assert taken == ended


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], int]:
    """How often a call looks at the ending of a request while it takes that many one by one, the newest first."""
    seen: list[object] = []

    class Watched(EngineRequest):
        @property
        def ending(self) -> Ending | None:  # type: ignore[override]
            seen.append(self)
            return EngineRequest.ending.__get__(self)  # type: ignore[attr-defined,no-any-return]

        @ending.setter
        def ending(self, ending: Ending | None) -> None:
            EngineRequest.ending.__set__(self, ending)  # type: ignore[attr-defined]

    monkeypatch.setattr(engine_calls, "EngineRequest", Watched)

    def count(width: int) -> int:
        engine, found = Engine(), 0
        engine.submit(range(width))
        while engine.running:
            label = engine.end(-1)
            seen.clear()
            assert [each.label for each in engine.call.take()] == [label]
            found += len(seen)
        return found

    return count


async def test_taking_twice_as_many_requests_looks_at_twice_as_many(looks: Callable[[int], int]) -> None:
    assert looks(256) >= 256
    assert looks(512) <= 2 * looks(256) + 2


async def test_finished_requests_are_discarded_when_another_has_failed() -> None:
    engine = Engine()
    engine.submit(range(4))
    engine.end(0, output="finished")
    engine.end(0, Ending.FAILED, ValueError("too long"))
    engine.end(0, output="finished later")
    with pytest.raises(EngineCallError, match="too long"):
        engine.call.take()
    assert sorted(engine.discarded) == ["finished", "finished later"]
    assert not len(engine.queue), "the last one is aborted"


async def test_work_is_part_of_the_call_and_may_submit_requests() -> None:
    engine, may_go = Engine(), asyncio.Event()

    async def work() -> None:
        await may_go.wait()
        engine.submit([7])

    async with engine.call as call:
        call.begin(work())
        assert call.pending == 1
        assert await call.wait(0.01) == []
        may_go.set()
        waiting = asyncio.create_task(call.wait())
        while not engine.running:
            await asyncio.sleep(0)
        engine.end(0)
        assert [each.label for each in await waiting] == [7]
        assert call.pending == 0


async def test_the_last_work_that_leaves_no_request_ends_the_wait() -> None:
    engine = Engine()
    async with engine.call as call:
        call.begin(asyncio.sleep(0))
        assert await call.wait() == []
        assert call.pending == 0


async def test_work_that_fails_ends_the_call_and_its_requests() -> None:
    engine = Engine()

    async def work() -> None:
        raise RuntimeError("too many programs wait")

    async with engine.call as call:
        engine.submit([1])
        call.begin(work())
        with pytest.raises(EngineCallError, match="too many programs wait"):
            await call.wait()
    assert not len(engine.queue)
    async with (lonely := Engine()).call as call:
        call.begin(work())
        with pytest.raises(EngineCallError, match="too many programs wait"):
            await call.wait()
    assert not len(lonely.queue)


async def test_whoever_leaves_a_call_cancels_its_work() -> None:
    engine, left = Engine(), []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            left.append(True)

    async with engine.call as call:
        call.begin(work())
        await asyncio.sleep(0)
    assert left
