"""The search's ports over Ray Serve handles.

A call that fails for reasons of its replica is made again for exactly what has not arrived, under the
same seeds, so a search never notices on which replica a branch was written. Errors of the caller's
making are not retried.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from deployments.serve_calls import Deadline, ReplicaLost, Retries, in_short, is_replica_failure, release, reply
from search.errors import GeneratorError, ScorerError, SearchError
from search.ports import ChildGroup, ExpandItem, ExpandRequest, ScoreRequest, TokenBeamReply, TokenBeamRequest
from search.rewards import check_rewards

T = TypeVar("T")


class HandleGenerator:
    """`search.ports.Generator` over the handle of the generator deployment."""

    def __init__(self, handle: Any, retries: Retries) -> None:
        self._expand = handle.options(method_name="expand", stream=True)
        self._token_beam = handle.options(method_name="token_beam")
        self._retries = retries

    async def expand(self, request: ExpandRequest) -> AsyncGenerator[ChildGroup, None]:
        """As the port says. Closing aborts at the replica what is still being written there.

        Raises:
            GeneratorError: after the last attempt, or at the request's deadline.
        """
        deadline = Deadline(request.deadline_s)
        missing = Missing(request)
        try:
            async for attempt in self._retries.loop(deadline, "expand"):
                with attempt:
                    async with aclosing(self._attempt(missing, deadline)) as groups:
                        async for group in groups:
                            yield group
        except Exception as error:
            if not is_replica_failure(error):
                raise
            raise GeneratorError(f"{missing.count} branches could not be written: {in_short(error)}") from None

    async def token_beam(self, request: TokenBeamRequest) -> TokenBeamReply:
        """Token-level beam search on one replica; on another one from the start if that is lost.

        Raises:
            GeneratorError: after the last attempt, or at the request's deadline.
        """
        deadline = Deadline(request.deadline_s)

        async def attempt() -> TokenBeamReply:
            response = self._token_beam.remote(request._replace(deadline_s=deadline.remaining))
            # One reply for all of it: it may take as long as the request may.
            found: TokenBeamReply = await answer(response, deadline, deadline.remaining)
            return found

        return await retried(attempt, self._retries, deadline, "token_beam", GeneratorError)

    async def _attempt(self, missing: "Missing", deadline: Deadline) -> AsyncGenerator[ChildGroup, None]:
        if not missing.count:
            return
        response = self._expand.remote(missing.request(deadline.remaining))
        exhausted = False
        try:
            while True:
                try:
                    group = await reply(response.__anext__, deadline, self._retries.reply_timeout_s)
                except StopAsyncIteration:
                    exhausted = True
                    break
                fresh = missing.arrived(group)
                if fresh.children:
                    yield fresh
        finally:
            if not exhausted:
                release(response)
        if missing.count:
            raise ReplicaLost(f"the replica ended with {missing.count} branches unwritten")


class HandleScorer:
    """`search.ports.StepScorer` over the handle of the process reward model deployment."""

    def __init__(self, handle: Any, retries: Retries) -> None:
        self._score = handle.options(method_name="score")
        self._retries = retries

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        """As the port says; every attempt that dies, hangs or answers nonsense is made again.

        Raises:
            ScorerError: after the last attempt, or at the request's deadline.
        """
        deadline = Deadline(request.deadline_s)
        wanted = [item.unscored for item in request.items]

        async def attempt() -> Sequence[Sequence[float]]:
            response = self._score.remote(request._replace(deadline_s=deadline.remaining))
            rewards = await answer(response, deadline, self._retries.reply_timeout_s)
            return check_rewards(rewards, wanted, "the process reward model")

        return await retried(attempt, self._retries, deadline, "score", ScorerError)


async def retried(
    attempt: Callable[[], Awaitable[T]], retries: Retries, deadline: Deadline, what: str, failure: type[SearchError]
) -> T:
    """What ``attempt`` returns, made again as ``retries`` say.

    Raises:
        SearchError: ``failure``, when the last attempt failed for reasons of its replica.
    """
    try:
        async for made in retries.loop(deadline, what):
            with made:
                return await attempt()
    except Exception as error:
        if not is_replica_failure(error):
            raise
        raise failure(in_short(error)) from None
    raise AssertionError("unreachable: the last attempt returns or raises")


async def answer(response: Any, deadline: Deadline, timeout_s: float) -> Any:
    """What a unary call answers; on any other ending the call is cancelled at its replica."""
    answered = False

    async def awaited() -> Any:
        return await response

    try:
        value = await reply(awaited, deadline, timeout_s)
        answered = True
        return value
    finally:
        if not answered:
            release(response)


class Missing:
    """The branches of a request that have not arrived."""

    def __init__(self, request: ExpandRequest) -> None:
        self._request = request
        self._names = {(part.parent, branch.index) for part in request.expansions for branch in part.branches}

    @property
    def count(self) -> int:
        return len(self._names)

    def request(self, deadline_s: float) -> ExpandRequest:
        """The same request for what is missing only."""
        parts = (
            ExpandItem(
                part.parent, part.prefix, tuple(b for b in part.branches if (part.parent, b.index) in self._names)
            )
            for part in self._request.expansions
        )
        return self._request._replace(expansions=tuple(p for p in parts if p.branches), deadline_s=deadline_s)

    def arrived(self, group: ChildGroup) -> ChildGroup:
        """``group`` without what was not missing; what is left is missing no longer."""
        fresh = []
        for child in group.children:
            name = (child.parent, child.index)
            if name in self._names:
                self._names.discard(name)
                fresh.append(child)
        return group if len(fresh) == len(group.children) else group._replace(children=tuple(fresh))
