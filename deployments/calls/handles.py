"""The search's ports over Ray Serve handles. They own every call: what of it is outstanding, and its attempts.

A call that fails because of its replica is made again as `Retries` says, for exactly what is outstanding. A call that
fails because of the request or the caller is not.

A call waits for a replica and for its answer until its own deadline. It does not check itself whether the replica still
works: the replica watches its engine (`engines.watch`), Serve's health checks watch its process, and the end of either
ends the call. A stream sends heartbeats (``engines.generation.HEARTBEAT_S``); for the PRM a breaker checks for signs of
life.
"""

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from deployments.calls.attempts import Attempts, sent
from deployments.calls.breaker import Breaker, CircuitOpen
from deployments.calls.pool import Pool
from deployments.calls.serve_calls import (
    Deadline,
    ReplicaLost,
    Retries,
    everywhere,
    is_replica_failure,
    reply,
    was_assigned,
)
from deployments.telemetry import catalog
from deployments.telemetry.context import CLIENT_KEY
from deployments.telemetry.metrics import NoMetrics
from deployments.telemetry.searches import SearchTelemetry
from search.errors import GeneratorError, ScorerError
from search.ports import Child, ChildGroup, ExpandItem, ExpandRequest, ScoreRequest, TokenBeamReply, TokenBeamRequest
from search.rewards import check_rewards

LOOK_S = 2.0
"""Seconds in which a replica must answer a liveness check."""
PROBE_S = 10.0
"""Seconds in which the PRM must score one step, to close the breaker again."""


