"""Searches in front of servers as published, and the same searches on an engine in this process."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from deployments.backends.capabilities import Capabilities, Continuing, find_capabilities
from deployments.backends.generator import UrlGenerator
from deployments.backends.pool import Pool
from deployments.backends.prm_settings import UrlPrmSettings
from deployments.backends.scorer import UrlScorer
from deployments.backends.settings import BackendSettings
from deployments.embedded.problems import Split, draw_problems
from deployments.engines.rewards.step_head import StepHeadSettings
from deployments.engines.settings import EMBEDDED_MODELS, GeneratorSettings
from search.answers.equivalence import AnswerMatcher
from search.ports import (
    Branch,
    ExpandItem,
    ExpandRequest,
    Generator,
    Lane,
    Sampling,
    ScoreItem,
    ScoreRequest,
    StopCondition,
)
from search.prompt import Prompt
from search.run.environment import SearchEnvironment
from search.run.report import SearchOutcome
from search.run.runner import run_search
from search.settings import parse_search
from tests.backends.conftest import PUBLISHED
from tests.unit.search.search_fakes import FakeScorer

pytestmark = pytest.mark.filterwarnings("ignore")  # of vLLM and torch about themselves
PROBLEMS = [problem.text for problem in itertools.islice(draw_problems(Split.TEST, seed=64), 6)]
STEPS = ("5 + 37 = 42\n\n", "42 * 3 = 126\n\n", "126 - 40 = 87\n\n", r"The answer is \boxed{87}")
VOTE = {"strategy": "self_consistency", "n": 8, "seed": 7}
BEAM = {"strategy": "beam_search", "n": 8, "m": 2, "seed": 7}


@asynccontextmanager
async def backend(url: str) -> AsyncIterator[tuple[Pool, Capabilities]]:
    pool = Pool(BackendSettings(url=url))
    try:
        yield pool, await find_capabilities(pool)
    finally:
        await pool.aclose()


def chat(question: str) -> str:
    return json.dumps([{"role": "user", "content": question}])


async def searched(
    generator: Generator, prompt: Prompt, settings: dict[str, Any], question: str, matcher: AnswerMatcher
) -> SearchOutcome:
    environment = SearchEnvironment(generator, FakeScorer(), 1024, matcher)
    return await run_search(question, prompt, parse_search(settings), environment, search_id="s")


def texts(outcome: SearchOutcome) -> list[tuple[Any, ...]]:
    return sorted((node.id, node.step.text, node.step.end) for node in outcome.tree.nodes if node.step)


async def check_same_searches(
    url: str, model: Path, searches: Sequence[dict[str, Any]], questions: Sequence[str], token_ids: bool = False
) -> None:
    """That searches in front of ``url`` are those on an engine in this process. ``token_ids``: prompts and paths are
    sent as token ids, as with ``generator.tokenizer``."""
    from deployments.engines.generation import GenerationEngine

    engine = GenerationEngine(GeneratorSettings(model=str(model), dtype="float32", max_model_len=1024))
    await engine.start()
    matcher = AnswerMatcher()
    try:
        async with backend(url) as (pool, can):
            generator = UrlGenerator(pool, can.with_tokenizer() if token_ids else can)
            for settings, question in itertools.product(searches, questions):
                prompt = Prompt(tuple(engine.encode_chat([{"role": "user", "content": question}])))
                sent = prompt if token_ids else Prompt(messages=chat(question), counted=40)
                far = await searched(generator, sent, settings, question, matcher)
                near = await searched(engine, prompt, settings, question, matcher)
                assert texts(far) == texts(near)
                assert far.selection.answer == near.selection.answer
                assert far.cost.generated_tokens == near.cost.generated_tokens
                assert far.cost.prompt_tokens == prompt.size
                assert far.cost.estimated_branches == 0
    finally:
        matcher.close()
        engine.shutdown()


async def test_vllm_votes_and_grows_trees_as_an_engine_in_this_process(vllm_url: str) -> None:
    await check_same_searches(vllm_url, EMBEDDED_MODELS / "generator", (VOTE, BEAM), PROBLEMS)


async def test_vllm_does_so_with_a_published_generator(published_vllm_url: str) -> None:
    """Its paths do not encode to the token ids that were written, so trees are exact with token ids alone."""
    short = {"n": 4, "max_path_tokens": 48}
    await check_same_searches(published_vllm_url, PUBLISHED, [VOTE | short], PROBLEMS[:2])
    await check_same_searches(published_vllm_url, PUBLISHED, [VOTE | short, BEAM | short], PROBLEMS[:2], token_ids=True)


@pytest.mark.parametrize(("served", "name"), [("vllm_url", "arithmetic"), ("published_vllm_url", "smollm2")])
async def test_what_vllm_can_do(served: str, name: str, request: pytest.FixtureRequest) -> None:
    async with backend(request.getfixturevalue(served)) as (_, can):
        pass
    assert can == Capabilities(
        name,
        1024,
        Continuing.ASKED,
        token_ids=True,
        stops=True,
        seeds=True,
        logprobs=True,
        schemas=True,
        tools=False,  # without --tool-call-parser
        n=True,
        usage=True,
        sampling=True,
        cancels=True,
    )


async def test_rewards_of_vllm_are_those_of_an_engine_in_this_process(vllm_pooling_url: str) -> None:
    from deployments.engines.scoring import ScoringEngine

    settings = StepHeadSettings(model=str(EMBEDDED_MODELS / "prm"))
    engine = ScoringEngine(settings)
    far = UrlScorer(UrlPrmSettings(url=vllm_pooling_url, format=settings))
    await engine.start()
    try:
        await far.start()
        for question in PROBLEMS:
            items = (ScoreItem(STEPS, unscored=len(STEPS)), ScoreItem(STEPS[:2]), ScoreItem(STEPS[1:], ended=True))
            request = ScoreRequest("s", question, items, 60.0)
            theirs, ours = await far.score(request), await engine.score(request)
            for one, other in zip(theirs, ours, strict=True):
                assert one == pytest.approx(other, abs=1e-4)
    finally:
        await far.close()
        engine.shutdown()


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_vllm_ends_what_a_closed_call_asked_for(vllm_url: str, streamed: bool) -> None:
    async with backend(vllm_url) as (pool, can), httpx.AsyncClient(base_url=vllm_url) as metrics:

        async def told(name: str) -> float:
            lines = (await metrics.get("/metrics")).text.splitlines()
            return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

        calls = UrlGenerator(pool, replace(can, cancels=not streamed))
        branches = tuple(Branch(index, index, 900) for index in range(8))
        # At this temperature the model hardly ever ends.
        item, hot = ExpandItem((), (), branches, messages=chat(PROBLEMS[0])), Sampling(temperature=2.0)
        stream = calls.expand(ExpandRequest("s", (item,), hot, StopCondition.SOLUTION, Lane.DEMAND, 60.0))
        first = asyncio.ensure_future(anext(stream))
        async with asyncio.timeout(30):
            while not await told("vllm:num_requests_running"):
                await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.wait({first})
        await stream.aclose()
        assert calls.running == 0
        before = await told("vllm:generation_tokens_total")
        async with asyncio.timeout(10):
            while (now := await told("vllm:generation_tokens_total")) != before:
                before = now
                await asyncio.sleep(0.5)
        assert before < 8 * 900


async def test_llama_cpp_votes(llama_cpp_url: str) -> None:
    matcher = AnswerMatcher()
    try:
        async with backend(llama_cpp_url) as (pool, can):
            settings = {"strategy": "self_consistency", "n": 4, "max_path_tokens": 24, "seed": 7}
            question = "What is 2 + 3?"
            prompt = Prompt(messages=chat(question), counted=40)
            outcomes = [await searched(UrlGenerator(pool, can), prompt, settings, question, matcher) for _ in range(2)]
    finally:
        matcher.close()
    # A new request ends the stream of the one before it, unless the server is told otherwise.
    assert can == Capabilities("smollm2", seeds=True, tools=True, usage=True, sampling=True, concurrent=False)
    first, again = outcomes
    assert len(first.tree.terminals) + first.tree.repeated == 4
    assert texts(first) == texts(again)
