"""Programs that branches write are run on a real engine, and the same trees grow however they come about."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from transformers import PreTrainedTokenizerFast

from benchmarks.processes import children_named
from deployments.engines.generation import GenerationEngine
from deployments.engines.request_queue import RequestQueue
from deployments.engines.settings import GeneratorSettings
from search.answers.equivalence import AnswerMatcher
from search.answers.programs import program_answer, programs
from search.ports import (
    Branch,
    Child,
    ExpandItem,
    ExpandRequest,
    Lane,
    Sampling,
    ScoreRequest,
    StopCondition,
    ToolRequest,
    branch_seed,
)
from search.run.environment import SearchEnvironment
from search.run.report import SearchOutcome
from search.run.runner import run_search
from search.settings import parse_search
from search.snapshot import tree_as_json
from search.tools.fair_slots import Requester
from search.tree import StepEnd
from tests.engine.conftest import SETTLE_S, quiet, stop
from tests.program_model import FAIL, IMPORT, LOOP, SET, SHOW, save_program_model

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONTEXT = 384
TOOL = ToolRequest(calls=3, seconds=10.0, memory_bytes=64 << 20, output_chars=200)


class Writer:
    """An engine of a model that writes programs, and its tokenizer."""

    def __init__(self, engine: GenerationEngine, tokenizer: PreTrainedTokenizerFast) -> None:
        self.engine = engine
        self.prompt = tuple(tokenizer.encode("ab\n", add_special_tokens=False))
        self.tokenizer = tokenizer

    def request(
        self,
        indices: Sequence[int],
        until: StopCondition = StopCondition.SOLUTION,
        tool: ToolRequest = TOOL,
        behind: str = "",
        max_tokens: int = 200,
    ) -> ExpandRequest:
        branches = tuple(Branch(index, branch_seed(3, (), index), max_tokens) for index in indices)
        prefix = (*self.prompt, *self.tokenizer.encode(behind, add_special_tokens=False))
        item = ExpandItem((), prefix, branches, solution=len(self.prompt), room=CONTEXT - len(prefix))
        return ExpandRequest("search", (item,), Sampling(1.0), until, Lane.DEMAND, 600.0, True, tool=tool)

    async def children(self, *args: Any, **kwargs: Any) -> list[Child]:
        request = self.request(*args, **kwargs)
        written = [child async for group in self.engine.expand(request) for child in group.children]
        return sorted(written, key=lambda child: child.index)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared_writer(tmp_path_factory: Any) -> AsyncIterator[Writer]:
    directory: Path = tmp_path_factory.mktemp("writer")
    tokenizer = save_program_model(directory)
    engine = GenerationEngine(GeneratorSettings(model=str(directory), max_model_len=CONTEXT, write_ahead=2.0))
    with quiet():
        await engine.start()
    yield Writer(engine, tokenizer)
    await stop(engine)
    async with asyncio.timeout(SETTLE_S):
        while children_named("monty"):
            await asyncio.sleep(0.01)


@pytest_asyncio.fixture(loop_scope="session")
async def writer(shared_writer: Writer) -> AsyncIterator[Writer]:
    """The shared engine; every test must leave it idle."""
    yield shared_writer
    assert await shared_writer.engine.check_integrity(SETTLE_S) == []


def expected(sources: Sequence[str]) -> list[str]:
    """What Python itself says to the programs of a path."""
    outputs, variables = [], dict[str, Any]()
    for number, source in enumerate(sources, 1):
        x = variables.get("x")
        if number > TOOL.calls:
            outputs.append("RuntimeError: no more than 3 programs may be run\n")
        elif "1 / 0" in source:
            outputs.append("ZeroDivisionError: division by zero\n")
        elif "x = x + 1" in source:
            x = 1 if "x = 1" in source else x
            outputs.append("NameError: name 'x' is not defined\n" if x is None else f"{x + 1}\n")
            variables |= {} if x is None else {"x": x + 1}
        else:
            variables |= {"x": 1} if "x = 1" in source else {}
            outputs.append(r"0\.\d+\n")
    return outputs


async def test_programs_are_run_with_the_variables_of_their_path(writer: Writer) -> None:
    everyone = await writer.children(range(60))
    seen = set[str]()
    for child in everyone:
        text = "".join(step.text for step in child.steps)
        found = list(programs(text))
        if child.steps[-1].end is StepEnd.LENGTH and found and found[-1].output is None:
            found.pop()
        outputs = expected([program.source for program in found])
        for program, output in zip(found, outputs, strict=True):
            assert program.output is not None
            assert re.fullmatch(output, program.output)
        seen |= set(outputs)
        given = [step.token_ids[start:end] for step in child.steps for start, end in step.given]
        assert len(given) == len(found)
        assert child.tool.calls >= len(found)
        assert child.tool.tokens == sum(map(len, given))
        assert child.tool.errors >= sum("Error" in output for output in outputs)
        assert child.tool.limits == 0
        for step in child.steps:
            assert step.token_logprobs is not None
            assert all(step.token_logprobs[at] == 0.0 for start, end in step.given for at in range(start, end))
            assert step.end is not StepEnd.DELIMITER or step.text.endswith("\n\n")
        assert sum(len(step.token_ids) for step in child.steps) <= CONTEXT - len(writer.prompt)
    assert {"2\n", "3\n", *expected([FAIL, "x = x + 1", SET, FAIL])} <= seen
    some = everyone[::13]
    alone = [await writer.children([child.index]) for child in some]
    assert [[each.steps for each in found] for found in alone] == [[child.steps] for child in some]


async def test_siblings_have_their_own_variables_and_a_limit_is_typed_and_counted(writer: Writer) -> None:
    first = f".\n```python{IMPORT}{SET}{SHOW}```\n```output\n2\n```\nab.\n\n"
    for child in await writer.children(range(40), StopCondition.STEP, behind=first):
        [step] = child.steps
        if (found := list(programs(step.text))) and "x = x + 1" in found[0].source:
            assert found[0].output in (("2\n",) if "x = 1" in found[0].source else ("3\n",))
    late = f".\n```python{IMPORT}{LOOP}```\n```output\nTimeoutError: the program ran longer than 10 s\n```\nab.\n\n"
    short = TOOL._replace(seconds=5.0)  # of which a program that ends meets none, however slow the machine
    for child in await writer.children(range(20), StopCondition.STEP, short, behind=late):
        assert child.tool.limits == 0, "a program that met its limit does not run again"
    endless = f"ab.\n```python\n{LOOP}"
    [child] = await writer.children([0], StopCondition.STEP, short, behind=f"{first}{endless}")
    assert child.tool.calls == child.tool.limits == 0, "only what a branch writes itself is run"


async def test_a_program_with_no_token_left_behind_it_ends_the_branch(writer: Writer) -> None:
    for limit in range(3, 20):
        for child in await writer.children(range(6), StopCondition.STEP, max_tokens=limit):
            [step] = child.steps
            assert step.written_tokens <= limit
            assert step.end is not StepEnd.DELIMITER or step.text.endswith("\n\n")


async def test_whoever_leaves_ends_the_programs(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    started = asyncio.Event()
    requesters = set[Requester | None]()
    real = writer.engine._programs.run

    async def endless(tool: ToolRequest, solution: str, requester: Requester | None) -> Any:
        started.set()
        requesters.add(requester)
        return await real(tool, solution.rpartition("```")[0] + LOOP + "```", requester)

    async def read() -> None:
        async with aclosing(
            writer.engine.expand(writer.request(range(30), tool=TOOL._replace(seconds=60.0)))
        ) as groups:
            async for _ in groups:
                pass

    with monkeypatch.context() as patched:
        patched.setattr(writer.engine._programs, "run", endless)
        reading = asyncio.create_task(read())
        await asyncio.wait([reading, asyncio.ensure_future(started.wait())], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.2)
        assert not reading.done()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert await writer.engine.check_integrity(SETTLE_S) == []
    [requester] = requesters
    assert requester == Requester("", writer.request(range(1)).search_id), "its programs wait in the search's turns"
    again = await writer.children(range(10))
    assert sum(child.tool.calls for child in again) > 0


class TextScorer:
    """Rewards by the length of the last step."""

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        await asyncio.sleep(0.03)  # time for writing ahead
        return [
            [len(step) % 16 / 15 for step in item.steps[len(item.steps) - item.unscored :]] for item in request.items
        ]


SEARCHES: Sequence[dict[str, Any]] = (
    {"strategy": "beam_search", "n": 8, "m": 4},
    {"strategy": "mcts", "iterations": 6, "width": 3},
    {"strategy": "self_consistency", "n": 6},
    {"strategy": "greedy"},
)


async def test_trees_are_the_same_with_writing_ahead_and_beside_others(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RequestQueue, "demand", property(lambda queue: 0))
    matcher = AnswerMatcher()
    await matcher.start()

    async def search(number: int, search_id: str, **changed: Any) -> SearchOutcome:
        environment = SearchEnvironment(
            writer.engine, TextScorer(), CONTEXT, matcher, extract_answer=program_answer, tool=TOOL
        )
        limits = {"seed": number, "max_depth": 6, "max_step_tokens": 60, "max_path_tokens": 300}
        settings = parse_search(SEARCHES[number] | limits | changed)
        return await run_search("?", writer.prompt, settings, environment, search_id=search_id)

    ahead, numbers = writer.engine._running.write_ahead, range(len(SEARCHES))
    try:
        together = await asyncio.gather(*(search(number, f"together {number}") for number in numbers))
        ahead.setting = "off"
        for number, outcome in zip(numbers, together, strict=True):
            alone = await search(number, f"alone {number}")
            assert tree_as_json(alone.tree) == tree_as_json(outcome.tree)
            steps = [node.step for node in outcome.tree.nodes if node.step]
            assert outcome.cost.generated_tokens == sum(step.written_tokens for step in steps)
            assert outcome.cost.tool_tokens == sum(end - start for step in steps for start, end in step.given)
            assert not outcome.degraded
        assert any(outcome.cost.ahead_branches for outcome in together)
        assert sum(outcome.cost.tool_calls for outcome in together) > 20
        without = await search(2, "without", tools=False)
        assert not without.cost.tool_calls
        assert not any(node.step.given for node in without.tree.nodes if node.step)
    finally:
        ahead.setting = 2.0
        matcher.close()
