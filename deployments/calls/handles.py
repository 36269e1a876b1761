"""The search's ports over Ray Serve handles.

A call that fails for reasons of its replica is made again for exactly what has not arrived, under the
same seeds, so a search never notices on which replica a branch was written. What fails for reasons of the
request, or of the caller, is not retried.

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
from search.errors import GeneratorError, ScorerError, SearchError
from search.ports import ChildGroup, ExpandItem, ExpandRequest, ScoreRequest, TokenBeamReply, TokenBeamRequest
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
        """As the port says. Closing aborts at the replica what is still being written there.

        Raises:
            GeneratorRefused: at once.
            GeneratorError: after the last attempt, or at the request's deadline.
        """
        deadline = Deadline(request.deadline_s)
        missing = Missing(request)
        tried: list[str] = []
        for attempt in count(1):
            try:
                async with aclosing(self._attempt(missing, deadline, tried)) as groups:
                    async for group in groups:
                        yield group
                return
            except Exception as error:
                if not is_replica_failure(error):
                    raise refusal(error) from None
                if not await self._retries.again(error, attempt, deadline, "expand"):
                    left = f"{missing.count} branches could not be written"
                    raise GeneratorError(f"{left}: {in_short(error)}") from None

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

    async def _attempt(
        self, missing: "Missing", deadline: Deadline, tried: list[str]
    ) -> AsyncGenerator[ChildGroup, None]:
        """One call; the replica that had it is added to ``tried``, those that others are not to come to."""
        if not missing.count:
            return
        response = self._expand.remote(missing.request(deadline.remaining, tuple(tried)))
        exhausted = False
        try:
            while True:
                try:
                    group = await reply(
                        response.__anext__, deadline, self._retries.silence_s, lambda: was_assigned(response)
                    )
                except StopAsyncIteration:
                    exhausted = True
                    break
                fresh = missing.arrived(group)
                if fresh.children or fresh.headroom:
                    yield fresh
        finally:
            note_replica(response, tried)
            if exhausted:
                dismantle_response(response)
            else:
                release(response)
        if missing.count:
            raise ReplicaLost(f"the replica ended with {missing.count} branches unwritten")


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


class Missing:
    """The branches of a request that have not arrived.

    A replica gives branches back in its first group. After that all that are missing have to be written."""

    def __init__(self, request: ExpandRequest) -> None:
        self._request = request
        self._settled = False
        """Whether a replica has said which branches it gives back."""
        self._names = {(part.parent, branch.index) for part in request.expansions for branch in part.branches}
        self._optional = {
            (part.parent, branch.index) for part in request.expansions for branch in part.branches[part.least :]
        }

    @property
    def count(self) -> int:
        return len(self._names)

    def request(self, deadline_s: float, avoid: tuple[str, ...]) -> ExpandRequest:
        """The same request for what is missing only."""
        if not self._settled:  # all of it is missing
            return self._request._replace(deadline_s=deadline_s, avoid=avoid)
        parts: list[ExpandItem] = []
        for part in self._request.expansions:
            branches = tuple(branch for branch in part.branches if (part.parent, branch.index) in self._names)
            if branches:
                parts.append(ExpandItem(part.parent, part.prefix, branches, least=len(branches)))
        return self._request._replace(expansions=tuple(parts), deadline_s=deadline_s, avoid=avoid)

    def arrived(self, group: ChildGroup) -> ChildGroup:
        """``group`` without what was not missing; what is left is missing no longer."""
        optional = frozenset() if self._settled else self._optional
        self._settled = True
        fresh = []
        for child in group.children:
            name = (child.parent, child.index)
            # A replica that gives back what it must write has lost it.
            if name in self._names and (child.steps or name in optional):
                self._names.discard(name)
                fresh.append(child)
        return group if len(fresh) == len(group.children) else group._replace(children=tuple(fresh))
