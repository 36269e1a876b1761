"""What log-probabilities of written tokens cost an engine: none, those of the tokens drawn, and of the most likely."""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm import SamplingParams

from benchmarks.published.confidence import TOP_K
from benchmarks.ratios import ratio_with_interval

if TYPE_CHECKING:
    from deployments.engines.generation import GenerationEngine

REPORTED: dict[str, int | None] = {"none": None, "drawn": 0, f"top {TOP_K}": TOP_K}
TOKENS = 24
"""Tokens of each request."""


async def logprob_cost(engine: "GenerationEngine", prompts: Sequence[Sequence[int]], rounds: int) -> dict[str, Any]:
    """Seconds for all prompts at once by what is reported, in turns, and their ratios to nothing."""
    seconds: dict[str, list[float]] = {name: [] for name in REPORTED}
    await _written(engine, prompts, None, "warm-up")
    for number in range(rounds):
        for name in [*REPORTED][:: 1 if number % 2 else -1]:
            seconds[name].append(await _written(engine, prompts, REPORTED[name], f"{number} {name}"))
    ratios = {
        name: ratio_with_interval(list(zip(seconds[name], seconds["none"], strict=True))).as_json
        for name in REPORTED
        if name != "none"
    }
    return {"requests": len(prompts), "tokens": TOKENS, "seconds": seconds, "over_none": ratios}


async def _written(
    engine: "GenerationEngine", prompts: Sequence[Sequence[int]], logprobs: int | None, name: str
) -> float:
    async def write(index: int, prompt: Sequence[int]) -> None:
        params = SamplingParams(
            temperature=0.8, seed=index, max_tokens=TOKENS, min_tokens=TOKENS, logprobs=logprobs, detokenize=False
        )
        prompt_ids = {"prompt_token_ids": list(prompt)}
        async for _ in engine._running.engine.generate(prompt_ids, params, f"{name} {index}"):
            pass

    began = time.perf_counter()
    await asyncio.gather(*(write(index, prompt) for index, prompt in enumerate(prompts)))
    return round(time.perf_counter() - began, 3)
