"""Extraction of the answer from a text, and equivalence of answers, for any text."""

import asyncio
import itertools
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from answer_pairs import PAIRS

from search.answers import equivalence
from search.answers.canonical import Number, as_number, canonical
from search.answers.equivalence import LOST_S, AnswerMatcher, EquivalenceWorker, Reply
from search.answers.extraction import MAX_ANSWER_CHARS, MAX_NEXT_LINE_CHARS, boxed_answer, extract_answer
from search.answers.readings import Form
from search.tools.latex import plain_latex

QUADRATIC_S = 5.0
"""Seconds of CPU that reading a hostile text in quadratic time would exceed, also on a fast processor."""


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{" + "1" * (MAX_ANSWER_CHARS + 1) + "}", None),
        ("Answer: " + "1" * (MAX_ANSWER_CHARS + 1), None),
        ("Answer: 7\nAnswer: " + "1" * (MAX_ANSWER_CHARS + 1), "7"),
        ("Answer:\n" + "1" * MAX_NEXT_LINE_CHARS, "1" * MAX_NEXT_LINE_CHARS),
        ("Answer:\n" + "1" * (MAX_NEXT_LINE_CHARS + 1), None),
        (r"\boxed {a{b}c}", "a{b}c"),
        (r"} \boxed{3}", "3"),
        ("a NUL \0 and \ud800 \\boxed{1}", "1"),
        (r"The answer is 1. No: \boxed{2}", "2"),
        ("The answer is $1$, or $2$.", "$1$, or $2$"),
        ("The answer is $1 + 1", "1 + 1"),
        (r"The answer is $\text{a \$5 note}$.", r"\text{a \$5 note}"),
        ("A: 7\nand more", None),
    ],
)
def test_extracts(text: str, answer: str | None) -> None:
    """Further texts, beside those of ``answer_texts.py``."""
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" * 20_000,
        "{" * 50_000,
        "answer is" + " " * 100_000,
        "answer: " * 20_000,
        "answer to the " * 20_000,
        ("answer: " + "1" * 2000 + "\n") * 50,
        "answer:\n" * 20_000,
        "answer is $" * 20_000,
        "answer is " + r"$\$" * 50_000,
        "#### " * 20_000,
        "#### " + "1" * 100_000,
        "####" + " " * 100_000,
        ("#### 1" + " " * 9) * 10_000,
        "*" * 100_000,
        "A:\n" * 30_000,
        "A:" + "\n" * 100_000,
        "A:" + " " * 100_000 + "\nB",
        "Question:\n" * 20_000,
        "The answer is 1.\nQuestion 1: " * 20_000,
        "<|im_end|>" * 20_000,
        "answer is $1 and " * 20_000,
        "answer is $1" + "\n" * 100_000,
        "option A " * 20_000,
        "option is " * 20_000,
        "so, C" + " " * 100_000,
        "(C) x\n" * 20_000,
        '"answer": "' + "\\" * 100_000,
        "'answer': \"" * 20_000,
        '"answer": [' * 20_000,
        "#### x = 1\n" * 20_000,
        "#### C" + "\n" * 100_000,
        "answer is he made " * 20_000,
        "answer is " + "is a " * 50_000,
    ],
)
def test_extraction_from_hostile_texts_takes_linear_time(text: str) -> None:
    start = time.process_time()
    extract_answer(text)
    boxed_answer(text)
    assert time.process_time() - start < QUADRATIC_S


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("42", 42),
        ("42.0", 42),
        ("1,234", 1234),
        ("12 345", 12345),
        (r"10\,000", 10000),
        ("10{,}000", 10000),
        ("-3/4", Fraction(-3, 4)),
        (r"-\frac{3}{4}", Fraction(-3, 4)),
        (r"\dfrac12", Fraction(1, 2)),
        ("1 1/2", Fraction(3, 2)),
        ("-1 1/2", Fraction(-3, 2)),
        (r"2\frac34", Fraction(11, 4)),
        ("x = 5", 5),
        ("1e3", 1000),
        ("2.5 million people", 2_500_000),
        ("300, 400", None),
        ("5 more than y", None),
        ("3 4", None),
        ("1 3/2", None),
        ("1 2 3/4", None),
        (r"3\frac{5}{2}", None),
        ("1/0", None),
        ("5 or 6", None),
        ("5 times", None),
        ("9" * 500, None),
        ("1e99999999", None),
        ("", None),
        ("%", None),
        ("x=", None),
    ],
)
def test_plain_numbers(answer: str, value: Fraction | int | None) -> None:
    number = as_number(answer)
    assert (None if number is None else number.value) == value
    assert number is None or canonical(answer) == str(Fraction(value or 0))


