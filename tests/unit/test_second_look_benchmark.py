"""`benchmarks.second_look` compares on problems whose first programs fail, and picks both sides' answers alike."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import code, second_look
from benchmarks.code import pool_file, problems_of
from benchmarks.second_look import REFINED, SAMPLED, Programs, compared, kept_steps, open_problems, second_file
from search.tree import StepEnd

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
    identity = f"```python\n{solved.prompt}    return [paren_string]\n```"
    groups = (
        "    text = paren_string.replace(' ', '')\n    out, depth, start = [], 0, 0\n    for i, c in enumerate(text):"
    )
    groups += (
        "\n        depth += 1 if c == '(' else -1\n        if not depth:\n            out.append(text[start:i + 1])"
    )
    groups += "\n            start = i + 1\n    return out"
    shared: dict[str, Any] = {"model": "m", "dtype": "float32", "seconds": 1.0, "ends": ["end_of_sequence"] * 8}
    texts = {failing: [wrong] * 8, solved: [identity] * 3 + [f"```python\n{solved.prompt}{groups}\n```"] * 5}
    for problem, samples in texts.items():
        pool_file().append(shared | {"problem": problem.id, "texts": samples, "tokens": [10] * 8})

    programs = await Programs.started()
    assert await open_problems([failing, solved], pool_file().rows, programs.scorer) == [failing]
    await programs.close()

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
