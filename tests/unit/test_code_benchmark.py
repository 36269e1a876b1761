"""The benchmark of programs picks as the served application does, and grades by the test alone."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import code
from benchmarks.code import BEHAVIOR, EXAMPLES, ONE, POOL, WEIGHTED, figures_of, outcomes_of, picks, problems_of

DATA = Path(__file__).parent / "humaneval" / "HumanEval.jsonl.gz"


def test_each_rule_picks_by_what_it_knows() -> None:
    answers = ["a", "b", "c", "d", None, "e"]
    scores, groups = [0.5, 0.5, 0.5, 1.0, 0.0, 1.0], [0, 0, 0, 1, None, 2]
    right = [False, False, False, True, False, False]
    assert picks(answers, scores, groups, right) == {
        ONE: pytest.approx(1 / 6),
        POOL: 1.0,
        EXAMPLES: pytest.approx(5 / 6 * 0 + 4 / 6),  # d is before e in four of the six orders
        BEHAVIOR: 0.0,
        WEIGHTED: 0.0,
    }


async def test_samples_are_graded_picked_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "ROWS", tmp_path)
    problems = problems_of(DATA, 2)
    body = "    ordered = sorted(numbers)\n    return any(b - a < threshold for a, b in zip(ordered, ordered[1:]))"
    right = f"```python\n{problems[0].prompt}{body}\n```"
    wrong = f"```python\n{problems[0].prompt}    return threshold > 0.4\n```"
    shared: dict[str, Any] = {"model": "m", "dtype": "float32", "seconds": 1.0, "ends": []}
    rows = {(problems[0].id,): shared | {"problem": problems[0].id, "texts": [wrong, right, wrong, "?"], "tokens": [1]}}
    found = await outcomes_of(problems, rows)
    assert found == await outcomes_of(problems, rows)  # The second time from the file of grades.
    assert [*found] == [problems[0].id]
    assert found[problems[0].id] == (True, {ONE: 0.25, POOL: 1.0, EXAMPLES: 1.0, BEHAVIOR: 0.0, WEIGHTED: 1.0})
    figures = figures_of(found, rows)
    assert figures["accuracy"][EXAMPLES] == {"all": 1.0, "with_examples": 1.0, "without_examples": 0.0}
    assert [(each["value"], each["holds"]) for each in figures["claims"]] == [
        (0.75, True),
        ([0.75, 0.75], True),
        (1, False),
    ]
    assert figures["above_one_sample"][POOL]["without"] is None
