"""Answers and texts of the kinds that people write: which are the same, and which answer stands in a text."""

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


PAIRS, TEXTS = cases("answers.jsonl"), cases("texts.jsonl")


def kinds(of: list[Any]) -> list[str]:
    return sorted({case["kind"] for case in of})


@pytest.mark.parametrize("kind", kinds(PAIRS))
async def test_pairs(matcher: AnswerMatcher, kind: str) -> None:
    wrong = [
        case
        for case in PAIRS
        if case["kind"] == kind
        and not (await matcher.same(case["a"], case["b"]) is await matcher.same(case["b"], case["a"]) is case["same"])
    ]
    assert wrong == []


@pytest.mark.parametrize("kind", kinds(TEXTS))
async def test_texts(matcher: AnswerMatcher, kind: str) -> None:
    wrong = []
    for case in TEXTS:
        if case["kind"] == kind:
            answer = extract_answer(case["text"])
            right = [each for each in case["answers"] if each is not None]
            if answer is None or not right:
                is_right = answer in case["answers"]
            else:
                is_right = any([await matcher.same(answer, each) for each in right])
            if not is_right:
                wrong.append((answer, case))
    assert wrong == []
