"""Ports over Serve handles: failures of a replica are retried, and no call is left behind."""

import asyncio
import gc
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError, RayTaskError

from deployments.calls.handles import HandleGenerator, HandleScorer, Outstanding
from deployments.calls.serve_calls import ReplicaLost, Retries
from search.errors import GeneratorError, GeneratorRefused, ScorerError, ScorerRefused
from search.ports import (
    Branch,
    Child,
    ChildGroup,
    ExpandItem,
    ExpandRequest,
    Headroom,
    Lane,
    Sampling,
    ScoreItem,
    ScoreRequest,
    StopCondition,
    TokenBeamReply,
    TokenBeamRequest,
)
from search.token_beam import TokenBeamSettings
from search.tree import NodeId, Step, StepEnd
from tests.unit.handle_fakes import Handle

RETRIES = Retries(attempts=3, backoff_s=0.001, backoff_max_s=0.002, silence_s=5.0)
QUICK = RETRIES._replace(silence_s=0.02)


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


def dies_after(
    *children: Child, error: Exception | type[Exception] = ActorDiedError
) -> Callable[[ExpandRequest], AsyncIterator[ChildGroup]]:
    async def script(_: ExpandRequest) -> AsyncIterator[ChildGroup]:
        if children:
            yield ChildGroup(children)
        raise error

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


EVERY = [((), 0), ((), 1), ((0,), 0)]
ONCE = RETRIES._replace(attempts=1)


def branches_of(asked: ExpandRequest) -> dict[tuple[NodeId, int], Branch]:
    return {(part.parent, branch.index): branch for part in asked.expansions for branch in part.branches}


def wanted(asked: ExpandRequest) -> list[tuple[NodeId, int]]:
    return list(branches_of(asked))


async def written_elsewhere(script: Callable[[Any], AsyncIterator[Any]], retries: Retries = RETRIES) -> Handle:
    """A handle whose second replica has written what the first one left."""
    handle = Handle(script, all_of)
    assert sorted(await arrivals(handle, request(), retries)) == EVERY
    assert len(handle.requests) == 2
    return handle


async def failure_of(handle: Handle, retries: Retries = ONCE) -> str:
    with pytest.raises(GeneratorError) as raised:
        await arrivals(handle, request(), retries)
    assert type(raised.value) is GeneratorError
    assert isinstance(pickle.loads(pickle.dumps(raised.value)), GeneratorError)
    return str(raised.value)


async def test_every_branch_arrives_once() -> None:
    assert sorted(await arrivals(Handle(all_of), request())) == EVERY


async def test_exactly_the_branches_that_a_dying_replica_left_are_requested_again() -> None:
    handle = await written_elsewhere(dies_after(child((), 1)))
    first, again = handle.requests
    assert wanted(again) == [name for name in EVERY if name != ((), 1)]
    assert branches_of(again).items() < branches_of(first).items(), "with their seeds and lengths"
    assert [part.prefix for part in again.expansions] == [part.prefix for part in first.expansions]
    assert 0 < again.deadline_s < first.deadline_s


async def test_children_are_passed_on_before_their_replica_dies() -> None:
    async with aclosing(HandleGenerator(Handle(dies_after(child((), 1))), ONCE).expand(request())) as groups:
        assert (await anext(groups)).children == (child((), 1),)
        with pytest.raises(GeneratorError, match=r"^2 branches could not be written: .*ActorDiedError"):
            await anext(groups)


async def test_children_that_come_twice_or_were_not_requested_are_dropped() -> None:
    async def twice(asked: ExpandRequest) -> AsyncIterator[ChildGroup]:
        yield ChildGroup((child((), 1), child((), 1), child((), 7), child((9,), 0)))
        yield ChildGroup((child((), 1),))
        yield ChildGroup((child((), 0), child((), 1), child((0,), 0)))

    assert await arrivals(Handle(twice), request()) == [((), 1), ((), 0), ((0,), 0)]


