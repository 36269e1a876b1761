"""Token-level beam search against vLLM's own, on the same model."""

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest

from deployments.embedded.problems import Split, draw_problems
from deployments.engines.arguments import engine_args
from deployments.engines.generation import GenerationEngine
from deployments.engines.settings import GeneratorSettings
from search.errors import GeneratorError
from search.ports import TokenBeamReply, TokenBeamRequest
from search.token_beam import TokenBeamSettings
from tests.engine.conftest import quiet

pytestmark = pytest.mark.asyncio(loop_scope="session")

MINUTES = 600.0
MAX_TOKENS = 40
CASES = ((2, False), (4, False), (8, False), (4, True))
"""Width, and whether the end of the sequence is ignored."""


@pytest.fixture(scope="module")
def prompts(shared_generation: GenerationEngine) -> list[tuple[int, ...]]:
    """20 questions in the chat template."""
    texts = [problem.text for problem, _ in zip(draw_problems(Split.TEST, 41), range(20), strict=False)]
    return [tuple(shared_generation.encode_chat([{"role": "user", "content": text}])) for text in texts]


@pytest.fixture(scope="module")
def peer(generator_model: str, prompts: list[tuple[int, ...]]) -> Iterator[dict[tuple[int, bool], list[Any]]]:
    """Results of ``LLM.beam_search``, by case."""
    from vllm import LLM
    from vllm.sampling_params import BeamSearchParams

    args = engine_args(GeneratorSettings(model=generator_model), runner="generate")
    names = ("model", "dtype", "max_model_len", "max_num_seqs", "block_size", "kv_cache_memory_bytes")
    names += ("enforce_eager", "enable_chunked_prefill", "max_num_batched_tokens", "max_logprobs")  # type: ignore[assignment]
    with quiet():
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        llm = LLM(**{name: getattr(args, name) for name in names}, disable_log_stats=True)
        wanted = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        yield {
            (width, ignore): llm.beam_search(
                wanted,  # type: ignore[arg-type]
                BeamSearchParams(beam_width=width, max_tokens=MAX_TOKENS, ignore_eos=ignore),
            )
            for width, ignore in CASES
        }
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


async def beams(generation: GenerationEngine, prompts: list[tuple[int, ...]], **settings: Any) -> TokenBeamReply:
    wanted = TokenBeamSettings(max_tokens=MAX_TOKENS, **settings)
    return await generation.token_beam(TokenBeamRequest("beams", tuple(prompts), wanted, MINUTES))


def ids(reply: TokenBeamReply) -> list[list[tuple[int, ...]]]:
    return [[each.sequence.token_ids for each in row] for row in reply.prompts]


@pytest.mark.long
@pytest.mark.parametrize(("width", "ignore"), CASES)
async def test_sequences_and_scores_equal_vllms(
    generation: GenerationEngine,
    prompts: list[tuple[int, ...]],
    peer: dict[tuple[int, bool], list[Any]],
    width: int,
    ignore: bool,
) -> None:
    reply = await beams(generation, prompts, width=width, ignore_eos=ignore)
    assert len(reply.prompts) == len(prompts) == 20
    for prompt, own, theirs in zip(prompts, reply.prompts, peer[width, ignore], strict=True):
        expected = [(tuple(sequence.tokens[len(prompt) :]), sequence.cum_logprob) for sequence in theirs.sequences]
        assert [each.sequence.token_ids for each in own] == [tokens for tokens, _ in expected]
        assert [each.sequence.logprob for each in own] == pytest.approx([total for _, total in expected], abs=1e-3)
        assert sorted((each.sequence.score for each in own), reverse=True) == [each.sequence.score for each in own]


async def test_reading_the_prefix_cache_changes_only_the_cost(
    generation: GenerationEngine, prompts: list[tuple[int, ...]]
) -> None:
    found: dict[bool | None, TokenBeamReply] = {}
    hits: dict[bool | None, int] = {}
    read: dict[bool | None, int] = {}
    for skip in (None, False, True):
        before = generation.stats()
        found[skip] = await beams(generation, prompts[:6], width=4, skip_reading_prefix_cache=skip)
        after = generation.stats()
        hits[skip], read[skip] = (after[name] - before[name] for name in ("prefix_hits", "prompt_tokens"))
    assert ids(found[None]) == ids(found[False]) == ids(found[True])
    assert hits[True] == 0
    assert hits[None] > 0
    assert hits[False] > 0
    again = read[True] - sum(map(len, prompts[:6]))
    assert [found[skip].recomputed_tokens for skip in (None, False, True)] == [0, 0, again]


async def test_the_number_of_concurrent_prompts_changes_nothing(
    generation: GenerationEngine, prompts: list[tuple[int, ...]]
) -> None:
    unlimited = await beams(generation, prompts[:6], width=2)
    for limit in (1, 3, 1000):
        limited = await beams(generation, prompts[:6], width=2, concurrency_limit=limit)
        assert ids(limited) == ids(unlimited), limit


async def test_every_token_is_counted(generation: GenerationEngine, prompts: list[tuple[int, ...]]) -> None:
    before = generation.stats()
    reply = await beams(generation, prompts[:2], width=2)
    after = generation.stats()
    assert reply.generated_tokens == after["generated_tokens"] - before["generated_tokens"]
    assert reply.generated_tokens == after["written_tokens"] - before["written_tokens"]


async def test_late_requests_end_and_leave_nothing(
    generation: GenerationEngine, prompts: list[tuple[int, ...]]
) -> None:
    wanted = TokenBeamSettings(width=8, max_tokens=MAX_TOKENS)
    with pytest.raises(GeneratorError, match=r"deadline of .* s exceeded"):
        await generation.token_beam(TokenBeamRequest("late", tuple(prompts), wanted, 0.05))
