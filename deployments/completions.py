"""Completions by token-level beam search: what ``/v1/completions`` does, without HTTP."""

import asyncio
import uuid
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from deployments.http.errors import BadRequest
from deployments.http.schema import CompletionBody
from deployments.service import GRACE_S, SearchService
from search.ports import TokenBeamReply, TokenBeamRequest
from search.token_beam import TokenBeamSettings


class TokenBeams(Protocol):
    """A generator as this needs it; see ``GenerationEngine.token_beam``."""

    async def token_beam(self, request: TokenBeamRequest) -> TokenBeamReply: ...


class TextEncoder(Protocol):
    """The generator's tokenizer; see `deployments.engines.encoding.ChatEncoder`."""

    @property
    def vocabulary(self) -> int: ...

    def encode_text(self, text: str) -> list[int]: ...


class CompletionJob(NamedTuple):
    """A request that has been checked."""

    request: TokenBeamRequest
    n: int
    """Of each prompt's sequences, so many are asked for."""

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.request.prompts))


class CompletionService:
    """Shares the places and the limits of the searches."""

    def __init__(self, searches: SearchService, encoder: TextEncoder, generator: TokenBeams) -> None:
        self._searches = searches
        self._encoder = encoder
        self._generator = generator

    def prepare(self, body: CompletionBody) -> CompletionJob:
        """
        Raises:
            NotFound: unknown model.
            BadRequest: a prompt is malformed or does not fit, or more is asked for than is allowed.
        """
        self._searches.check_model(body.model)
        prompts = tuple(self._encoded(place, prompt) for place, prompt in body.prompts())
        controller = self._searches.config.controller
        width = body.best_of or body.n
        asked = len(prompts) * width * body.max_tokens
        if width > controller.limits.n:
            path = "best_of" if body.best_of else "n"
            raise BadRequest(f"{path} may be at most {controller.limits.n} here, not {width}", path, "above_limit")
        if asked > controller.limits.tokens:
            message = f"{len(prompts)} prompts, {width} beams and {body.max_tokens} tokens are {asked} tokens"
            raise BadRequest(f"{message}; at most {controller.limits.tokens} here", "max_tokens", "above_limit")
        context = self._searches.config.generator.max_model_len
        for place, prompt in enumerate(prompts):
            if len(prompt) + body.max_tokens > context:
                raise BadRequest(
                    f"prompt {place} has {len(prompt)} tokens and {body.max_tokens} are asked for; "
                    f"the context holds {context}",
                    "prompt",
                    "context_length_exceeded",
                )
        limit = body.concurrency_limit
        most_at_once = max(1, controller.branches // width)
        settings = TokenBeamSettings(
            width=width,
            max_tokens=body.max_tokens,
            length_penalty=body.length_penalty,
            ignore_eos=body.ignore_eos,
            skip_reading_prefix_cache=body.skip_reading_prefix_cache,
            concurrency_limit=most_at_once if limit is None else max(1, min(limit, most_at_once)),
        )
        return CompletionJob(TokenBeamRequest(uuid.uuid4().hex, prompts, settings, controller.limits.seconds), body.n)

    async def complete(self, job: CompletionJob) -> TokenBeamReply:
        """
        Raises:
            Busy: no place is free.
            TimeoutError: not done by the limit of a request's seconds.
            GeneratorError: the engines failed, on every replica.
        """
        settings = job.request.settings
        at_once = min(settings.concurrency_limit or 1, len(job.request.prompts)) * settings.width
        with self._searches.place(job.request.search_id):
            # The request's own deadline begins when there is room; this one also ends the wait for it.
            async with asyncio.timeout(job.request.deadline_s + GRACE_S), self._searches.room(at_once):
                return await self._generator.token_beam(job.request)

    def _encoded(self, path: str, prompt: str | Sequence[int]) -> tuple[int, ...]:
        if not isinstance(prompt, str):
            if wrong := [token for token in prompt if not 0 <= token < self._encoder.vocabulary]:
                raise BadRequest(f"{path} has token {wrong[0]}; there are {self._encoder.vocabulary}", path)
            return tuple(prompt)
        try:
            ids = tuple(self._encoder.encode_text(prompt))
        except ValueError as error:
            raise BadRequest(f"{path}: {error}", path) from None
        if not ids:
            raise BadRequest(f"{path} has no tokens", path)
        return ids
