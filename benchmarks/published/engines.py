"""Banyan's engines with a published model."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import torch

from deployments.engines.rewards import parse_prm
from deployments.engines.rewards.family import RewardModelSettings
from deployments.engines.settings import GeneratorSettings
from search.answers.equivalence import AnswerMatcher

if TYPE_CHECKING:
    from deployments.engines.generation import GenerationEngine
    from deployments.engines.scoring import ScoringEngine

CONTEXT_TOKENS = 1024
MAX_SOLUTION_TOKENS = 512
"""Longest solution. Few are longer, and most of those repeat themselves."""
DTYPE = "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"
"""Processors without instructions for it are ten times slower in bfloat16."""
KV_BYTES = 1_500_000_000
UNWATCHED_S = 3600.0
"""Time after which a silent engine counts as stalled. A run in the background may be stopped for long."""


def generator_settings(model: str, requests: int, threads: int) -> GeneratorSettings:
    """Settings of an engine that writes ``requests`` solutions at a time on ``threads`` cores."""
    return GeneratorSettings.model_validate({"model": model, **_engine_fields(requests, threads)})


def prm_settings(prm: str, requests: int, threads: int) -> RewardModelSettings:
    """Settings of an engine that scores ``requests`` paths at a time.

    Raises:
        ValueError: ``prm`` is no JSON, or no settings of a reward model.
    """
    settings = parse_prm(_engine_fields(requests, threads) | json.loads(prm))
    if not isinstance(settings, RewardModelSettings):
        raise ValueError(f"prm must be a reward model, not {settings.family!r}")
    return settings


def _engine_fields(requests: int, threads: int) -> dict[str, Any]:
    return {
        "dtype": DTYPE,
        "max_model_len": CONTEXT_TOKENS,
        "max_num_seqs": requests,
        "kv_cache_memory_bytes": KV_BYTES,
        "cpu_threads": threads,
        "stall_s": UNWATCHED_S,
        "max_step_s": 24 * UNWATCHED_S,
    }


@asynccontextmanager
async def started_generator(settings: GeneratorSettings) -> AsyncIterator[tuple["GenerationEngine", AnswerMatcher]]:
    """A generation engine and an answer matcher; both end with the block."""
    from deployments.engines.generation import GenerationEngine

    engine, matcher = GenerationEngine(settings), AnswerMatcher()
    await engine.start()
    try:
        await matcher.start()
        yield engine, matcher
    finally:
        matcher.close()
        engine.shutdown()


@asynccontextmanager
async def started_scorer(settings: RewardModelSettings) -> AsyncIterator["ScoringEngine"]:
    """A scoring engine that ends with the block."""
    from deployments.engines.scoring import ScoringEngine

    engine = ScoringEngine(settings)
    await engine.start()
    try:
        yield engine
    finally:
        engine.shutdown()
