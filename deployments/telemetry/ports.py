"""Instrumented ports of a search: calls are timed, counted and traced."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from deployments.telemetry import catalog
from deployments.telemetry.context import CLIENT_KEY, SEARCH_ID
from deployments.telemetry.searches import SearchTelemetry
from search.ports import ChildGroup, ExpandRequest, ScoreRequest, StepScorer, TokenBeamReply, TokenBeamRequest
from search.run.scorer import source_of


class WatchableGenerator(Protocol):
    """The calls of the controller's generator."""

    def expand(self, request: ExpandRequest) -> AsyncGenerator[ChildGroup, None]: ...

    async def token_beam(self, request: TokenBeamRequest) -> TokenBeamReply: ...


class WatchedGenerator:
    """A generator whose calls are counted and traced."""

    def __init__(self, generator: WatchableGenerator, telemetry: SearchTelemetry) -> None:
        self._generator = generator
        self._telemetry = telemetry
        self._metrics = telemetry.metrics

    async def expand(self, request: ExpandRequest) -> AsyncGenerator[ChildGroup, None]:
        """See the port. The latency histogram leaves out calls that end before their last child."""
        metrics, generated = self._metrics, 0
        SEARCH_ID.set(request.search_id)
        key = CLIENT_KEY.get()
        started = last = time.perf_counter()
        with self._telemetry.call("expand", request.search_id) as span:
            span.set_attribute("banyan.lane", request.lane.value)
            span.set_attribute("banyan.branches", sum(len(part.branches) for part in request.expansions))
            async with aclosing(self._generator.expand(request)) as groups:
                async for group in groups:
                    last = time.perf_counter()
                    steps = [step for child in group.children for step in child.steps]
                    written = sum(len(step.token_ids) for step in steps)
                    metrics.add(catalog.STEPS_WRITTEN, len(steps))
                    metrics.add(catalog.GENERATED_TOKENS, written, key)
                    generated += written
                    yield group
            span.set_attribute("banyan.generated_tokens", generated)
        metrics.observe(catalog.EXPAND_SECONDS, last - started, request.lane.value)

    async def token_beam(self, request: TokenBeamRequest) -> TokenBeamReply:
        """See the generator's own."""
        SEARCH_ID.set(request.search_id)
        with self._telemetry.call("token_beam", request.search_id):
            reply = await self._generator.token_beam(request)
        self._metrics.add(catalog.GENERATED_TOKENS, reply.generated_tokens, CLIENT_KEY.get())
        return reply


class WatchedScorer:
    """A scorer whose calls are counted and traced."""

    def __init__(self, scorer: StepScorer, telemetry: SearchTelemetry) -> None:
        self.name = source_of(scorer)
        self._scorer = scorer
        self._telemetry = telemetry

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        """See the port. The latency histogram leaves out calls that fail."""
        metrics = self._telemetry.metrics
        SEARCH_ID.set(request.search_id)
        started = time.perf_counter()
        with self._telemetry.call("score", request.search_id) as span:
            span.set_attribute("banyan.items", len(request.items))
            rewards = await self._scorer.score(request)
        metrics.observe(catalog.SCORE_SECONDS, time.perf_counter() - started)
        metrics.add(catalog.STEPS_SCORED, sum(item.unscored for item in request.items))
        return rewards
