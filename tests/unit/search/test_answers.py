"""The answer in a text, and which answers are the same, whatever is written there."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from search.answers import equivalence
from search.answers.equivalence import AnswerMatcher, EquivalenceWorker, Undecided, equivalent
from search.answers.extraction import MOST_ANSWER_CHARS, boxed_answer, canonical, extract_answer, quickly_same


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{42}.", "42"),
        (r"first \boxed{1}, no: \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed {a{b}c}", "a{b}c"),
        (r"\fbox{7}", "7"),
        (r"\boxed{12", None),
        (r"\boxed{5} and then \boxed{12", "5"),
        (r"\boxed{}", None),
        (r"} \boxed{3}", "3"),
        ("The answer is 42.", "42"),
        ("The answer is 3.5. Really.", "3.5"),
        ("**Answer:** 7", "7"),
        ("Final answer: $x=5$", "x=5"),
        ("the answer is 1\nno, the answer is 2", "2"),
        ("nothing here", None),
        ("", None),
        (r"\boxed{" + "1" * (MOST_ANSWER_CHARS + 1) + "}", None),
        ("a NUL \0 and \ud800 \\boxed{1}", "1"),
    ],
)
def test_extracts(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize("text", [r"\boxed{" * 20_000, "answer is" + " " * 100_000, "{" * 50_000, "answer: " * 20_000])
def test_a_hostile_text_costs_no_more_than_its_length(text: str) -> None:
    start = time.process_time()
    extract_answer(text)
    boxed_answer(text)
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("42", "42.0", True),
        ("1/2", r"\frac{1}{2}", True),
        ("0.5", r"\dfrac12", True),
        ("1,234", "1234", True),
        ("-3/4", r"-\frac{3}{4}", True),
        ("$7$", "7", True),
        ("x = 5", "5", True),
        (r"50\%", "50", True),
        (r"\text{yes}", "yes", True),
        (r"90^\circ", "90", True),
        ("1e3", "1000", True),
        ("0.333", "1/3", False),
        ("41", "42", False),
        ("1/0", "1/0", True),
        ("1/0", "2", None),
        ("x+1", "1+x", None),
        ("9" * 500, "9" * 500, True),
        ("1e99999999", "2", None),
    ],
)
def test_plain_comparison(a: str, b: str, same: bool | None) -> None:
    assert quickly_same(a, b) is same
    assert (canonical(a) == canonical(b)) is bool(same)


@pytest.fixture(scope="module")
def matcher() -> Iterator[AnswerMatcher]:
    matcher = AnswerMatcher()
    yield matcher
    matcher.close()


def test_groups_by_mathematical_equivalence(matcher: AnswerMatcher) -> None:
    answers = ["x+1", "7", "1+x", r"\sqrt{49}", "7.0", "x+2"]
    assert asyncio.run(matcher.group(answers)) == [[0, 2], [1, 3, 4], [5]]
    assert asyncio.run(matcher.same(r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"))


def test_plain_answers_need_no_worker() -> None:
    matcher = AnswerMatcher()
    assert asyncio.run(matcher.group(["1", "2", "1/2", "0.5", "2"])) == [[0], [1, 4], [2, 3]]
    assert asyncio.run(matcher.group([])) == []
    assert matcher._worker._process is None
    matcher.close()


@pytest.mark.parametrize(
    "hostile", ["9^{9^{9}}", "9^{9^{9^{9}}}", "(" * 60, "}{", "\ud800\0\n", "\\int" * 50, "x" * 1000, "10000000!!"]
)
def test_hostile_answers_are_still_grouped(matcher: AnswerMatcher, hostile: str) -> None:
    assert asyncio.run(matcher.group([hostile, "x+1", hostile, "1+x"])) == [[0, 2], [1, 3]]


STUB = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    if "hang" in line:
        sys.stdin.read()
    if "die" in line:
        break
    print("01"["same" in line], flush=True)
"""


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EquivalenceWorker]:
    """A worker that says "same" where one of the answers does, and hangs or dies when told to."""
    script = tmp_path / "stub.py"
    script.write_text(STUB)
    monkeypatch.setattr(equivalence, "COMPARISON_S", 0.2)
    worker = EquivalenceWorker(script)
    yield worker
    worker.close()


@pytest.mark.parametrize("trap", ["hang", "die"])
def test_a_worker_that_hangs_or_dies_is_replaced(stub: EquivalenceWorker, trap: str) -> None:
    stub.start()
    lost = stub._process
    assert lost is not None
    with pytest.raises(Undecided):
        stub.same(trap, "x")
    assert lost.poll() is not None
    assert stub.same("same", "x")


def test_answers_on_which_the_worker_hangs_are_compared_as_text(stub: EquivalenceWorker) -> None:
    matcher = AnswerMatcher(stub)
    assert asyncio.run(matcher.group(["hang", "x", "same", "hang"])) == [[0, 3], [1], [2]]
    assert asyncio.run(matcher.group(["x", "y", "same"])) == [[0, 2], [1]]
    matcher.close()


def test_equivalent_for_scripts(stub: EquivalenceWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence, "_own_worker", lambda: (stub, threading.Lock()))
    assert equivalent("0.5", "1/2")
    assert equivalent("x", "same")
    assert not equivalent("x", "y")
    assert not equivalent("x", "hang")


def test_a_worker_ends_with_its_owner() -> None:
    """Its stdin closes when the owner is killed, whatever kills it."""
    process = subprocess.Popen(
        [sys.executable, "-P", str(equivalence.WORKER_SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.communicate(b"", timeout=60)
    assert process.returncode == 0
