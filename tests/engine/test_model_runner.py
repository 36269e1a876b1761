"""Which of vLLM's model runners an engine has; and of the newer one, what no other test of this folder shows.

`make test-newer-runner` runs this file and others with engines on the newer one; see docs/model-runners.md.
"""

import asyncio
import os
from dataclasses import replace

import pytest
from vllm import AsyncEngineArgs

from deployments.engines.errors import EngineStartError
from deployments.engines.generation import GenerationEngine
from deployments.engines.scoring import ScoringEngine
from deployments.engines.settings import GeneratorSettings
from search.ports import StopCondition
from tests.engine.conftest import SETTLE_S, quiet, stop
from tests.engine.test_generation import prompt, token_ids, wanted

pytestmark = pytest.mark.asyncio(loop_scope="session")

NEWER = os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"
RUNNER = "vllm.v1.worker.cpu.model_runner" if NEWER else "vllm.v1.worker.cpu_model_runner"
SMALL_BYTES = 40 * 65_536
"""KV memory of 40 blocks of the embedded generator."""
CHUNK = 32
"""Tokens of an engine step."""


async def test_engines_tell_their_model_runner(
    shared_generation: GenerationEngine, shared_scoring: ScoringEngine, generator_model: str, prm_model: str
) -> None:
    found = shared_generation.model_runners | shared_scoring.model_runners
    assert found == dict.fromkeys([generator_model, prm_model], f"{RUNNER}.CPUModelRunner")


@pytest.mark.skipif(NEWER, reason="it has Triton")
async def test_the_newer_runner_is_refused_without_triton(
    generator_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    with pytest.raises(EngineStartError, match=r"did not start: VLLM_USE_V2_MODEL_RUNNER selects .* needs Triton"):
        await GenerationEngine(GeneratorSettings(model=generator_model)).start()


@pytest.mark.long
async def test_preempted_branches_write_the_same(generator_model: str, generation: GenerationEngine) -> None:
    settings = GeneratorSettings(model=generator_model, clamp="off", kv_cache_memory_bytes=SMALL_BYTES)
    engine = GenerationEngine(settings)
    with quiet():
        await engine.start()
    request = wanted(prompt(engine), range(40), max_tokens=300, stop_condition=StopCondition.SOLUTION)
    try:
        assert await token_ids(engine, request) == await token_ids(generation, request)
        assert engine.stats()["preemptions"] > 10
        assert await engine.check_integrity(SETTLE_S) == []
    finally:
        await stop(engine)


class Chunking(GenerationEngine):
    """Cuts prompts into chunks, as engines on a GPU do. A CPU's own runner cannot: its seeds have a state."""

    def _arguments(self) -> AsyncEngineArgs:
        return replace(super()._arguments(), enable_chunked_prefill=True, max_num_batched_tokens=CHUNK, max_num_seqs=16)


@pytest.mark.skipif(not NEWER, reason="a CPU's own runner cannot")
async def test_prompts_in_chunks_leave_the_texts_as_they_are(
    generator_model: str, generation: GenerationEngine
) -> None:
    engine = Chunking(GeneratorSettings(model=generator_model))
    with quiet():
        await engine.start()
    requests = [
        wanted(prompt(engine, f"Start with {number}." + " Add 12." * 3 * number), range(4), parent=(number,))
        for number in range(8)
    ]
    assert max(len(request.expansions[0].prefix) for request in requests) > 3 * CHUNK
    try:
        found = await asyncio.gather(*(token_ids(engine, request) for request in requests))
        assert found == [await token_ids(generation, request) for request in requests]
        assert await engine.check_integrity(SETTLE_S) == []
    finally:
        await stop(engine)