@pytest.mark.parametrize("error", [ActorDiedError(), GeneratorError("the engine is dead"), ConnectionResetError()])
async def test_a_replica_that_dies_after_the_last_branch_is_not_followed_by_another(error: Exception) -> None:
    handle = Handle(dies_after(*(child(*name) for name in EVERY), error=error))
    assert sorted(await arrivals(handle, request())) == EVERY
    assert len(handle.requests) == 1


async def test_another_attempt_avoids_all_replicas_on_which_the_call_failed() -> None:
    generator = Handle(raises(ActorDiedError()), raises(ActorDiedError()), all_of)
    assert sorted(await arrivals(generator, request())) == EVERY
    prm = Handle(answers(None), raises(ActorDiedError()), answers(GOOD))
    await HandleScorer(prm, RETRIES, 15.0).score(SCORES)
    beams = Handle(raises(ActorDiedError()), answers(TokenBeamReply((), 0)))
    settings = TokenBeamSettings(width=1, max_tokens=1)
    await HandleGenerator(beams, RETRIES).token_beam(TokenBeamRequest("s", (), settings, 10.0))

    three = [(), ("0a00",), ("0a00", "0a01")]
    assert [each.avoid for each in generator.envelopes] == three
    assert [each.avoid for each in prm.envelopes] == three
    assert [each.avoid for each in beams.envelopes] == three[:2]


async def test_without_an_assigned_replica_none_is_named_as_failed() -> None:
    async def is_not_found(_: ExpandRequest) -> AsyncIterator[ChildGroup]:
        handle.responses[0]._replica_result_future = None
        raise ConnectionResetError
        yield

    handle = Handle(is_not_found, all_of)
    assert sorted(await arrivals(handle, request())) == EVERY
    assert [each.avoid for each in handle.envelopes] == [(), ()]


async def test_a_stream_that_ends_early_has_failed() -> None:
    async def short(_: ExpandRequest) -> AsyncIterator[ChildGroup]:
        yield ChildGroup((child((0,), 0),))

    handle = await written_elsewhere(short)
    assert wanted(handle.requests[1]) == EVERY[:2]
    assert "2 unfinished branches" in await failure_of(Handle(short))


async def test_a_silent_replica_is_cancelled() -> None:
    handle = await written_elsewhere(hangs, QUICK)
    assert [response.cancelled for response in handle.responses] == [True, False]


async def test_cancellation_by_a_stopping_replica_does_not_cancel_the_search() -> None:
    await written_elsewhere(raises(asyncio.CancelledError()))


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
    handle = Handle(raises(error))
    message = await failure_of(handle, RETRIES)
    assert message.startswith("3 branches could not be written: ")
    assert len(message) < 200
    assert len(handle.requests) == RETRIES.attempts


async def test_a_call_without_a_replica_yet_does_not_count_as_silent() -> None:
    handle = Handle(hangs, all_of)
    asking = asyncio.create_task(arrivals(handle, request(), QUICK))
    await asyncio.sleep(0)
    while not handle.responses:
        await asyncio.sleep(0.001)
    replica = handle.responses[0]._replica_result_future = asyncio.get_running_loop().create_future()
    await asyncio.sleep(4 * QUICK.silence_s)
    assert len(handle.requests) == 1
    assert not asking.done()
    replica.set_result(handle.responses[0])
    assert sorted(await asking) == EVERY


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
    with suppress(GeneratorError):
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
    gc.collect()
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


async def test_required_branches_given_back_are_missing() -> None:
    handle = Handle(gives_back(0, 0), all_of)
    assert sorted(await arrivals(handle, request())) == [((), 0), ((0,), 0)]
    assert wanted(handle.requests[1]) == [((), 0), ((0,), 0)]
    assert "2 unfinished branches" in await failure_of(Handle(gives_back(0, 0)))


