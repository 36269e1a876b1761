"""Token-level beam search, with the same results as vLLM's own, on an engine that serves other requests meanwhile.

Unlike the searches over steps, it needs no tree and no rewards: a beam's score is its log-probability.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field

MAX_WIDTH = 64
MAX_PROMPTS = 1024


class TokenBeamSettings(BaseModel):
    """The settings of one call."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    width: int = Field(ge=1, le=MAX_WIDTH, description="Beam width, and number of sequences kept.")
    max_tokens: int = Field(ge=1, le=131_072, description="Maximum tokens of a continuation.")
    length_penalty: float = Field(
        1.0, ge=-10.0, le=10.0, description="Exponent p in score = log-probability / length ** p."
    )
    ignore_eos: bool = Field(False, description="Continue after the end-of-sequence token.")
    skip_reading_prefix_cache: bool | None = Field(
        None, description="true never reads the engine's prefix cache, false does; unset leaves it to the engine."
    )
    concurrency_limit: int | None = Field(
        None, description="Maximum number of prompts that are processed concurrently."
    )


class BeamSequence(NamedTuple):
    """One finished beam."""

    token_ids: tuple[int, ...]
    """The generated token ids, the end-of-sequence token included."""
    logprob: float
    """Sum of the tokens' log-probabilities, nats."""
    score: float
    ended: bool
    """Whether it ends with the end-of-sequence token; otherwise it was cut off."""


class NextTokens(Protocol):
    """An engine that returns the most likely next tokens."""

    async def next_tokens(self, prefixes: Sequence[Sequence[int]], count: int) -> Sequence[Mapping[int, float]]:
        """For each prefix its ``count`` most likely next tokens with their log-probabilities, the likeliest first."""
        ...


class _Beam(NamedTuple):
    generated: tuple[int, ...]
    logprob: float


async def token_beam_search(
    engine: NextTokens, prompts: Sequence[Sequence[int]], settings: TokenBeamSettings, eos: int | None
) -> list[list[BeamSequence]]:
    """For each prompt (token ids) its ``width`` best continuations, the best first.

    The results do not depend on the order of the prompts or on the concurrency. An engine error for one prompt ends
    the whole call.
    """
    wanted = len(prompts) if settings.concurrency_limit is None else settings.concurrency_limit
    concurrency = asyncio.Semaphore(max(1, min(wanted, len(prompts))))

    async def one(prompt: Sequence[int]) -> list[BeamSequence]:
        async with concurrency:
            return await _search(engine, tuple(prompt), settings, eos)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(prompt)) for prompt in prompts]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def _search(
    engine: NextTokens, prompt: tuple[int, ...], settings: TokenBeamSettings, eos: int | None
) -> list[BeamSequence]:
    width = settings.width
    beams = [_Beam((), 0.0)]
    ended: list[BeamSequence] = []

    def score(logprob: float, generated: int, last: int) -> float:
        length = len(prompt) + generated - (last == eos)
        value: float = logprob / float(max(length, 1)) ** settings.length_penalty
        return value

    for _ in range(settings.max_tokens):
        # Twice the width, as in transformers: enough to fill the width even if every beam could end here.
        following = await engine.next_tokens([(*prompt, *beam.generated) for beam in beams], 2 * width)
        # Only scores at first: one continuation in 2 * width is kept, and copying the tokens of all would be slow.
        grown: list[tuple[float, int, int, float]] = []
        for index, (beam, tokens) in enumerate(zip(beams, following, strict=True)):
            for token, more in tokens.items():
                logprob = beam.logprob + more
                value = score(logprob, len(beam.generated) + 1, token)
                if token == eos and not settings.ignore_eos:
                    ended.append(BeamSequence((*beam.generated, token), logprob, value, ended=True))
                else:
                    grown.append((value, index, token, logprob))
        grown = sorted(grown, key=lambda each: each[0], reverse=True)[:width]
        beams = [_Beam((*beams[index].generated, token), logprob) for _, index, token, logprob in grown]
        ended = sorted(ended, key=lambda sequence: sequence.score, reverse=True)[:width]
        if not beams or _decided(ended, beams[0], len(prompt), settings):
            break
    cut_off = [
        BeamSequence(beam.generated, beam.logprob, score(beam.logprob, len(beam.generated), beam.generated[-1]), False)
        for beam in beams
    ]
    return sorted([*ended, *cut_off], key=lambda sequence: sequence.score, reverse=True)[:width]


def _decided(ended: Sequence[BeamSequence], best: _Beam, prompt_tokens: int, settings: TokenBeamSettings) -> bool:
    """Whether no open beam can still enter the result. Log-probabilities only fall, so the bound on a beam's final
    score is the best beam's current log-probability at the length that favours it most."""
    if len(ended) < settings.width:
        return False
    lengths = prompt_tokens + len(best.generated), prompt_tokens + settings.max_tokens
    bound: float = max(best.logprob / float(max(length, 1)) ** settings.length_penalty for length in lengths)
    return ended[-1].score > bound
