"""`benchmarks.second_look` compares on problems whose first programs fail, and picks both sides' answers alike."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import code, second_look
from benchmarks.code import pool_file, problems_of, running_programs
from benchmarks.reading import KeptSolutions, environment_of
from benchmarks.second_look import REFINED, SAMPLED, compared, kept_steps, open_problems, refined, second_file
from search.answers.equivalence import AnswerMatcher
from search.ports import Child, ChildGroup, ExpandRequest
from search.tree import Step, StepEnd

GROUPS = """\
    text = paren_string.replace(" ", "")
    out, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += 1 if c == "(" else -1
        if not depth:
            out.append(text[start:i + 1])
            start = i + 1
    return out
"""
DATA = Path(__file__).parent / "humaneval" / "HumanEval.jsonl.gz"


async def test_a_second_look_is_compared_where_no_first_program_passes_its_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "ROWS", tmp_path)
    monkeypatch.setattr(second_look, "ROWS", tmp_path)
    failing, solved = problems_of(DATA, 2)
    body = "    ordered = sorted(numbers)\n    return any(b - a < threshold for a, b in zip(ordered, ordered[1:]))"
    right = f"```python\n{failing.prompt}{body}\n```"
    wrong = f"```python\n{failing.prompt}    return None\n```"
    wrong_too = f"```python\n{solved.prompt}    return [paren_string]\n```"
    shared: dict[str, Any] = {"model": "m", "dtype": "float32", "seconds": 1.0, "ends": ["end_of_sequence"] * 8}
    texts = {failing: [wrong] * 8, solved: [wrong_too] * 3 + [f"```python\n{solved.prompt}{GROUPS}\n```"] * 5}
    for problem, samples in texts.items():
        pool_file().append(shared | {"problem": problem.id, "texts": samples, "tokens": [10] * 8})

    async with running_programs() as programs:
        assert await open_problems([failing, solved], pool_file().rows, programs.scorer) == [failing]

    second_file().append(
        {"problem": failing.id, "texts": [wrong, right, "?", wrong], "written_tokens": 44, "prompt_tokens": 99}
        | {"dtype": "float32"}
    )
    figures = await compared([failing, solved])
    assert (figures["problems"], figures["with_examples"]) == (1, 2)
    assert figures["right"] == {REFINED: 1.0, SAMPLED: 0.0}
    assert figures["some_program_right"] == {REFINED: 1.0, SAMPLED: 0.0}
    assert (figures["written_tokens"], figures["read_tokens"]) == ({REFINED: 44, SAMPLED: 40}, 99)
    assert [each["value"] for each in figures["claims"]] == [1.0]


def test_a_kept_program_is_one_step_of_its_tokens() -> None:
    (first,), (cut,) = kept_steps({"texts": ["a", "b"], "tokens": [3, 2], "ends": ["end_of_sequence", "length"]})
    assert (first.token_ids, first.text, first.end) == ((0, 0, 0), "a", StepEnd.END_OF_SEQUENCE)
    assert (len(cut.token_ids), cut.end) == (2, StepEnd.LENGTH)


class Writer:
    """An engine that writes the same program whatever it reads."""

    def __init__(self, program: str) -> None:
        self._program = program
        self.prompts: list[str] = []

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return [*messages[-1]["content"].encode()]

    async def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        self.prompts += [bytes(item.prefix).decode() for item in request.expansions]
        steps = (Step((1, 2, 3), self._program, StepEnd.END_OF_SEQUENCE),)
        yield ChildGroup(
            tuple(Child(item.parent, branch.index, steps, 0) for item in request.expansions for branch in item.branches)
        )


async def test_each_failing_program_is_written_again_by_a_model_that_is_told_its_errors() -> None:
    (problem,) = problems_of(DATA, 1)
    failing = [f"```python\n{problem.prompt}    raise ValueError('{number}')\n```" for number in range(8)]
    samples: dict[str, Any] = {"texts": failing, "tokens": [10] * 8, "ends": ["end_of_sequence"] * 8}
    engine: Any = Writer(f"```python\n{problem.prompt}    return False\n```")
    matcher = AnswerMatcher()
    try:
        async with running_programs() as programs:
            generator = KeptSolutions(engine, {problem.id: kept_steps(samples)})
            shared = replace(environment_of(generator, engine, matcher), scorer=programs.scorer)
            row = await refined(problem, samples, engine, shared, programs.answers)
    finally:
        matcher.close()
    assert len(row["texts"]) == len(engine.prompts) == 4
    assert all("return False" in text for text in row["texts"])
    for number in range(4):
        assert sum(f"ValueError: {number}" in prompt for prompt in engine.prompts) == 1
    assert (row["written_tokens"], row["prompt_tokens"]) == (12, sum(len(each.encode()) for each in engine.prompts))
