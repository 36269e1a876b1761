"""The search's ports over Ray Serve handles.

A call that fails for reasons of its replica is made again, as often and as patiently as `Retries` say: here, or, of
branches, by the search, which knows what has not arrived. What fails for reasons of the request, or of the caller, is
not retried.

A call waits for a replica, and for its answer, as long as its own deadline allows: whether the replica still works is
for others to say. Its engine is watched by the replica (`engines.watch`), its process by Serve's health checks, and the
end of either ends the call. A stream says that it is alive (``engines.generation.HEARTBEAT_S``); of the PRM a breaker
asks for a sign of life.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any, TypeVar

from deployments.calls.breaker import Breaker, CircuitOpen
from deployments.calls.dismantle import dismantle_response, replica_of
from deployments.calls.serve_calls import (
    Deadline,
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
"""How long a replica has to say how its engine does."""
PROBE_S = 10.0
"""How long the PRM has to score one step when it was gone."""


class HandleGenerator:
    """`search.ports.Generator` over the handle of the generator deployment."""

    def __init__(self, handle: Any, retries: Retries) -> None:
        self._expand = handle.options(method_name="expand", stream=True)
        self._token_beam = handle.options(method_name="token_beam")
        self._retries = retries

    async def expand(self, request: ExpandRequest) -> AsyncGenerator[ChildGroup, None]:
        """One call, as the port says. Closing aborts at the replica what is still being written there.

        Raises:
            GeneratorRefused: at once.
            CallInterrupted: after a pause; another attempt should follow.
            GeneratorError: after the last attempt, or at the request's deadline.
        """
        deadline = Deadline(request.deadline_s)
        tried = list(request.avoid)
        missing = sum(len(item.branches) for item in request.expansions)
        optional = missing - sum(item.least for item in request.expansions)
        try:
            async with aclosing(self._groups(request, deadline, tried)) as groups:
                async for group in groups:
                    written = sum(bool(child.steps) for child in group.children)
                    missing -= written + min(len(group.children) - written, optional)
                    optional = 0  # what is given back comes first
                    if group.children or group.headroom:
                        yield group
            if missing > 0:
                raise ReplicaLost(f"the replica ended with {missing} branches unwritten")
        except Exception as error:
            if not is_replica_failure(error):
                raise refusal(error) from None
            if missing <= 0:
                return
            if not await self._retries.again(error, request.attempt, deadline, "expand"):
                raise GeneratorError(f"{missing} branches could not be written: {in_short(error)}") from None
            raise CallInterrupted(in_short(error), tuple(tried)) from None

    async def token_beam(self, request: TokenBeamRequest) -> TokenBeamReply:
        """Token-level beam search on one replica; on another one from the start if that is lost.

        Raises:
            GeneratorError: after the last attempt, or at the request's deadline.
        """
        deadline = Deadline(request.deadline_s)

        async def attempt(tried: list[str]) -> TokenBeamReply:
            asked = request._replace(deadline_s=deadline.remaining, avoid=tuple(tried))
            found: TokenBeamReply = await answer(self._token_beam.remote(asked), deadline, tried)
            return found

        return await retried(attempt, self._retries, deadline, "token_beam", GeneratorError)

    async def _groups(
        self, request: ExpandRequest, deadline: Deadline, tried: list[str]
    ) -> AsyncGenerator[ChildGroup, None]:
        """What the replica streams; the replica is added to ``tried``."""
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

    def __init__(self, handle: Any, retries: Retries, patience_s: float) -> None:
        """``patience_s``: for how long calls wait without a sign of life of any replica."""
        self._handle = handle
        self._score = handle.options(method_name="score")
        self._canary = handle.options(method_name="canary")
        self._retries = retries
        self._breaker = Breaker("the process reward model", self._silent_s, self._probe, patience_s)

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        """As the port says; every attempt that dies or answers nonsense is made again.

        Raises:
            ScorerRefused: at once.
            ScorerError: after the last attempt, at the request's deadline, or when there is no sign of life.
        """
        deadline = Deadline(request.deadline_s)
        wanted = [item.unscored for item in request.items]

        async def attempt(tried: list[str]) -> Sequence[Sequence[float]]:
            asked = request._replace(deadline_s=deadline.remaining, avoid=tuple(tried))
            rewards = await answer(self._score.remote(asked), deadline, tried)
            return check_rewards(rewards, wanted, "the process reward model")

        try:
            async with self._breaker.call():
                return await retried(attempt, self._retries, deadline, "score", ScorerError)
        except CircuitOpen as gone:
            raise ScorerError(str(gone)) from None

    async def _silent_s(self) -> float:
        """For how long the liveliest replica has been silent. Raises ReplicaLost where none answers."""
        replies = await everywhere(self._handle, "silent_s", LOOK_S)
        if silences := [each for each in replies if isinstance(each, float)]:
            return min(silences)
        raise ReplicaLost(f"no replica answers: {replies}")

    async def _probe(self) -> None:
        await answer(self._canary.remote(PROBE_S), Deadline(PROBE_S))


async def retried(
    attempt: Callable[[list[str]], Awaitable[T]],
    retries: Retries,
    deadline: Deadline,
    what: str,
    failure: type[SearchError],
) -> T:
    """What ``attempt`` returns, made again as ``retries`` say. It is told which replicas were tried, and adds its own.

    Raises:
        SearchError: ``failure``, when the last attempt failed for reasons of its replica.
    """
    tried: list[str] = []
    for number in count(1):
        try:
            return await attempt(tried)
        except Exception as error:
            if not is_replica_failure(error):
                raise refusal(error) from None
            if not await retries.again(error, number, deadline, what):
                raise failure(in_short(error)) from None
    raise AssertionError("unreachable: counting does not end")


def note_replica(response: Any, tried: list[str]) -> None:
    """Adds the replica that had a call."""
    if (replica := replica_of(response)) is not None:
        tried.append(replica)


async def answer(response: Any, deadline: Deadline, tried: list[str] | None = None) -> Any:
    """What a unary call answers; on any other ending the call is cancelled at its replica. However it ends, the replica
    is added to ``tried``."""
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
