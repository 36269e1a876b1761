"""math-verify and our code give the results in the tables beside this file."""

from answer_pairs import PAIRS
from answer_texts import TEXTS
from math_verify import parse, verify

from search.answers.equivalence import AnswerMatcher
from search.answers.extraction import extract_answer


async def test_our_equivalence_is_as_in_the_table(matcher: AnswerMatcher) -> None:
    found = {(row.a, row.b): (await matcher.same(row.a, row.b), await matcher.same(row.b, row.a)) for row in PAIRS}
    assert found == {(row.a, row.b): (row.ours == "same",) * 2 for row in PAIRS}


def test_the_equivalence_of_math_verify_is_as_in_the_table() -> None:
    found = {}
    for row in PAIRS:
        a, b = (parse(f"\\boxed{{{answer}}}", parsing_timeout=None) for answer in (row.a, row.b))
        there, back = verify(a, b, timeout_seconds=None), verify(b, a, timeout_seconds=None)
        found[row.a, row.b] = "one way" if there != back else "same" if there else "different"
    assert found == {(row.a, row.b): row.math_verify for row in PAIRS}


def test_our_extraction_is_as_in_the_table() -> None:
    assert {row.text: extract_answer(row.text) for row in TEXTS} == {row.text: row.ours for row in TEXTS}


def test_the_extraction_of_math_verify_is_as_in_the_table() -> None:
    found = {row.text: parse(row.text, parsing_timeout=None) for row in TEXTS}
    last = {text: each[-1] if each else None for text, each in found.items()}
    assert last == {row.text: row.math_verify for row in TEXTS}


def test_the_tables_are_consistent() -> None:
    """Every difference has a reason, no agreement has one, and no row occurs twice."""
    for row in (*PAIRS, *TEXTS):
        assert bool(row.why) == (row.math_verify != row.ours), row
    assert len({frozenset((row.a, row.b)) for row in PAIRS}) == len(PAIRS) >= 120
    assert len({row.text for row in TEXTS}) == len(TEXTS) >= 60
