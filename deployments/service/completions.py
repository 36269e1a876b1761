"""Token-level beam search: what ``/v1/completions`` does, without HTTP."""

import asyncio
from typing import NamedTuple, Protocol

from deployments.service.searches import GRACE_S, SearchService, late_is_timeout
from deployments.service.slots import Slot
from deployments.service.suspects import digest_of
from search.ports import TokenBeamReply, TokenBeamRequest


class TokenBeams(Protocol):
    """The part of a generator that completions need; see ``GenerationEngine.token_beam``."""

    async def token_beam(self, request: TokenBeamRequest) -> TokenBeamReply: ...


class CompletionJob(NamedTuple):
    """A validated completion request."""

    request: TokenBeamRequest
    n: int
    """Number of sequences to return for each prompt."""

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.request.prompts))

    def digest(self, owner: str) -> bytes:
        """What is asked, for `deployments.service.suspects.Suspects`."""
        request = self.request
        return digest_of(owner, "completion", request.prompts, request.settings.skip_reading_prefix_cache)


class CompletionService:
    """Runs completions on the generators that searches use, too."""

    def __init__(self, searches: SearchService, generator: TokenBeams) -> None:
        self._searches = searches
        self._generator = generator

    async def complete(self, job: CompletionJob, slot: Slot) -> TokenBeamReply:
        """Runs a request and adds its tokens to ``slot``, those that were computed again included; if it fails or is
        cancelled, only its prompt tokens.

        Raises:
            HarmfulRequest: as `SearchService.search`.
            TimeoutError: the request did not finish before its deadline.
            GeneratorError: the engines of all replicas failed.
        """
        slot.charged += job.prompt_tokens
        # The call should end by the request's own deadline; this timeout ends one that does not.
        suspects, request = self._searches.suspects, job.request
        with suspects.request(request.search_id, slot.owner.name, job.digest):
            async with asyncio.timeout(request.deadline_s + GRACE_S):
                with late_is_timeout(request.deadline_s):
                    reply = await self._generator.token_beam(request)
        slot.charged += reply.generated_tokens + reply.recomputed_tokens
        return reply
