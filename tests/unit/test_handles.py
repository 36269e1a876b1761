"""Ports over Serve handles: failures of a replica are retried, and no call is left behind."""

import asyncio
import gc
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from deployments.calls.handles import HandleGenerator, HandleScorer
from deployments.calls.serve_calls import ReplicaLost, Retries
from search.errors import CallInterrupted, GeneratorError, GeneratorRefused, ScorerError, ScorerRefused
from search.ports import (
    Branch,
    Child,
    ChildGroup,
    ExpandItem,
    ExpandRequest,
    Lane,
    Sampling,
    ScoreItem,
    ScoreRequest,
    StopCondition,
    TokenBeamReply,
    TokenBeamRequest,
)
from search.token_beam import TokenBeamSettings
from search.tree import Step, StepEnd

pytestmark = pytest.mark.asyncio

RETRIES = Retries(attempts=3, backoff_s=0.001, backoff_max_s=0.002, silence_s=5.0)
QUICK = RETRIES._replace(silence_s=0.02)


class Response:
    """What a handle returns: a stream or one value; it records its cancellation."""

    def __init__(self, items: AsyncIterator[Any]) -> None:
        self._items = items
        self.cancelled = False
        self._replica_result_future: Any = None

    def given_to(self, replica: bytes) -> None:
        """Simulates that Serve has assigned the actor with that id."""
        self._replica_result_future = asyncio.get_running_loop().create_future()
        self._replica_result_future.set_result(SimpleNamespace(_actor_id=replica, cancel=lambda: None))

    async def __anext__(self) -> Any:
        return await self._items.__anext__()

    def __await__(self) -> Any:
        return self._items.__anext__().__await__()

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """A deployment handle whose replica runs one script per call."""

    def __init__(self, *scripts: Callable[[Any], AsyncIterator[Any]]) -> None:
        self._scripts = list(scripts)
        self.requests: list[Any] = []
        self.responses: list[Response] = []

    def options(self, **_: object) -> "Handle":
        return self

    def remote(self, request: Any) -> Response:
        self.requests.append(request)
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        self.responses.append(Response(script(request)))
        self.responses[-1].given_to(bytes([10, len(self.responses) - 1]))
        return self.responses[-1]


def request(deadline_s: float = 10.0) -> ExpandRequest:
    parts = (
        ExpandItem((), (1, 2), (Branch(0, 100, 8), Branch(1, 101, 8))),
        ExpandItem((0,), (1, 2, 3), (Branch(0, 102, 8),)),
    )
    return ExpandRequest("s", parts, Sampling(), StopCondition.STEP, Lane.DEMAND, deadline_s)


def child(parent: tuple[int, ...], index: int) -> Child:
    return Child(parent, index, (Step((7,), "x", StepEnd.DELIMITER),), 0)


async def all_of(request: ExpandRequest) -> AsyncIterator[ChildGroup]:
    for part in request.expansions:
        yield ChildGroup(tuple(child(part.parent, branch.index) for branch in part.branches))


def dies_after(*children: Child) -> Callable[[ExpandRequest], AsyncIterator[ChildGroup]]:
    async def script(_: ExpandRequest) -> AsyncIterator[ChildGroup]:
        if children:
            yield ChildGroup(children)
        raise ActorDiedError

    return script


async def hangs(_: Any) -> AsyncIterator[Any]:
    await asyncio.Event().wait()
    yield


def raises(error: BaseException) -> Callable[[Any], AsyncIterator[Any]]:
    async def script(_: Any) -> AsyncIterator[Any]:
        raise error
        yield

    return script


def as_raised_by_ray(error: Exception) -> Exception:
    """The exception that Ray raises at the caller if an actor's method raised ``error``."""
    return RayTaskError("expand", "traceback", error).as_instanceof_cause()  # type: ignore[no-untyped-call,no-any-return]


async def arrivals(handle: Handle, asked: ExpandRequest, retries: Retries = RETRIES) -> list[tuple[Any, int]]:
    """Names of the children that one call yields."""
    names = []
    async for group in HandleGenerator(handle, retries).expand(asked):
        names += [(child.parent, child.index) for child in group.children if child.steps]
    return names


async def interruption(handle: Handle, asked: ExpandRequest, retries: Retries = RETRIES) -> CallInterrupted:
    with pytest.raises(CallInterrupted) as raised:
        await arrivals(handle, asked, retries)
    assert len(handle.requests) == 1
    return raised.value


EVERY = [((), 0), ((), 1), ((0,), 0)]


async def test_every_branch_arrives_once() -> None:
    assert sorted(await arrivals(Handle(all_of), request())) == EVERY


async def test_a_dying_replica_interrupts_the_call_after_the_received_children() -> None:
    async with aclosing(HandleGenerator(Handle(dies_after(child((), 1))), RETRIES).expand(request())) as groups:
        assert (await anext(groups)).children == (child((), 1),)
        with pytest.raises(CallInterrupted, match="ActorDiedError"):
            await anext(groups)


