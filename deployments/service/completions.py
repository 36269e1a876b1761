"""Completions by token-level beam search: what ``/v1/completions`` does, without HTTP."""

import asyncio
from typing import NamedTuple, Protocol

from deployments.service.places import Place
from deployments.service.searches import GRACE_S, SearchService, late_is_timeout
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
        place.charged += job.prompt_tokens
        # The request has its own deadline; this one ends a call that does not end by it.
        async with asyncio.timeout(job.request.deadline_s + GRACE_S):
            with late_is_timeout(job.request.deadline_s):
                reply = await self._generator.token_beam(job.request)
        place.charged += reply.generated_tokens
        return reply
