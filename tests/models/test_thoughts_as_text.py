"""A published model without tokens for the marks of thinking, on a real engine: Qwen2.5-Coder-0.5B-Instruct, which a
system prompt has think in ``<think>`` as plain text. Budgets are kept, and the same seeds give the same tokens."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from benchmarks.thinking import CLOSING, OPENING, SYSTEM
from deployments.engines.generation import GenerationEngine
from deployments.engines.reasoning import PLAIN_TEXT
from deployments.engines.settings import GeneratorSettings
from search.ports import (
    Branch,
    Child,
    ExpandItem,
    ExpandRequest,
    Lane,
    Sampling,
    StopCondition,
    ThoughtRequest,
    branch_seed,
)
from tests.models.conftest import model_directory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

QUESTIONS = (
    "Tom has 3 boxes with 12 pens each. He gives 9 pens away. How many pens are left?",
    "A book has 240 pages. Ann reads 30 pages a day for 5 days. How many pages are left?",
    "Weng earns $12 an hour for babysitting. Yesterday, she did 50 minutes of babysitting. How much did she earn?",
)
BRANCHES, SOLUTION_TOKENS = range(4), 64
DEADLINE_S = 600.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[GenerationEngine]:
    settings = GeneratorSettings(
        model=str(model_directory("Qwen2.5-Coder-0.5B-Instruct")),
        reasoning=PLAIN_TEXT,
        cpu_threads=2,
        max_model_len=512,
        kv_cache_memory_bytes=512 << 20,
    )
    engine = GenerationEngine(settings)
    await engine.start()
    yield engine
    engine.shutdown()


async def written(
    engine: GenerationEngine, question: str, budget: int, until: StopCondition, branches: Sequence[int] = BRANCHES
) -> list[Child]:
    """The branches of a question, by index."""
    prompt = engine.encode_chat([{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}])
    asked = tuple(Branch(index, branch_seed(5, (), index), budget + SOLUTION_TOKENS + 8) for index in branches)
    request = ExpandRequest(
        f"{question}{budget}{until}{branches}",
        (ExpandItem((), tuple(prompt), asked),),
        Sampling(),
        until,
        Lane.DEMAND,
        DEADLINE_S,
        thought=ThoughtRequest(False, budget, True, SOLUTION_TOKENS),
    )
    children = [child async for group in engine.expand(request) for child in group.children]
    return sorted(children, key=lambda child: child.index)


async def all_written(engine: GenerationEngine, budget: int, until: StopCondition) -> list[Child]:
    rows = await asyncio.gather(*(written(engine, question, budget, until) for question in QUESTIONS))
    return [child for row in rows for child in row]


@pytest.mark.parametrize("until", StopCondition)
async def test_every_thought_ends_at_its_mark_or_at_its_budget(engine: GenerationEngine, until: StopCondition) -> None:
    splitter, closing, budget = engine._running.splitter, engine._running.marks.closing, 24
    firsts = [child.steps[0] for child in await all_written(engine, budget, until)]
    thoughts = [step for step in firsts if step.thought.tokens]
    assert len(thoughts) > len(firsts) / 2
    for step in firsts:
        ids, thinking = step.token_ids, step.text[: step.thought.characters]
        if not step.thought.tokens:
            assert not step.text.lstrip().startswith(OPENING)
            assert not step.given
            continue
        opening = next(size for size in range(len(ids)) if OPENING in splitter.text(ids[:size]))
        assert thinking.lstrip().startswith(OPENING)
        assert thinking.endswith(CLOSING)
        assert step.text[step.thought.characters :].strip(), "a solution follows"
        if step.given:
            [(start, end)] = step.given
            assert (start, end) == (opening + budget, step.thought.tokens)
            assert ids[start:end] == closing
            assert CLOSING not in splitter.text(ids[:start])
        else:
            assert step.thought.tokens - opening <= budget
    assert any(step.given for step in thoughts)


async def test_without_thinking_an_empty_thought_is_given(engine: GenerationEngine) -> None:
    marks = engine._running.marks
    for child in await all_written(engine, 0, StopCondition.SOLUTION):
        first, given = child.steps[0], (*marks.opening, *marks.no_thought)
        assert first.token_ids[: len(given)] == given
        assert (first.given, first.thinking_tokens) == (((0, len(given)),), 0)
        assert first.solution.strip()


@pytest.mark.parametrize("until", StopCondition)
async def test_a_branch_is_the_same_alone_and_beside_others(engine: GenerationEngine, until: StopCondition) -> None:
    together = await all_written(engine, 24, until)
    for number, child in list(enumerate(together))[::7]:
        question = QUESTIONS[number // len(BRANCHES)]
        [alone] = await written(engine, question, 24, until, [child.index])
        assert alone.steps == child.steps


async def test_steps_and_whole_solutions_have_the_same_thoughts(engine: GenerationEngine) -> None:
    steps, solutions = [await all_written(engine, 24, until) for until in StopCondition]
    for one, whole in zip(steps, solutions, strict=True):
        [step], first = one.steps, whole.steps[0]
        assert (step.thought, step.given) == (first.thought, first.given)
        assert step.token_ids[: step.thought.tokens] == first.token_ids[: first.thought.tokens]
        assert not any(later.thought.tokens for later in whole.steps[1:])
