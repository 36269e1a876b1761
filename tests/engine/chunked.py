"""Paths whose prompts an engine computes in chunks, compared with the same paths in one piece."""

import random

import pytest

from deployments.engines.scoring import ScoringEngine
from search.ports import ScoreItem, ScoreRequest
from search.rewards import RewardRows
from tests.engine.chunking_scheduler import CHUNK_TOKENS, CHUNKED, ChunkingGeneration, ChunkingPooling
from tests.engine.reward_models import random_path

MINUTES = 600.0
SCHEDULERS = {
    runner: f"{scheduler.__module__}.{scheduler.__name__}"
    for runner, scheduler in (("pooling", ChunkingPooling), ("generate", ChunkingGeneration))
}
"""Schedulers that compute only requests with a salt of `CHUNKED` in chunks, by vLLM's name of the runner."""


def related_paths(rng: random.Random, number: int) -> tuple[str, list[tuple[str, ...]]]:
    """A question and paths that begin with each other's first steps. Most have a long step."""
    question, steps = random_path(rng)
    paths = [steps]
    while len(paths) < number:
        stem = rng.choice(paths)
        paths.append((*stem[: rng.randint(1, len(stem))], "So " * rng.randint(1, 60), *random_path(rng)[1]))
    return question, paths


async def assert_chunks_change_nothing(whole: ScoringEngine, chunked: ScoringEngine, number: int = 8) -> None:
    """Scores paths on ``whole``, and on ``chunked`` all their steps at once, step by step, and behind cached paths.

    ``chunked`` computes at most ``CHUNK_TOKENS[1]`` tokens in a step with such a request."""
    rng = random.Random(8)
    question, paths = related_paths(rng, number)

    async def score(engine: ScoringEngine, items: list[ScoreItem], salt: str = "") -> RewardRows:
        return await engine.score(ScoreRequest("search", question, tuple(items), MINUTES, salt))

    at_once = [ScoreItem(path, len(path)) for path in paths]
    expected: dict[tuple[str, ...], float] = {}
    whole.forget()
    for path, rewards in zip(paths, await score(whole, at_once), strict=True):
        expected |= {path[:end]: reward for end, reward in enumerate(rewards, 1)}
    levels = range(1, max(map(len, paths)) + 1)
    calls = (
        [at_once],
        [[ScoreItem(path[:end]) for path in paths if len(path) >= end] for end in levels],
        [at_once[:2], [ScoreItem(path, rng.randint(1, len(path))) for path in paths]],
    )
    counters = chunked._running.counters
    computed, steps = 0, counters.reports
    for salt, call in enumerate(calls):  # none finds a prefix of another: how much each computes depends on no timing
        chunked.forget()
        for items in call:
            rows = await score(chunked, items, f"{CHUNKED} {salt}")
            computed += rows.cost.prompt_tokens - rows.cost.cached_tokens
            for item, rewards in zip(items, rows, strict=True):
                ends = range(len(item.steps) - item.unscored + 1, len(item.steps) + 1)
                assert rewards == pytest.approx([expected[item.steps[:end]] for end in ends], abs=1e-5)
    assert counters.reports - steps >= computed / CHUNK_TOKENS[1] > 30
