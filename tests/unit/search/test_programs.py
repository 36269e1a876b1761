"""Programs and their outputs are found in the texts of paths, and an answer may be what the last one printed."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import PROMPT, Bench, ProgramGenerator

from search.answers.programs import output_block, program_answer, programs
from search.ports import ToolRequest
from search.run.report import SearchEvent, SearchOutcome
from search.run.results import joined
from search.snapshot import replay_of, restore_tree, save_tree, tree_as_json
from search.tree import SearchTree, Step, StepEnd

PRINTED = st.text(st.sampled_from("ab\n `é"), max_size=12)
LINES = "5\n7\n"
SOURCES = st.lists(st.sampled_from(["x = 1\n", "\n", "print('é')\n", "    y = 2\n"]), max_size=4).map("".join)


@settings(max_examples=60)
@given(st.lists(st.tuples(SOURCES, PRINTED), max_size=4))
def test_programs_are_read_back_with_their_outputs(written: list[tuple[str, str]]) -> None:
    text = "".join(f"So\n```python\n{source}```{output_block(output)}and" for source, output in written)
    found = list(programs(text))
    assert len(found) == len(written)
    for program, (_, output) in zip(found, written, strict=True):
        expected = output.replace("```", "'''")
        assert program.output in (expected, expected + "\n")
        assert text[: program.end].endswith("```")


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("1. First:\n   ```python\n   x = 1\n   if x:\n       print(x)\n   ```\n", ["x = 1\nif x:\n    print(x)\n"]),
        ("```python\nx\n\ny\n```\nand\n```python3\nz\n```", ["x\n\ny\n", "z\n"]),
        ("```python\nnever closed", []),
        ("```\nplain\n```\n```text\n1\n```", []),
        ("```python```", [""]),
    ],
)
def test_sources(text: str, sources: list[str]) -> None:
    assert [program.source for program in programs(text)] == sources


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (f"```python\nprint(7)\n```{output_block(LINES)}\n", "7"),
        (f"```python\nprint(7)\n```{output_block('7')}So the answer is 8.", "8"),
        (f"\\boxed{{3}}\n```python\n```{output_block('')}", "3"),
        ("```python\nprint(7)\n```\nThe answer is 9.", "9"),
    ],
)
def test_an_answer_may_be_what_the_last_program_printed(text: str, answer: str) -> None:
    assert program_answer(text) == answer


def test_joined_steps_keep_what_was_given_in_each() -> None:
    steps = [Step((1, 2, 3), "abc", StepEnd.DELIMITER, given=((1, 2),)) for _ in range(3)]
    first, last = joined(steps, 2)
    assert first == steps[0]
    assert last.given == ((1, 2), (4, 5))
    assert last.written_tokens == 4


TOOL = ToolRequest(4, 5.0, 1 << 27, 1000)
SEARCHES: list[dict[str, Any]] = [
    {"strategy": "beam_search", "n": 9, "m": 3},
    {"strategy": "mcts", "iterations": 9},
    {"strategy": "self_consistency", "n": 9},
    {"strategy": "best_of_n", "n": 6, "max_depth": 2, "budget": {"tokens": 60}},
    {"strategy": "frontier", "iterations": 6, "width": 3, "max_path_tokens": 30},
]


def run(wanted: dict[str, Any], order: int = 0, **options: Any) -> tuple[Bench, SearchOutcome]:
    async def main() -> tuple[Bench, SearchOutcome]:
        bench = Bench(order)
        bench.generator = ProgramGenerator(order)
        outcome = await bench.search(wanted, **({"tool": TOOL} | options))
        assert bench.generator.live == set()
        return bench, outcome

    return asyncio.run(main())


@pytest.mark.parametrize("wanted", SEARCHES, ids=[each["strategy"] for each in SEARCHES])
def test_every_strategy_grows_the_same_tree_with_programs_in_it(wanted: dict[str, Any]) -> None:
    saved: list[str] = []
    grown = SearchTree()

    def on_event(event: SearchEvent) -> None:
        saved.append(json.dumps(save_tree(grown)))

    bench, outcome = run(wanted, tree=grown, on_event=on_event)
    steps = [node.step for node in outcome.tree.nodes if node.step]
    assert outcome.cost.tool_calls > 0
    assert outcome.cost.tool_tokens == 3 * outcome.cost.tool_calls == sum(3 * len(step.given) for step in steps)
    assert outcome.cost.generated_tokens == sum(step.written_tokens for step in steps)
    assert outcome.degraded == (outcome.cost.tool_limits > 0)
    for node in outcome.tree.nodes:
        assert node.path_tokens <= wanted.get("max_path_tokens", 1000 - len(PROMPT))
    for request in bench.generator.requests:
        assert request.tool == TOOL
    for text in saved[:: max(1, len(saved) // 4)]:
        _, again = run(wanted, order=len(text), tree=restore_tree(json.loads(text)))
        assert tree_as_json(again.tree) == tree_as_json(outcome.tree)
    _, replayed = run(wanted, order=3, tree=replay_of(outcome.tree))
    assert tree_as_json(replayed.tree) == tree_as_json(outcome.tree)


@pytest.mark.parametrize("options", [{"tools": False}, {"tool": None}])
def test_without_a_tool_nothing_of_it_is_asked(options: dict[str, Any]) -> None:
    wanted = SEARCHES[0] | {name: value for name, value in options.items() if name == "tools"}
    bench, outcome = run(wanted, **({"tool": None} if "tool" in options else {}))
    assert all(request.tool is None for request in bench.generator.requests)
    assert all(item.room == item.solution == 0 for request in bench.generator.requests for item in request.expansions)
    assert not outcome.cost.tool_calls