class Outstanding:
    """The branches of an ``expand`` call that have neither arrived nor been given back."""

    def __init__(self, expansions: Sequence[ExpandItem]) -> None:
        self._expansions = expansions
        self._open = {
            (item.parent, branch.index): number >= item.least
            for item in expansions
            for number, branch in enumerate(item.branches)
        }
        """By parent and index: whether a replica may give the branch back, in the first group that arrives."""
        self._began = False
        """Whether a group has arrived: every branch is required from then on, of other replicas too."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def expansions(self) -> tuple[ExpandItem, ...]:
        """Items that request exactly these branches."""
        if not self._began:
            return tuple(self._expansions)
        left = (
            (item, tuple(branch for branch in item.branches if (item.parent, branch.index) in self._open))
            for item in self._expansions
        )
        return tuple(item._replace(branches=branches, least=len(branches)) for item, branches in left if branches)

    def take(self, group: ChildGroup) -> ChildGroup | None:
        """Returns the group with only those of its children that are outstanding, which then no longer are; required
        branches that are given back stay outstanding. None if nothing is left of the group."""
        children = tuple(child for child in group.children if self._takes(child))
        self._began = True
        return group._replace(children=children) if children or group.headroom else None

    def _takes(self, child: Child) -> bool:
        pair = child.parent, child.index
        if pair not in self._open or not (child.steps or (self._open[pair] and not self._began)):
            return False
        del self._open[pair]
        return True


class HandleGenerator:
    """`search.ports.Generator` over the handle of the generator deployment."""

    def __init__(
        self, handle: Any, retries: Retries, pool: Pool | None = None, telemetry: SearchTelemetry | None = None
    ) -> None:
        self._pool = pool or Pool()
        self._telemetry = telemetry or SearchTelemetry(NoMetrics())
        self._expand = handle.options(method_name="expand", stream=True)
        self._token_beam = handle.options(method_name="token_beam")
        self._retries = retries

    async def expand(self, request: ExpandRequest) -> AsyncGenerator[ChildGroup, None]:
        """Makes one call, as the port specifies. Closing the stream aborts the unfinished branches at the replica.

        The latency histogram leaves out calls that end before their last child.

        Raises:
            GeneratorRefused: at once.
            HarmfulRequest: the search ended two engines.
            GeneratorError: after the last attempt, or at the request's deadline.
        """
        outstanding = Outstanding(request.expansions)

        def failure(reason: str) -> GeneratorError:
            return GeneratorError(f"{len(outstanding)} branches could not be written: {reason}")

        attempts = Attempts("expand", request, self._pool, self._retries, self._telemetry, failure)
        key, deadline = CLIENT_KEY.get(), attempts.deadline
        started = last = time.perf_counter()
        again = not request.expansions  # Such a call is made once: what it gives up is given up in any case.
        while outstanding or again:
            again = False
            async with attempts.next() as envelope:
                generated, ahead = 0, request.ahead if envelope.ahead else None
                part = request._replace(expansions=outstanding.expansions, deadline_s=deadline.remaining, ahead=ahead)
                attempts.span.set_attribute("banyan.lane", request.lane.value)
                attempts.span.set_attribute("banyan.branches", len(outstanding))
                try:
                    async with sent(self._expand.remote(part, envelope), attempts.tried) as response:
                        while (group := await self._next_group(response, deadline)) is not None:
                            if (kept := outstanding.take(group)) is not None:
                                last = time.perf_counter()
                                generated += self._count(kept, key)
                                attempts.span.set_attribute("banyan.generated_tokens", generated)
                                yield kept
                except Exception as error:
                    if outstanding or not is_replica_failure(error):
                        raise
                if outstanding:
                    raise ReplicaLost(f"the replica's stream ended with {len(outstanding)} unfinished branches")
                self._pool.wrote(part, attempts.tried)
        if request.expansions:
            self._telemetry.metrics.observe(catalog.EXPAND_SECONDS, last - started, request.lane.value)

    async def token_beam(self, request: TokenBeamRequest) -> TokenBeamReply:
        """Token-level beam search on one replica; if that is lost, from the start on another.

        Raises:
            HarmfulRequest: the request ended two engines.
            GeneratorError: after the last attempt, or at the request's deadline.
        """
        attempts = Attempts("token_beam", request, self._pool, self._retries, self._telemetry, GeneratorError)
        while True:
            async with attempts.next() as envelope:
                current = request._replace(deadline_s=attempts.deadline.remaining)
                async with sent(self._token_beam.remote(current, envelope), attempts.tried) as response:
                    written: TokenBeamReply = await reply(lambda: response, attempts.deadline)
                self._telemetry.metrics.add(catalog.GENERATED_TOKENS, written.generated_tokens, CLIENT_KEY.get())
                return written

    async def _next_group(self, response: Any, deadline: Deadline) -> ChildGroup | None:
        """The next group of a stream; None at its end."""
        try:
            return await reply(response.__anext__, deadline, self._retries.silence_s, lambda: was_assigned(response))
        except StopAsyncIteration:
            return None

    def _count(self, group: ChildGroup, key: str) -> int:
        """Counts the steps of a group; returns the number of their tokens."""
        steps = [step for child in group.children for step in child.steps]
        tokens = sum(step.written_tokens for step in steps)
        self._telemetry.metrics.add(catalog.STEPS_WRITTEN, len(steps))
        self._telemetry.metrics.add(catalog.GENERATED_TOKENS, tokens, key)
        return tokens


class HandleScorer:
    """`search.ports.StepScorer` over the handle of the process reward model deployment."""

    def __init__(
        self,
        handle: Any,
        retries: Retries,
        patience_s: float,
        pool: Pool | None = None,
        telemetry: SearchTelemetry | None = None,
    ) -> None:
        """``patience_s``: maximum seconds that calls wait without a sign of life from any replica."""
        self._pool = pool or Pool()
        self._telemetry = telemetry or SearchTelemetry(NoMetrics())
        self._handle = handle
        self._score = handle.options(method_name="score")
        self._canary = handle.options(method_name="canary")
        self._retries = retries
        self._breaker = Breaker("the process reward model", self._silent_s, self._probe, patience_s)

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        """Scores steps, as the port specifies. Retries attempts that fail or return invalid rewards.

        The latency histogram leaves out calls that fail.

        Raises:
            ScorerRefused: at once.
            HarmfulRequest: the request ended two engines.
            ScorerError: after the last attempt, at the request's deadline, or when there is no sign of life.
        """
        started, wanted = time.perf_counter(), [item.unscored for item in request.items]
        try:
            async with self._breaker.call():
                rewards = await self._rewards(request, wanted)
        except CircuitOpen as gone:
            raise ScorerError(str(gone)) from None
        self._telemetry.metrics.observe(catalog.SCORE_SECONDS, time.perf_counter() - started)
        self._telemetry.metrics.add(catalog.STEPS_SCORED, sum(wanted))
        return rewards

    async def _rewards(self, request: ScoreRequest, wanted: Sequence[int]) -> Sequence[Sequence[float]]:
        """The rewards of the first attempt that gives valid ones: ``wanted`` for each item."""
        attempts = Attempts("score", request, self._pool, self._retries, self._telemetry, ScorerError)
        while True:
            async with attempts.next() as envelope:
                attempts.span.set_attribute("banyan.items", len(wanted))
                current = request._replace(deadline_s=attempts.deadline.remaining)
                async with sent(self._score.remote(current, envelope), attempts.tried) as response:
                    rewards = await reply(lambda: response, attempts.deadline)
                return check_rewards(rewards, wanted, "the process reward model")

    async def _silent_s(self) -> float:
        """Seconds since any replica was last active. Raises ReplicaLost if none answers."""
        replies = await everywhere(self._handle, "silent_s", LOOK_S)
        if silences := [each for each in replies if isinstance(each, float)]:
            return min(silences)
        raise ReplicaLost(f"no replica answers: {replies}")

    async def _probe(self) -> None:
        async with sent(self._canary.remote(PROBE_S), []) as response:
            await reply(lambda: response, Deadline(PROBE_S))
