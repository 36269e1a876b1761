"""The search's ports over Ray Serve handles.

A call that fails because of its replica is retried as `Retries` says: here, or, for branches, by the search, which
knows which of them have not arrived. A call that fails because of the request or the caller is not retried.

A call waits for a replica and for its answer until its own deadline. It does not check itself whether the replica still
works: the replica watches its engine (`engines.watch`), Serve's health checks watch its process, and the end of either
ends the call. A stream sends heartbeats (``engines.generation.HEARTBEAT_S``); for the PRM a breaker checks for signs of
life.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from deployments.calls.breaker import Breaker, CircuitOpen
from deployments.calls.dismantle import dismantle_response, replica_of
from deployments.calls.pool import Pool
from deployments.calls.serve_calls import (
    Deadline,
    OnlyWaited,
    ReplicaLost,
    Retries,
    everywhere,
    in_short,
    is_replica_failure,
    refusal,
    release,
    reply,
    was_assigned,
)
from search.errors import CallInterrupted, GeneratorError, ScorerError, SearchError
from search.ports import ChildGroup, ExpandRequest, ScoreRequest, TokenBeamReply, TokenBeamRequest
from search.rewards import check_rewards

T = TypeVar("T")

LOOK_S = 2.0
"""Seconds in which a replica must answer a liveness check."""
PROBE_S = 10.0
"""Seconds in which the PRM must score one step, to close the breaker again."""


class HandleGenerator:
    """`search.ports.Generator` over the handle of the generator deployment."""

    def __init__(self, handle: Any, retries: Retries, pool: Pool | None = None) -> None:
        self._pool = pool or Pool()
        self._expand = handle.options(method_name="expand", stream=True)
        self._token_beam = handle.options(method_name="token_beam")
        self._retries = retries

    async def expand(self, request: ExpandRequest) -> AsyncGenerator[ChildGroup, None]:
        """Makes one call, as the port specifies. Closing the stream aborts the unfinished branches at the replica.

        Raises:
            GeneratorRefused: at once.
            HarmfulRequest: the search ended two engines.
            CallInterrupted: after the backoff; another attempt should follow.
            GeneratorError: after the last attempt, or at the request's deadline.
        """
        deadline = Deadline(request.deadline_s)
        tried = list(request.avoid)
        missing = sum(len(item.branches) for item in request.expansions)
        optional = missing - sum(item.least for item in request.expansions)
        try:
            async with self._pool.call(request.search_id, deadline, tried, request.attempt > 1) as call:
                ahead = request.ahead if call.ahead else None
                sent = request._replace(deadline_s=deadline.remaining, alone=call.alone, ahead=ahead)
                try:
                    async with aclosing(self._groups(sent, deadline, tried)) as groups:
                        async for group in groups:
                            written = sum(bool(child.steps) for child in group.children)
                            missing -= written + min(len(group.children) - written, optional)
                            optional = 0  # branches that are given back come in the first group
                            if group.children or group.headroom:
                                yield group
                except Exception as error:
                    if missing > 0 or not is_replica_failure(error):
                        raise
                if missing > 0:
                    raise ReplicaLost(f"the replica ended with {missing} branches unwritten")
            self._pool.wrote(sent, tried)
        except Exception as error:
            if not is_replica_failure(error):
                raise refusal(error) from None
            if not await self._retries.again(error, request.attempt, deadline, "expand"):
                raise GeneratorError(f"{missing} branches could not be written: {in_short(error)}") from None
            raise CallInterrupted(in_short(error), tuple(tried)) from None

    async def token_beam(self, request: TokenBeamRequest) -> TokenBeamReply:
        """Token-level beam search on one replica; if that is lost, from the start on another.

        Raises:
            HarmfulRequest: the request ended two engines.
            GeneratorError: after the last attempt, or at the request's deadline.
        """
        deadline = Deadline(request.deadline_s)

        async def attempt(tried: list[str], again: bool) -> TokenBeamReply:
            async with self._pool.call(request.search_id, deadline, tried, again) as call:
                left_s, avoid = deadline.remaining, tuple(tried)
                current = request._replace(deadline_s=left_s, avoid=avoid, alone=call.alone)
                result: TokenBeamReply = await answer(self._token_beam.remote(current), deadline, tried)
                return result

        return await retried(attempt, self._retries, deadline, "token_beam", GeneratorError)

    async def _groups(
        self, request: ExpandRequest, deadline: Deadline, tried: list[str]
    ) -> AsyncGenerator[ChildGroup, None]:
        """The groups that the replica streams. Adds the replica to ``tried``."""
        response = self._expand.remote(request)
        exhausted = False
        try:
            while True:
                try:
                    group = await reply(
                        response.__anext__, deadline, self._retries.silence_s, lambda: was_assigned(response)
                    )
                except StopAsyncIteration:
                    exhausted = True
                    return
                yield group
        finally:
            note_replica(response, tried)
            if exhausted:
                dismantle_response(response)
            else:
                release(response)


class HandleScorer:
    """`search.ports.StepScorer` over the handle of the process reward model deployment."""

    def __init__(self, handle: Any, retries: Retries, patience_s: float, pool: Pool | None = None) -> None:
        """``patience_s``: maximum seconds that calls wait without a sign of life from any replica."""
        self._pool = pool or Pool()
        self._handle = handle
        self._score = handle.options(method_name="score")
        self._canary = handle.options(method_name="canary")
        self._retries = retries
        self._breaker = Breaker("the process reward model", self._silent_s, self._probe, patience_s)

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        """Scores steps, as the port specifies. Retries attempts that fail or return invalid rewards.

        Raises:
            ScorerRefused: at once.
            HarmfulRequest: the request ended two engines.
            ScorerError: after the last attempt, at the request's deadline, or when there is no sign of life.
        """
        deadline = Deadline(request.deadline_s)
        wanted = [item.unscored for item in request.items]

        async def attempt(tried: list[str], again: bool) -> Sequence[Sequence[float]]:
            async with self._pool.call(request.search_id, deadline, tried, again) as call:
                left_s, avoid = deadline.remaining, tuple(tried)
                current = request._replace(deadline_s=left_s, avoid=avoid, alone=call.alone)
                rewards = await answer(self._score.remote(current), deadline, tried)
                return check_rewards(rewards, wanted, "the process reward model")

        try:
            async with self._breaker.call():
                return await retried(attempt, self._retries, deadline, "score", ScorerError)
        except CircuitOpen as gone:
            raise ScorerError(str(gone)) from None

    async def _silent_s(self) -> float:
        """Seconds since any replica was last active. Raises ReplicaLost if none answers."""
        replies = await everywhere(self._handle, "silent_s", LOOK_S)
        if silences := [each for each in replies if isinstance(each, float)]:
            return min(silences)
        raise ReplicaLost(f"no replica answers: {replies}")

    async def _probe(self) -> None:
        await answer(self._canary.remote(PROBE_S), Deadline(PROBE_S))


async def retried(
    attempt: Callable[[list[str], bool], Awaitable[T]],
    retries: Retries,
    deadline: Deadline,
    what: str,
    failure: type[SearchError],
) -> T:
    """The result of ``attempt``, retried as ``retries`` says. It gets the list of tried replicas, and adds its own; and
    whether it is a retry.

    Raises:
        SearchError: ``failure``, if the last attempt failed because of its replica.
    """
    tried: list[str] = []
    failed = 0
    again = False
    while True:
        try:
            return await attempt(tried, again)
        except Exception as error:
            if not is_replica_failure(error):
                raise refusal(error) from None
            failed += not isinstance(error, OnlyWaited)
            if not await retries.again(error, failed, deadline, what):
                raise failure(in_short(error)) from None
        again = True


def note_replica(response: Any, tried: list[str]) -> None:
    """Adds the replica of a call to ``tried``."""
    if (replica := replica_of(response)) is not None:
        tried.append(replica)


async def answer(response: Any, deadline: Deadline, tried: list[str] | None = None) -> Any:
    """The answer of a unary call. A call that ends without one is cancelled at its replica. The replica is added to
    ``tried`` in both cases."""
    answered = False

    async def awaited() -> Any:
        return await response

    try:
        value = await reply(awaited, deadline)
        answered = True
        return value
    finally:
        if tried is not None:
            note_replica(response, tried)
        if answered:
            dismantle_response(response)
        else:
            release(response)
