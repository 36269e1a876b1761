"""math-verify and our code give the results in the tables beside this file."""

import asyncio

import pytest
from answer_pairs import PAIRS, Pair
from answer_texts import TEXTS, Text
from math_verify import parse, verify

from search.answers.equivalence import AnswerMatcher
from search.answers.extraction import extract_answer


@pytest.mark.parametrize("row", PAIRS, ids=lambda row: f"{row.a} and {row.b}")
def test_equivalence_is_as_in_the_table(matcher: AnswerMatcher, row: Pair) -> None:
    assert asyncio.run(matcher.same(row.a, row.b)) is (row.ours == "same")
    assert asyncio.run(matcher.same(row.b, row.a)) is (row.ours == "same")
    a, b = (parse(f"\\boxed{{{answer}}}", parsing_timeout=None) for answer in (row.a, row.b))
    there, back = verify(a, b, timeout_seconds=None), verify(b, a, timeout_seconds=None)
    assert row.math_verify == ("one way" if there != back else "same" if there else "different")


@pytest.mark.parametrize("row", TEXTS, ids=lambda row: row.text[:40])
def test_extraction_is_as_in_the_table(row: Text) -> None:
    assert extract_answer(row.text) == row.ours
    found = parse(row.text, parsing_timeout=None)
    assert (found[-1] if found else None) == row.math_verify


def test_the_tables_are_consistent() -> None:
    """Every difference has a reason, no agreement has one, and no row occurs twice."""
    for row in (*PAIRS, *TEXTS):
        assert bool(row.why) == (row.math_verify != row.ours), row
    assert len({frozenset((row.a, row.b)) for row in PAIRS}) == len(PAIRS) >= 120
    assert len({row.text for row in TEXTS}) == len(TEXTS) >= 60