async def test_a_replica_that_dies_after_the_last_branch_interrupts_nothing() -> None:
    assert sorted(await arrivals(Handle(dies_after(*(child(*name) for name in EVERY))), request())) == EVERY


async def test_a_failed_call_names_all_replicas_on_which_it_failed() -> None:
    lost = await interruption(Handle(raises(ActorDiedError())), request()._replace(avoid=("0b00",)))
    assert lost.avoid == ("0b00", "0a00")
    assert pickle.loads(pickle.dumps(lost)).avoid == lost.avoid
    prm = Handle(answers(None), raises(ActorDiedError()), answers(GOOD))
    await HandleScorer(prm, RETRIES, 15.0).score(SCORES)
    beams = Handle(raises(ActorDiedError()), answers(TokenBeamReply((), 0)))
    settings = TokenBeamSettings(width=1, max_tokens=1)
    await HandleGenerator(beams, RETRIES).token_beam(TokenBeamRequest("s", (), settings, 10.0))

    three = [(), ("0a00",), ("0a00", "0a01")]
    assert [each.avoid for each in prm.requests] == three
    assert [each.avoid for each in beams.requests] == three[:2]


async def test_without_an_assigned_replica_none_is_named_as_failed() -> None:
    async def is_not_found(_: ExpandRequest) -> AsyncIterator[ChildGroup]:
        handle.responses[0]._replica_result_future = None
        raise ConnectionResetError
        yield

    handle = Handle(is_not_found)
    assert (await interruption(handle, request())).avoid == ()


async def test_a_stream_that_ends_early_is_interrupted() -> None:
    async def short(_: ExpandRequest) -> AsyncIterator[ChildGroup]:
        yield ChildGroup((child((0,), 0),))

    assert "2 branches unwritten" in str(await interruption(Handle(short), request()))


async def test_a_silent_replica_is_cancelled() -> None:
    handle = Handle(hangs)
    await interruption(handle, request(), QUICK)
    assert handle.responses[0].cancelled


async def test_cancellation_by_a_stopping_replica_does_not_cancel_the_search() -> None:
    await interruption(Handle(raises(asyncio.CancelledError())), request())


@pytest.mark.parametrize(
    "error",
    [
        GeneratorError("the engine is dead"),
        as_raised_by_ray(GeneratorError("the engine is dead")),
        type("EngineDeadError", (Exception,), {})("dead"),
        ConnectionResetError(),
    ],
    ids=repr,
)
async def test_the_last_failed_attempt_raises_a_short_generator_error(error: Exception) -> None:
    await interruption(Handle(raises(error)), request()._replace(attempt=2))
    with pytest.raises(GeneratorError, match=r"^3 branches could not be written: ") as raised:
        await arrivals(Handle(raises(error)), request()._replace(attempt=3))
    assert type(raised.value) is GeneratorError
    assert len(str(raised.value)) < 200
    assert isinstance(pickle.loads(pickle.dumps(raised.value)), GeneratorError)


async def test_a_call_without_a_replica_yet_does_not_count_as_silent() -> None:
    handle = Handle(hangs)
    asking = asyncio.create_task(interruption(handle, request(), QUICK))
    await asyncio.sleep(0)
    while not handle.responses:
        await asyncio.sleep(0.001)
    replica = handle.responses[0]._replica_result_future = asyncio.get_running_loop().create_future()
    await asyncio.sleep(4 * QUICK.silence_s)
    assert len(handle.requests) == 1
    assert not asking.done()
    replica.set_result(handle.responses[0])
    await asking


@pytest.mark.parametrize("wrap", [lambda error: error, as_raised_by_ray], ids=["bare", "from Ray"])
async def test_errors_of_the_request_are_not_retried(wrap: Callable[[Exception], Exception]) -> None:
    handle = Handle(raises(wrap(GeneratorRefused("too long"))))
    with pytest.raises(GeneratorRefused, match=r"^too long$") as generated:
        await arrivals(handle, request())
    assert type(generated.value) is GeneratorRefused
    prm = Handle(raises(wrap(ScorerRefused("too long"))))
    with pytest.raises(ScorerRefused, match=r"^too long$") as scored:
        await HandleScorer(prm, RETRIES, 15.0).score(SCORES)
    assert type(scored.value) is ScorerRefused
    assert len(handle.requests) == len(prm.requests) == 1


async def test_errors_of_the_caller_are_not_retried() -> None:
    handle = Handle(raises(as_raised_by_ray(KeyError("prefix"))))
    with pytest.raises(KeyError):
        await arrivals(handle, request())
    assert len(handle.requests) == 1


async def test_no_attempt_begins_after_the_deadline() -> None:
    handle = Handle(hangs)
    with pytest.raises(GeneratorError) as raised:
        await arrivals(handle, request(deadline_s=0.05))
    assert type(raised.value) is GeneratorError


