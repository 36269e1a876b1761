"""Completions by token-level beam search: what ``/v1/completions`` does, without HTTP."""

import asyncio
from typing import NamedTuple, Protocol

from deployments.places import Place
from deployments.service import GRACE_S, SearchService, late_is_timeout
from search.ports import TokenBeamReply, TokenBeamRequest


class TokenBeams(Protocol):
    """A generator as this needs it; see ``GenerationEngine.token_beam``."""

    async def token_beam(self, request: TokenBeamRequest) -> TokenBeamReply: ...


class CompletionJob(NamedTuple):
    """A request that has been checked."""

    request: TokenBeamRequest
    n: int
    """Of each prompt's sequences, so many are asked for."""

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.request.prompts))


class CompletionService:
    """Shares the generators with the searches."""

    def __init__(self, searches: SearchService, generator: TokenBeams) -> None:
        self._searches = searches
        self._generator = generator

    async def complete(self, job: CompletionJob, place: Place) -> TokenBeamReply:
        """What it costs is written into ``place``; of one that is given up, the prompts only.

        Raises:
            TimeoutError: not done by the limit of a request's seconds.
            GeneratorError: the engines failed, on every replica.
        """
        place.tokens += job.prompt_tokens
        settings = job.request.settings
        at_once = min(settings.concurrency_limit or 1, len(job.request.prompts)) * settings.width
        # Never more than half of the gate, which other controllers may have left little of since this was planned: what
        # is wider than it would let nobody else in. The engine's own order holds back the rest.
        at_once = min(at_once, max(1, self._searches.most_branches // 2))
        # The request's own deadline begins when there is room; this one also ends the wait for it.
        room = self._searches.branches(at_once, job.request.lane)
        async with asyncio.timeout(job.request.deadline_s + GRACE_S), room:
            with late_is_timeout(job.request.deadline_s):
                reply = await self._generator.token_beam(job.request._replace(gate=self._searches.gate))
        place.tokens += reply.generated_tokens
        return reply