async def test_only_the_first_group_gives_back() -> None:
    """Afterwards every branch is required, of other replicas too."""

    async def late(asked: ExpandRequest) -> AsyncIterator[ChildGroup]:
        yield ChildGroup((child((), 0),))
        yield ChildGroup((Child((), 1, (), 0),))

    handle = Handle(late, gives_back(0, 0), all_of)
    assert sorted(await arrivals(handle, request())) == EVERY
    assert [wanted(each) for each in handle.requests[1:]] == [EVERY[1:]] * 2
    assert [part.least for part in handle.requests[1].expansions] == [1, 1]


async def test_a_call_without_branches_is_made_once_and_tells_the_tokens_that_were_given_up() -> None:
    async def gives_up(asked: ExpandRequest) -> AsyncIterator[ChildGroup]:
        yield ChildGroup((), Headroom(1, 4, 0, 0), 7)

    handle = Handle(gives_up)
    groups = [group async for group in HandleGenerator(handle, RETRIES).expand(request()._replace(expansions=()))]
    assert [group.unused_tokens for group in groups] == [7]
    assert [asked.expansions for asked in handle.requests] == [()]


async def test_a_call_without_branches_is_not_made_again() -> None:
    """What it would give up is gone with its replica."""
    handle = Handle(raises(ConnectionResetError("gone")))
    assert [group async for group in HandleGenerator(handle, RETRIES).expand(request()._replace(expansions=()))] == []
    assert len(handle.requests) == 1


async def test_a_replica_that_dies_before_its_first_group_has_given_nothing_back() -> None:
    handle = Handle(raises(ActorDiedError()), gives_back(1, 1))
    assert sorted(await arrivals(handle, request())) == [((), 0), ((0,), 0)]
    first, again = handle.requests
    assert again.expansions == first.expansions


async def test_heartbeats_are_passed_on_where_they_tell_the_headroom() -> None:
    headroom = Headroom(1, 2, 3, 4)

    async def beats(asked: ExpandRequest) -> AsyncIterator[ChildGroup]:
        yield ChildGroup(())
        yield ChildGroup((), headroom)
        async for group in all_of(asked):
            yield group

    groups = [group async for group in HandleGenerator(Handle(beats), RETRIES).expand(request())]
    assert [group.headroom for group in groups] == [headroom, None, None]


PAIRS = st.tuples(st.sampled_from([(), (0,), (1, 2)]), st.integers(0, 4))


@given(
    counts=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=3),
    groups=st.lists(st.lists(st.tuples(PAIRS, st.booleans()), max_size=6), max_size=6),
)
def test_outstanding_branches_are_those_that_were_neither_written_nor_rightly_given_back(
    counts: list[tuple[int, int]], groups: list[list[tuple[tuple[NodeId, int], bool]]]
) -> None:
    parents: list[NodeId] = [(), (0,), (1, 2)]
    items = [
        ExpandItem(parent, (), tuple(Branch(index, index, 1) for index in range(count)), min(least, count))
        for parent, (count, least) in zip(parents, counts, strict=False)
    ]
    outstanding = Outstanding(items)
    left = branches_of(request()._replace(expansions=tuple(items)))
    optional = {(item.parent, branch.index) for item in items for branch in item.branches[item.least :]}
    assert outstanding.expansions == tuple(items)
    for group in groups:
        expected = []
        for pair, is_written in group:
            if pair in left and (is_written or pair in optional):
                del left[pair]
                expected.append(pair)
        optional = set()
        sent = tuple(child(*pair) if written else Child(*pair, (), 0) for pair, written in group)
        taken = outstanding.take(ChildGroup(sent))
        assert [(each.parent, each.index) for each in taken.children] == expected if taken else not expected
        assert branches_of(request()._replace(expansions=outstanding.expansions)) == left
        assert len(outstanding) == len(left)
        assert all(item.least == len(item.branches) > 0 for item in outstanding.expansions)