async def test_closing_the_iterator_cancels_the_call() -> None:
    async def then_hangs(asked: ExpandRequest) -> AsyncIterator[ChildGroup]:
        yield ChildGroup((child((), 0),))
        await asyncio.Event().wait()

    handle = Handle(then_hangs)
    async with aclosing(HandleGenerator(handle, RETRIES).expand(request())) as groups:
        await anext(groups)
    assert [response.cancelled for response in handle.responses] == [True]


async def test_cancelling_the_search_cancels_the_call_and_makes_no_other() -> None:
    handle = Handle(hangs)
    task = asyncio.create_task(arrivals(handle, request()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [response.cancelled for response in handle.responses] == [True]


async def test_a_finished_call_is_not_cancelled() -> None:
    handle = Handle(all_of)
    await arrivals(handle, request())
    assert not handle.responses[0].cancelled


SCORES = ScoreRequest("s", "q", (ScoreItem(("a", "b")), ScoreItem(("a", "c"), 2)), 10.0)


def answers(rewards: Any) -> Callable[[ScoreRequest], AsyncIterator[Any]]:
    async def script(_: ScoreRequest) -> AsyncIterator[Any]:
        yield rewards

    return script


GOOD = [[0.5], [0.0, 1.0]]


async def test_good_rewards_pass() -> None:
    assert await HandleScorer(Handle(answers(GOOD)), RETRIES, 15.0).score(SCORES) == GOOD


@pytest.mark.parametrize(
    "bad",
    [
        answers([[float("nan")], [0.0, 1.0]]),
        answers([[1.5], [0.0, 1.0]]),
        answers([[0.5], [0.0]]),
        answers([[0.5]]),
        answers(None),
        answers([["0.5"], [0.0, 1.0]]),
        raises(ActorDiedError()),
    ],
    ids=["nan", "above one", "one too few", "an item too few", "nothing", "text", "death"],
)
async def test_calls_to_a_prm_that_dies_or_returns_nonsense_are_retried(bad: Any) -> None:
    assert await HandleScorer(Handle(bad, answers(GOOD)), QUICK, 15.0).score(SCORES) == GOOD
    handle = Handle(bad)
    with pytest.raises(ScorerError):
        await HandleScorer(handle, QUICK, 15.0).score(SCORES)
    assert len(handle.requests) == 3


async def test_cancelling_a_score_cancels_its_call() -> None:
    handle = Handle(hangs)
    task = asyncio.create_task(HandleScorer(handle, RETRIES, 15.0).score(SCORES))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert handle.responses[0].cancelled


async def expands(script: Callable[[Any], AsyncIterator[Any]]) -> None:
    with suppress(CallInterrupted):
        await arrivals(Handle(script), request(), QUICK)


async def scores(script: Callable[[Any], AsyncIterator[Any]]) -> None:
    await HandleScorer(Handle(script, answers(GOOD)), QUICK, 15.0).score(SCORES)


async def is_cancelled(script: Callable[[Any], AsyncIterator[Any]]) -> None:
    task = asyncio.create_task(expands(script))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize(
    ("call", "script"),
    [
        (expands, all_of),
        (expands, dies_after(child((), 0))),
        (expands, hangs),
        (is_cancelled, hangs),
        (scores, answers(GOOD)),
        (scores, raises(ActorDiedError())),
    ],
    ids=["written", "lost", "silent", "given up", "scored", "lost and scored"],
)
async def test_a_call_leaves_no_object_to_the_garbage_collector(call: Any, script: Any) -> None:
    await call(script)
    gc.freeze()  # objects that exist already
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await call(script)
        gc.collect()
        left = {type(each).__module__ for each in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.unfreeze()
    assert not {name for name in left if name.startswith(("tenacity", "deployments", "search", "asyncio"))}


async def test_errors_of_the_ports_survive_pickling() -> None:
    assert str(pickle.loads(pickle.dumps(ReplicaLost("no reply")))) == "no reply"


def gives_back(*written: int) -> Callable[[ExpandRequest], AsyncIterator[ChildGroup]]:
    async def script(asked: ExpandRequest) -> AsyncIterator[ChildGroup]:
        unwritten = (
            Child(part.parent, branch.index, (), 0)
            for part, count in zip(asked.expansions, written, strict=True)
            for branch in part.branches[count:]
        )
        yield ChildGroup(tuple(unwritten))
        for part, count in zip(asked.expansions, written, strict=True):
            yield ChildGroup(tuple(child(part.parent, branch.index) for branch in part.branches[:count]))

    return script


async def test_branches_given_back_are_not_missing() -> None:
    assert sorted(await arrivals(Handle(gives_back(1, 1)), request())) == [((), 0), ((0,), 0)]


async def test_mandatory_branches_given_back_are_missing() -> None:
    assert "2 branches unwritten" in str(await interruption(Handle(gives_back(0, 0)), request()))
