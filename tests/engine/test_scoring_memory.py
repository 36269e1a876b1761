"""A reward model with little KV memory: queries wait for blocks, and get the rewards that they get with more."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from deployments.engines.rewards.step_head import StepHeadSettings
from deployments.engines.scoring import ScoringEngine
from search.errors import ScoredPathTooLarge
from search.ports import ScoreItem, ScoreRequest
from search.rewards import RewardRows
from tests.engine.conftest import SETTLE_S, quiet, stop

pytestmark = pytest.mark.asyncio(loop_scope="session")

BLOCK_BYTES = 114_688
"""Bytes of a block of the embedded reward model."""
BLOCKS = 33
LONG = " Add 12." * 45
"""Part of a question: its path takes a quarter of the cache or more."""
LEAST = 128
"""Fewest tokens of such a path in whole blocks."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def small(prm_model: str) -> AsyncIterator[ScoringEngine]:
    """An engine with little KV memory."""
    settings = StepHeadSettings(
        model=prm_model, max_model_len=512, kv_cache_memory_bytes=BLOCKS * BLOCK_BYTES, reward_cache_size=0
    )
    engine = ScoringEngine(settings)
    with quiet():
        await engine.start()
    yield engine
    await stop(engine)


async def score(engine: ScoringEngine, number: int, steps: int) -> RewardRows:
    """Scores the last of ``steps`` steps behind a question of its own."""
    path = tuple(f"{number} + {step} = {number + step}\n\n" for step in range(steps))
    question = f"Start with {number}.{LONG}"
    return await engine.score(ScoreRequest(f"search {number}", question, (ScoreItem(path),), 600.0))


async def test_queries_wait_for_blocks_and_get_the_same_rewards(small: ScoringEngine, scoring: ScoringEngine) -> None:
    assert small.stats()["total_blocks"] <= BLOCKS
    scoring.forget()
    pressed = await asyncio.gather(*(score(small, number, 1) for number in range(24)))
    roomy = await asyncio.gather(*(score(scoring, number, 1) for number in range(24)))

    for here, there in zip(pressed, roomy, strict=True):
        assert here[0] == pytest.approx(there[0], abs=1e-5)
    stats = small.stats()
    assert stats["items_held_back"] > 0
    assert stats["preemptions"] == 0
    assert await small.check_integrity(SETTLE_S) == []
    assert small.stats()["reserved_blocks"] == 0


async def test_tokens_that_were_computed_before_are_counted_when_they_are_computed_again(small: ScoringEngine) -> None:
    before = small.stats()["recomputed_tokens"]
    await score(small, 100, 1)
    assert (await score(small, 100, 2)).cost.recomputed_tokens == 0, "cached"
    for number in range(101, 107):
        await score(small, number, 1)
    again = (await score(small, 100, 3)).cost.recomputed_tokens
    assert again >= LEAST
    assert small.stats()["recomputed_tokens"] == before + again


async def test_every_step_is_in_the_histograms(small: ScoringEngine) -> None:
    def figures() -> dict[str, dict[str, float]]:
        return {name: histogram.figures for name, histogram in small.histograms.items()}

    before, stats = figures(), small.stats()
    await asyncio.gather(*(score(small, number, 1) for number in range(200, 208)))
    assert await small.check_integrity(SETTLE_S) == []
    after, counted = figures(), small.stats()

    def grown(name: str, what: str = "sum") -> float:
        return after[name][what] - before[name][what]

    steps = counted["engine_steps"] - stats["engine_steps"]
    assert 2 <= steps <= 8, "not all eight fit at once"
    for name in ("engine_step_tokens", "engine_step_requests", "engine_step_kv_use_ratio"):
        assert grown(name, "count") == steps
    assert grown("engine_step_requests") == counted["engine_step_requests"] - stats["engine_step_requests"] == 8
    computed = counted["prompt_tokens"] - stats["prompt_tokens"] - (counted["prefix_hits"] - stats["prefix_hits"])
    assert grown("engine_step_tokens") == computed > 8 * LEAST
    assert 0.2 < grown("engine_step_kv_use_ratio") / steps <= 1, (
        "while the step runs: a path takes a quarter of the blocks"
    )


async def test_the_life_of_some_blocks_is_recorded(small: ScoringEngine) -> None:
    for number in range(300, 340):
        await score(small, number, 1)
    lifetimes = small.histograms["kv_block_lifetime_seconds"].figures
    idle = small.histograms["kv_block_idle_seconds"].figures
    assert 0 < idle["sum"] <= lifetimes["sum"]
    assert idle["count"] == lifetimes["count"] > 0


async def test_a_path_that_just_fits_is_scored(small: ScoringEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    clamp = small._running.clamp
    assert clamp is not None
    item = ScoreItem(("500 + 0 = 500\n\n",))
    query = small._query(f"Start with 500.{LONG}", item.steps, 1)
    monkeypatch.setattr(clamp.ledger, "capacity", -(-len(query.token_ids) // 32))
    [[reward]] = await small.score(ScoreRequest("fits", f"Start with 500.{LONG}", (item,), 600.0))
    assert 0 <= reward <= 1


async def test_a_path_larger_than_all_kv_memory_is_refused_naming_the_setting(
    small: ScoringEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clamp = small._running.clamp
    assert clamp is not None
    # vLLM starts only with memory for its longest sequence, so a smaller capacity must be simulated.
    monkeypatch.setattr(clamp.ledger, "capacity", 1)
    with pytest.raises(
        ScoredPathTooLarge, match=r"needs \d+ KV blocks, but there are only 1; prm\.kv_cache_memory_bytes"
    ):
        await score(small, 400, 1)
    assert await small.check_integrity(SETTLE_S) == []