@pytest.mark.parametrize(
    ("formula", "plain"),
    [
        (r"\frac12", r"\frac{1}{2}"),
        (r"\frac a b + c", r"\frac{a}{b} + c"),
        (r"\frac {1} {2}", r"\frac{1}{2}"),
        (r"\frac\pi2", r"\frac{\pi}{2}"),
        (r"\frac\sqrt32", r"\frac{\sqrt{3}}{2}"),
        (r"\sqrt\frac12", r"\sqrt{\frac{1}{2}}"),
        (r"\sqrt[3]2", r"\sqrt[3]{2}"),
        (r"\root 3 \of 2", r"\sqrt[3]{2}"),
        (r"x^\frac12y", r"x^{\frac{1}{2}}y"),
        (r"{n+1 \choose k}^2", r"(\binom{n+1}{k})^2"),
        (r"3{6 \choose 2}", r"3\binom{6}{2}"),
        (r"x^{1 \over 2}", r"x^{\frac{1}{2}}"),
        (r"x = 1 \over 2, y", r"x =\frac{1}{2}, y"),
        (r"\hat x", r"\hat{x}"),
        # Styles go, with their braces.
        (r"\boxed{\mathbf{x}_{1}}", "x_{1}"),
        (r"\boxed{\frac12}^2", r"(\frac{1}{2})^2"),
        (r"x^\mathbf{12}", "x^{12}"),
        (r"\pi\mathbf{x}", r"\pi x"),
        (r"\textbf{cm}\left[\textcolor{red}{10{,}000}\right]", r"\text{cm}[{10,000}]"),
        (r"{10{,}000 \over 3}", r"\frac{10,000}{3}"),
        (r"\frac12^\circ", r"\frac{1}{2}°"),
        (r"\mathrm{e}^{\operatorname{sin}x}", r"e^{\sin x}"),
        # What follows is no argument.
        (r"\sqrt(5)", r"\sqrt(5)"),
        (r"\sqrt\left(5\right)", r"\sqrt(5)"),
        (r"\frac1", r"\frac1"),
        (r"\sqrt[3", r"\sqrt[3"),
        (r"}\sqrt2{", r"}\sqrt{2}{"),
        (r"\operatorname*{lim}", r"\operatorname*{lim}"),
        ("x^2", "x^2"),
    ],
)
def test_latex_has_one_spelling(formula: str, plain: str) -> None:
    assert plain_latex(formula) == plain
    assert plain_latex(plain) == plain


@pytest.mark.parametrize("answer", [r"50\%", "50%", "50 percent", r"50 \text{ percent}", "50%."])
def test_a_percentage_keeps_its_sign(answer: str) -> None:
    assert as_number(answer) == Number(Fraction(50), is_decimal=False, unit="percent")
    assert canonical(answer) == "50 percent"


@pytest.mark.parametrize(
    ("answer", "unit"),
    [
        (r"$90^\circ$", "degree"),
        ("21°C", "degree celsius"),
        ("9.81 m/s^2", "meter·second^-2"),
        (r"12 \text{ cm}^2", "centimeter^2"),
        ("12 sq. ft.", "foot^2"),
        ("60 mph", "hour^-1·mile"),
        ("$5 per hour", "dollar hour^-1"),
        ("£8", "pound sterling"),
        ("12 square units", ""),
        ("7th", ""),
        ("3 apples", ""),
        ("8 in", "inch"),
        ("8 in all", ""),
    ],
)
def test_a_number_has_its_unit(answer: str, unit: str) -> None:
    number = as_number(answer)
    assert number is not None
    assert number.unit == unit


@pytest.mark.parametrize(
    ("a", "b"),
    [("3 4", "34"), ("1 1/2", "11/2"), ("50%", "50"), ("x+1", "x+2"), ("1 2", "1 23"), (r"\log_2 8", r"\log_{28}")],
)
def test_different_answers_have_different_spellings(a: str, b: str) -> None:
    """Self-consistency counts votes by spelling, which must never be coarser than equivalence."""
    assert canonical(a) != canonical(b)


@pytest.mark.parametrize(("a", "b"), [("$7$", "7."), ("Yes", r"\text{yes}"), ("(A)", r"\textbf{A}"), ("9" * 500,) * 2])
def test_variants_of_an_answer_have_one_spelling(a: str, b: str) -> None:
    assert canonical(a) == canonical(b)


