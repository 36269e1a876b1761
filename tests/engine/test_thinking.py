"""Models that think on a real engine: thoughts are segments, with marks that are tokens and with plain text."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from transformers import PreTrainedTokenizerFast

from deployments.config import GeneratorSettings
from deployments.engines.errors import EngineStartError
from deployments.engines.generation import GenerationEngine
from deployments.engines.request_queue import RequestQueue
from search.answers.equivalence import AnswerMatcher
from search.ports import (
    Branch,
    Child,
    ExpandItem,
    ExpandRequest,
    Lane,
    Sampling,
    ScoreRequest,
    StopCondition,
    ThoughtRequest,
    branch_seed,
)
from search.run.environment import SearchEnvironment
from search.run.report import SearchOutcome
from search.run.runner import run_search
from search.settings import parse_search
from search.snapshot import tree_as_json
from search.tree import FIRST_CONTEXT, NodeId, StepEnd
from tests.engine.conftest import SETTLE_S, quiet, stop
from tests.engine.markov_model import save_markov_model
from tests.engine.thinking_vocabularies import PARSERS, QWEN3_TEMPLATE, thinking_vocabulary
from tests.engine.vocabularies import EOS

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONTEXT = 256
MINUTES = 600.0
WORDS = {"ab": 0.5, ".\n\n": 0.2, ".\n": 0.2, EOS: 0.02}
CHANCES: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "tokens": {
        "\n": {"<think>": 0.5, "ab": 0.4, "\n\n": 0.1},
        "<think>": {"ab": 0.7, "\n\n": 0.2, "</think>": 0.1},
        "ab": WORDS | {"</think>": 0.08},
        ".\n": {"ab": 1.0},
        ".\n\n": {"ab": 1.0},
        "\n\n": {"ab": 1.0},
        "</think>": {"\n\n": 0.7, "ab": 0.3},
        "}": {EOS: 1.0},
    },
    "text": {
        "\n": {"<": 0.5, "ab": 0.4, "\n\n": 0.1},
        "<": {"think": 1.0},
        "</": {"think": 1.0},
        "think": {">": 0.6, ">\n": 0.2, ">\n\n": 0.2},
        **{end: {"ab": 0.7, "\n\n": 0.2, "</": 0.1} for end in (">", ">\n", ">\n\n")},
        "ab": WORDS | {"</": 0.08},
        ".\n": {"ab": 1.0},
        ".\n\n": {"ab": 1.0},
        "\n\n": {"ab": 1.0},
        "}": {EOS: 1.0},
    },
}
"""By kind of vocabulary. Thoughts have delimiters in them, some never end, and some solutions begin without one."""


class Thinker:
    """An engine of a model that thinks, and its tokenizer."""

    def __init__(self, engine: GenerationEngine, tokenizer: PreTrainedTokenizerFast) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.splitter = engine._running.splitter
        self.prompts = {
            False: tokenizer.encode("ab\n", add_special_tokens=False),
            True: tokenizer.encode("ab\n<think>\n", add_special_tokens=False),
        }

    async def children(
        self,
        thought: ThoughtRequest,
        indices: Sequence[int],
        until: StopCondition = StopCondition.STEP,
        schema: str = "",
        max_tokens: int = 100,
        parent: NodeId = (),
    ) -> list[Child]:
        branches = tuple(Branch(index, branch_seed(3, (), index), max_tokens) for index in indices)
        item = ExpandItem(parent, tuple(self.prompts[thought.opened]), branches)
        request = ExpandRequest(
            *("search", (item,), Sampling(1.0), until, Lane.DEMAND, MINUTES, True), json_schema=schema, thought=thought
        )
        written = [child async for group in self.engine.expand(request) for child in group.children]
        return sorted(written, key=lambda child: child.index)


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=list(CHANCES))
async def shared_thinker(request: pytest.FixtureRequest, tmp_path_factory: Any) -> AsyncIterator[Thinker]:
    directory: Path = tmp_path_factory.mktemp("thinker")
    tokenizer = thinking_vocabulary(request.param, QWEN3_TEMPLATE)
    save_markov_model(directory, tokenizer, CHANCES[request.param])
    reasoning = None if request.param == "tokens" else PARSERS[request.param]
    settings = GeneratorSettings(model=str(directory), max_model_len=CONTEXT, reasoning=reasoning, write_ahead=2.0)
    engine = GenerationEngine(settings)
    with quiet():
        await engine.start()
    yield Thinker(engine, tokenizer)
    await stop(engine)


@pytest_asyncio.fixture(loop_scope="session")
async def thinker(shared_thinker: Thinker) -> AsyncIterator[Thinker]:
    """The shared engine; every test must leave it idle."""
    yield shared_thinker
    assert await shared_thinker.engine.check_integrity(SETTLE_S) == []


@pytest.mark.parametrize("opened", [False, True])
async def test_a_first_step_is_a_whole_thought_and_one_step(thinker: Thinker, opened: bool) -> None:
    before = thinker.engine.stats()
    everyone = await thinker.children(ThoughtRequest(opened, 60, False, 40), range(120))
    steps = [step for child in everyone for step in child.steps]
    assert len(steps) == 120
    thoughts = [step for step in steps if step.thought.tokens]
    assert len(thoughts) == 120 if opened else 20 < len(thoughts) < 120
    assert any("\n\n" in step.text[: step.thought.characters] for step in thoughts)
    for step in steps:
        prompt, marks = thinker.prompts[opened], "</think>"
        [again, *others] = thinker.splitter.split(
            prompt, step.token_ids, step.end is StepEnd.LENGTH, None, step.thought.tokens
        )
        assert (again.text, again.thought, others) == (step.text, step.thought, [])
        assert step.thought.tokens <= 60 + 1  # with the mark that the model opened
        assert len(step.token_ids) - step.thought.tokens <= 40
        assert step.token_logprobs is not None
        assert len(step.token_logprobs) == len(step.token_ids)
        thinking = step.text[: step.thought.characters]
        if step.end is StepEnd.DELIMITER:
            assert step.solution.strip()
            assert not thinking or thinking.endswith(marks)
        elif thinking and not thinking.endswith(marks):
            assert thinking == step.text
    some = everyone[::30]
    alone = [await thinker.children(ThoughtRequest(opened, 60, False, 40), [child.index]) for child in some]
    assert [each.steps[0].token_ids for [each] in alone] == [child.steps[0].token_ids for child in some]
    context, indices = (0, FIRST_CONTEXT), [child.index for child in some]
    read = await thinker.children(ThoughtRequest(opened, 60, False, 40), indices, parent=context)
    assert [each.steps[0].token_ids for each in read] == [child.steps[0].token_ids for child in some]
    after = thinker.engine.stats()
    assert after["generated_tokens"] - before["generated_tokens"] == (
        after["written_tokens"] - before["written_tokens"]
    )


@pytest.mark.parametrize("until", StopCondition)
@pytest.mark.parametrize("budget", [0, 5])
async def test_every_branch_keeps_its_budget_of_thinking(thinker: Thinker, until: StopCondition, budget: int) -> None:
    for opened in (False, True):
        everyone = await thinker.children(ThoughtRequest(opened, budget, True, 40), range(60), until)
        firsts = [child.steps[0] for child in everyone]
        given = [step for step in firsts if step.given]
        assert len(given) == 60 if not budget else len(given) > 10
        for step in firsts:
            before = 0 if opened else thinker.splitter._behind_mark((), step.token_ids, at_end=False)
            assert step.thinking_tokens <= budget + before
            assert step.token_logprobs is not None
            for start, end in step.given:
                assert step.token_logprobs[start:end] == (0.0,) * (end - start)
        for step in given:
            assert "</think>" in step.text
            assert len(step.token_ids) > step.thought.tokens, "a solution follows"


async def test_whole_solutions_and_steps_have_the_same_parts(thinker: Thinker) -> None:
    for opened in (False, True):
        for child in await thinker.children(ThoughtRequest(opened, 60, False, 40), range(40), StopCondition.SOLUTION):
            ids = [token for step in child.steps for token in step.token_ids]
            cut_off = child.steps[-1].end is StepEnd.LENGTH
            thought = thinker.splitter.thought_in(thinker.prompts[opened], ids, opened)
            again = thinker.splitter.split(thinker.prompts[opened], ids, cut_off, None, thought)
            assert [step.text for step in again] == [step.text for step in child.steps]
            assert [step.thought for step in again] == [step.thought for step in child.steps]
            assert not any(step.thought.tokens for step in child.steps[1:])


async def test_a_schema_holds_what_is_behind_the_thought(thinker: Thinker) -> None:
    schema = json.dumps(
        {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
    )
    for thought in (ThoughtRequest(False, 20, False, 40), ThoughtRequest(True, 4, True, 40)):
        everyone = await thinker.children(thought, range(20), StopCondition.SOLUTION, schema)
        behind = []
        for child in everyone:
            text = "".join(step.text for step in child.steps)
            assert thought.opened or text.startswith("<think>")
            if "</think>" in text and child.steps[-1].end is StepEnd.END_OF_SEQUENCE:
                behind.append("".join(step.solution for step in child.steps))
        assert len(behind) > (15 if thought.closes else 2)
        assert all(isinstance(json.loads(text)["a"], bool) for text in behind)


class TextScorer:
    """Rewards by the length of the last step."""

    def __init__(self) -> None:
        self.firsts: set[str] = set()
        """First steps of the paths that it has read."""

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        self.firsts |= {item.steps[0] for item in request.items}
        await asyncio.sleep(0.03)  # time for writing ahead
        return [
            [len(step) % 16 / 15 for step in item.steps[len(item.steps) - item.unscored :]] for item in request.items
        ]


SEARCHES: Sequence[dict[str, Any]] = (
    {"strategy": "beam_search", "n": 8, "m": 4},
    {"strategy": "beam_search", "n": 4, "m": 2, "budget": {"thinking": 6}},
    {"strategy": "mcts", "iterations": 6, "width": 3},
    {"strategy": "best_of_n", "n": 4},
)


async def test_trees_of_thinking_searches_are_the_same_with_writing_ahead_and_beside_others(
    thinker: Thinker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise little is begun as soon as several searches run.
    monkeypatch.setattr(RequestQueue, "demand", property(lambda queue: 0))
    matcher = AnswerMatcher()
    await matcher.start()

    async def search(number: int, search_id: str) -> SearchOutcome:
        scorer = TextScorer()
        environment = SearchEnvironment(thinker.engine, scorer, CONTEXT, matcher, thinking_context=CONTEXT)
        limits = {"seed": number, "max_depth": 6, "max_step_tokens": 40, "max_thinking_tokens": 50}
        prompt = thinker.prompts[bool(number % 2)]
        opened = "<think>\n" if number % 2 else ""
        settings = parse_search(SEARCHES[number // 2] | limits)
        outcome = await run_search("?", prompt, settings, environment, search_id=search_id, open_thought=opened)
        first_steps = [node.step for node in outcome.tree.nodes if node.depth == 1 and node.step]
        assert scorer.firsts == {step.solution for step in first_steps} - {""}
        assert not any("<think>" in text for text in scorer.firsts)
        return outcome

    ahead, numbers = thinker.engine._running.write_ahead, range(2 * len(SEARCHES))
    try:
        together = await asyncio.gather(*(search(number, f"together {number}") for number in numbers))
        ahead.setting = "off"
        for number, outcome in zip(numbers, together, strict=True):
            alone = await search(number, f"alone {number}")
            assert tree_as_json(alone.tree) == tree_as_json(outcome.tree)
        assert any(outcome.cost.thinking_tokens for outcome in together)
        assert any(outcome.cost.ahead_branches for outcome in together)
    finally:
        ahead.setting = 2.0
        matcher.close()


async def test_an_engine_whose_tokenizer_lacks_the_marks_does_not_start(generator_model: str) -> None:
    engine = GenerationEngine(GeneratorSettings(model=generator_model, reasoning="mistral"))
    with quiet(), pytest.raises(EngineStartError, match=r"generator.reasoning: the tokenizer has no token \[THINK\]"):
        await engine.start()
    await stop(engine)
