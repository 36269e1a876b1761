"""Searches with a step hook on the embedded models: a calculator and retrieval, the same tree twice, nothing left."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import pytest
import pytest_asyncio

from deployments.config import AppConfig, StepHookSettings
from deployments.embedded.problems import Problem, Split, draw_problems
from deployments.engines.generation import GenerationEngine
from deployments.engines.scoring import ScoringEngine
from deployments.engines.settings import EMBEDDED_MODELS
from deployments.step_hooks.calculator import mistakes
from deployments.step_hooks.retrieval import Retrieval
from search import (
    END_PATH,
    AnswerMatcher,
    HookError,
    HookFallback,
    NodeStatus,
    SearchEnvironment,
    SearchOutcome,
    StepHook,
    parse_search,
    run_search,
    tree_as_json,
)

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(
        not (EMBEDDED_MODELS / "generator" / "model.safetensors").is_file(), reason="needs the embedded models"
    ),
]

PROBLEMS: list[Problem] = list(islice(draw_problems(Split.TEST, 41, 3), 4))
BEAM = {"strategy": "beam_search", "n": 8, "m": 4}
CALCULATOR = "deployments.step_hooks.calculator:correct"


class Searches:
    """Searches on the two engines."""

    def __init__(self, generation: GenerationEngine, scoring: ScoringEngine) -> None:
        self.generation = generation
        self._scoring = scoring
        self._matcher = AnswerMatcher()
        self._numbers = iter(range(1 << 20))
        self.encode = partial(generation._running.chat.encode_text, written=True)

    async def search(self, problem: Problem, hook: StepHook | None, **settings: Any) -> SearchOutcome:
        environment = SearchEnvironment(
            self.generation, self._scoring, AppConfig().search_context, self._matcher, step_hook=hook
        )
        prompt = list(self.generation.encode_chat([{"role": "user", "content": problem.text}]))
        wanted = parse_search(BEAM | {"seed": 5} | settings)
        search_id = f"hooked {next(self._numbers)}"
        try:
            return await run_search(problem.text, prompt, wanted, environment, search_id=search_id)
        finally:
            assert hook is None or hook.check_integrity() == []

    def hook(self, function: str, **settings: Any) -> StepHook:
        return StepHookSettings(function=function, **settings).hook(self.encode)


@pytest_asyncio.fixture(loop_scope="session")
async def searches(generation: GenerationEngine, scoring: ScoringEngine) -> AsyncIterator[Searches]:
    yield Searches(generation, scoring)


async def test_a_calculators_corrections_are_read_and_the_tree_is_the_same_twice(searches: Searches) -> None:
    hook = searches.hook(CALCULATOR)
    corrected = 0
    for problem in PROBLEMS:
        outcome, again = [await searches.search(problem, hook) for _ in range(2)]
        assert tree_as_json(outcome.tree) == tree_as_json(again.tree)
        assert not outcome.degraded
        for node in outcome.tree.nodes:
            step = node.written_step
            if node.hook is None or step is None:
                continue
            wrong = next(mistakes(step.text), None)
            assert node.hook.text == ("" if wrong is None else f"{wrong}\n\n")
            assert list(node.hook.token_ids) == (searches.encode(node.hook.text) if wrong else [])
            corrected += wrong is not None
        assert outcome.cost.hook_tokens == sum(
            len(node.hook.token_ids) for node in outcome.tree.nodes if node.hook and node.repeats is None
        )
    assert corrected > 0


async def test_paths_with_a_mistake_end_and_the_others_answer(searches: Searches) -> None:
    hook = searches.hook("deployments.step_hooks.calculator:end_at_mistake")
    for problem in PROBLEMS:
        outcome = await searches.search(problem, hook)
        for node in outcome.tree.nodes:
            if node.hook is not None and node.hook.ends:
                assert node.status in (NodeStatus.TERMINAL, NodeStatus.PRUNED, NodeStatus.REPEATED)
                assert not node.children


async def test_a_retrieved_line_stands_in_the_prefix_of_what_is_written_next(searches: Searches) -> None:
    problem = PROBLEMS[0]
    hook = StepHook(Retrieval(problem.solution[:-1]), searches.encode)
    outcome, again = [await searches.search(problem, hook) for _ in range(2)]
    assert tree_as_json(outcome.tree) == tree_as_json(again.tree)
    found = [node for node in outcome.tree.nodes if node.hook and node.hook.text]
    assert {node.hook.text.strip() for node in found if node.hook} <= {*problem.solution}
    assert any(node.children for node in found)


async def test_a_hook_that_leaves_every_step_changes_no_tree(searches: Searches) -> None:
    async def leave(question: str, path: Sequence[str], step: str) -> None:
        return None

    before = searches.generation.stats()["ahead_begun"]
    left = await searches.search(PROBLEMS[1], StepHook(leave, searches.encode))
    assert searches.generation.stats()["ahead_begun"] == before, "no step is written ahead of a hook"
    plain = await searches.search(PROBLEMS[1], None)
    assert tree_as_json(left.tree) == tree_as_json(plain.tree)


async def test_a_cancelled_search_leaves_nothing_at_the_hook_or_at_the_engines(searches: Searches) -> None:
    reached = asyncio.Event()

    async def hang(question: str, path: Sequence[str], step: str) -> str:
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError

    running = asyncio.create_task(searches.search(PROBLEMS[2], StepHook(hang, searches.encode, timeout_s=600)))
    await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_hook_that_raises_or_is_late_is_counted_and_the_search_goes_on_or_fails(searches: Searches) -> None:
    async def fail(question: str, path: Sequence[str], step: str) -> Any:
        if len(path) % 2:
            raise RuntimeError(step)
        await asyncio.sleep(600)
        return END_PATH

    hook = StepHook(fail, searches.encode, timeout_s=0.05)
    outcome = await searches.search(PROBLEMS[3], hook)
    assert outcome.degraded
    assert outcome.cost.hook_failures == outcome.cost.hook_calls > 0
    assert outcome.selection.answer is not None
    failing = StepHook(fail, searches.encode, timeout_s=0.05, fallback=HookFallback.FAIL)
    with pytest.raises(HookError):
        await searches.search(PROBLEMS[3], failing)
