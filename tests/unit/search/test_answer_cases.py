"""Answers and texts of the kinds that people write: which are the same, and which answer stands in a text."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from search.answers.equivalence import AnswerMatcher
from search.answers.extraction import extract_answer

CASES = Path(__file__).parent / "cases"


def cases(name: str) -> list[Any]:
    """The lines of a file. ``answers.jsonl``: ``a`` and ``b`` are the ``same`` answer or not. ``texts.jsonl``: which
    answer stands in ``text`` (null: none); any of ``answers`` is right."""
    return [json.loads(line) for line in (CASES / name).read_text().splitlines()]


@pytest.mark.parametrize(
    "case", cases("answers.jsonl"), ids=lambda case: f"{case['kind']}: {case['a']} and {case['b']}"
)
def test_pairs(matcher: AnswerMatcher, case: dict[str, Any]) -> None:
    assert asyncio.run(matcher.same(case["a"], case["b"])) is case["same"]
    assert asyncio.run(matcher.same(case["b"], case["a"])) is case["same"]


@pytest.mark.parametrize("case", cases("texts.jsonl"), ids=lambda case: f"{case['kind']}: {case['text'][:40]}")
def test_texts(matcher: AnswerMatcher, case: dict[str, Any]) -> None:
    answer = extract_answer(case["text"])
    if answer is None or case["answers"] == [None]:
        assert answer in case["answers"]
    else:
        assert any(asyncio.run(matcher.same(answer, right)) for right in case["answers"] if right is not None)