@pytest.mark.parametrize(
    "answer",
    [
        "1 " * 500,
        "1,234" * 200,
        r"\text{" * 170,
        r"\frac" * 200,
        r"\sqrt[" * 170,
        "{" * 1000,
        "}" * 1000,
        "%" * 1000,
        "1 1/2 " * 150,
        " " * 1000,
    ],
)
def test_hostile_answers_are_canonicalized_quickly(answer: str) -> None:
    start = time.process_time()
    canonical(answer)
    assert time.process_time() - start < 0.1


def test_groups_by_mathematical_equivalence(matcher: AnswerMatcher) -> None:
    answers = ["x+1", "7", "1+x", r"\sqrt{49}", "7.0", "x+2"]
    assert asyncio.run(matcher.group(answers)) == [[0, 2], [1, 3, 4], [5]]
    assert asyncio.run(matcher.same(r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"))


def test_plain_answers_need_no_worker() -> None:
    matcher = AnswerMatcher()
    answers = ["1", "2", "1/2", "0.5", "2", "Tuesday", "3 4", "1 1/2", "x = 1.5", "9^{9^{9}}", "x" * 1000]
    groups = [[0], [1, 4], [2, 3], [5], [6], [7, 8], [9], [10]]
    assert asyncio.run(matcher.group(answers)) == groups
    assert asyncio.run(matcher.group([])) == []
    assert matcher._worker._process is None
    matcher.close()


@pytest.mark.parametrize(
    ("answers", "groups"),
    [
        (["50%", "0.5"], [[0, 1]]),
        (["50%", "50", "0.5"], [[0, 1], [2]]),
        (["0.5", "50%", "1/2", r"50\%"], [[0, 1, 2, 3]]),
        (["50%", "5000%"], [[0], [1]]),
        (["1/3", "333333/1000000"], [[0], [1]]),
        (["1/3", "0.333333", "333333/1000000"], [[0, 1, 2]]),
        (["1,2", "(1,2)", "2,1"], [[0, 1, 2]]),
        (["(2,1)", "(1,2)"], [[0], [1]]),
        (["y=2x+3", "2x+3", "2x-y+3=0"], [[0, 1], [2]]),
        (["y=2x+3", "2x-y+3=0", "4x-2y+6=0"], [[0, 1, 2]]),
        (["10000000000000000000000000000000", "10000000000000000000000000000001"], [[0], [1]]),
        ([r"\frac{\sqrt{2}}{3\sqrt{2}}", "1/3"], [[0, 1]]),
        (["3 feet", "3", "3 ft"], [[0, 1, 2]]),
        (["3 feet", "3", "3 inches"], [[0], [1], [2]]),
        (["50%", "50", "50 cm"], [[0], [1], [2]]),
        (["21°", "21°C", "21"], [[0, 1, 2]]),
        (["7:45 PM", "7:45", "19:45"], [[0, 1, 2]]),
        (["7:45 PM", "7:45", "7:45 AM"], [[0], [1], [2]]),
        (["x=1,y=2", "y=2,x=1", "2,1", "1,2"], [[0, 1, 2, 3]]),
        (["x=1,y=2", "x=2,y=1", "2,1"], [[0], [1], [2]]),
        (["[1,2,3]", "3,2,1", "[3,2,1]"], [[0], [1, 2]]),
        (["(B) 17", "17", "B"], [[0, 1, 2]]),
        (["(B) 17", "17", "(C) 17"], [[0], [1], [2]]),
    ],
)
def test_a_grouping_is_the_same_in_any_order(
    matcher: AnswerMatcher, answers: list[str], groups: list[list[int]]
) -> None:
    """Even if two answers each equal a third but not each other."""
    expected = {frozenset(answers[index] for index in group) for group in groups}
    for order in itertools.permutations(answers):
        found = asyncio.run(matcher.group(order))
        assert {frozenset(order[index] for index in group) for group in found} == expected


def test_a_number_goes_with_its_most_frequent_unit(matcher: AnswerMatcher) -> None:
    answers = ["3", "3 inches", "3 feet", "3 ft", "3"]
    assert asyncio.run(matcher.group(answers)) == [[0, 2, 3, 4], [1]]
    assert asyncio.run(matcher.group([*answers, "3 in"])) == [[0, 4], [1, 5], [2, 3]]


def test_answers_of_one_spelling_are_the_same(matcher: AnswerMatcher) -> None:
    """Self-consistency stops early by spelling, so no spelling may be in two groups."""
    answers = sorted({answer for row in PAIRS for answer in (row.a, row.b)})
    groups = asyncio.run(matcher.group(answers))
    group_of = {answers[index]: number for number, group in enumerate(groups) for index in group}
    homes: dict[str, set[int]] = {}
    for answer in answers:
        homes.setdefault(canonical(answer), set()).add(group_of[answer])
    assert [spelling for spelling, numbers in homes.items() if len(numbers) > 1] == []


def test_grouping_symbolic_answers_takes_linear_time(matcher: AnswerMatcher) -> None:
    """48 new answers, each written in two ways."""
    answers = [rf"{k}x^2-\sqrt{{{k}}}" for k in range(2, 50)] + [rf"-{k}^{{1/2}}+{k}x\cdot x" for k in range(2, 50)]
    order = list(range(96))
    random.Random(0).shuffle(order)
    asked: list[str] = []
    worker = matcher._worker
    read = worker.evaluated
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "evaluated", lambda answer: asked.append(answer) or read(answer))
        found = asyncio.run(matcher.group([answers[index] for index in order]))
    assert {frozenset(order[index] for index in group) for group in found} == {
        frozenset({index, index + 48}) for index in range(48)
    }
    assert len(asked) == 96


@pytest.mark.parametrize(
    "hostile",
    [
        "9^{9^{9}}",
        "9^{9^{9^{9}}}",
        "(" * 60,
        "}{",
        "\ud800\0\n",
        "\\int" * 50,
        "x" * 1000,
        "10000000!!",
        r"\binom{10^9}{10^8}",
        r"e^{e^{20}}",
        r"\int_0^1 e^{x^{x^x}} dx",
    ],
)
def test_hostile_answers_are_grouped_too(matcher: AnswerMatcher, hostile: str) -> None:
    assert asyncio.run(matcher.group([hostile, "x+1", hostile, "1+x"])) == [[0, 2], [1, 3]]


STUB = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    if "hang" in line:
        sys.stdin.read()
    if "die" in line:
        break
    print("[1.5, null]" if "slow" in line else '[0, [["number", "7"]]]' if "seven" in line else "[0, []]", flush=True)
"""


class StubWorker(EquivalenceWorker):
    """Is given little time for what it hangs on, and for all else as much as a busy machine may take."""

    def evaluated(self, forms: Sequence[Form]) -> Reply:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(equivalence, "REPLY_S", 0.2 if "hang" in str(forms) else 60.0)
            return super().evaluated(forms)


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[EquivalenceWorker]:
    """A worker that reads "seven" as 7 and nothing else, spends 1.5 s on "slow", and hangs or dies when told to."""
    script = tmp_path / "stub.py"
    script.write_text(STUB)
    worker = StubWorker(script)
    yield worker
    worker.close()


@pytest.mark.parametrize("trap", ["hang", "die"])
def test_a_worker_that_hangs_or_dies_is_replaced(stub: EquivalenceWorker, trap: str) -> None:
    stub.start()
    lost = stub._process
    assert lost is not None
    assert stub.evaluated([["latex", trap, ""]]) == (None, LOST_S)
    assert lost.poll() is not None
    assert stub.evaluated([["latex", "seven", ""]]) == ([["number", "7"]], 0)


def test_a_worker_that_ran_out_of_time_is_kept(stub: EquivalenceWorker) -> None:
    stub.start()
    kept = stub._process
    assert stub.evaluated([["latex", "slow", ""]]) == (None, 1.5)
    assert stub.evaluated([["latex", "seven", ""]]) == ([["number", "7"]], 0)
    assert stub._process is kept


def test_answers_on_which_the_worker_hangs_are_compared_as_text(stub: EquivalenceWorker) -> None:
    matcher = AnswerMatcher(stub)
    assert asyncio.run(matcher.group([r"h(\hang)", "7", r"h(\seven)", r"h( \hang )"])) == [[0, 3], [1, 2]]
    assert asyncio.run(matcher.group(["f(x)", "f(y)", "7.0", r"f(\seven)"])) == [[0], [1], [2, 3]]
    matcher.close()


def test_a_worker_ends_with_its_owner() -> None:
    """Its stdin closes when the owner is killed, whatever kills it."""
    process = subprocess.Popen(
        [sys.executable, "-P", str(equivalence.WORKER_SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.communicate(b"", timeout=60)
    assert process.returncode == 0
