"""Programs as answers: which code block answers, which examples a question has, and when a check has passed."""

from doctest import DocTestParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from search.answers.checks import (
    MAX_TOLD,
    Check,
    Outcome,
    as_compared,
    checks_of,
    examples_of,
    failed_checks,
    has_passed,
    shown,
)
from search.answers.code_answer import MAX_PROGRAM_CHARS, CodeBlock, code_block
from search.settings import SearchSettings, parse_search

DEFINED = "def f(x):\n    return x + 1\n"


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (f"Here:\n\n```python\n{DEFINED}```\nDone.", CodeBlock(DEFINED, closed=True)),
        (f"```\n{DEFINED}```\n```python\nprint(f(1))\n```\n```output\n2\n```", CodeBlock(DEFINED, closed=True)),
        ("```python\nx = 1\n```\nNo:\n```py\nx = 2\n```", CodeBlock("x = 2\n", closed=True)),
        (
            f"1. So:\n    ```Python\n    {DEFINED.replace(chr(10), chr(10) + '    ')}\n    ```",
            CodeBlock(DEFINED, closed=True),
        ),
        (f"```python\n{DEFINED}", CodeBlock(DEFINED, closed=False)),
        (f"````markdown\n```python\n{DEFINED}```\n````\n~~~python\nx = 1\n~~~", CodeBlock("x = 1\n", closed=True)),
        (f"<think>\n```python\nx = 1\n```\n</think>\n```python\n{DEFINED}```", CodeBlock(DEFINED, closed=True)),
        ("<think>\n```python\nx = 1\n```\nand so on", None),
        ("```bash\nls\n```", None),
        ("```python\n\n```", None),
        ("the answer is `x = 1`", None),
        (f"```python\n{'x' * MAX_PROGRAM_CHARS}\n```", None),
    ],
)
def test_the_program_is_the_last_code_block_that_defines_something(text: str, program: CodeBlock | None) -> None:
    assert code_block(text) == program


names = st.sampled_from(["f", "median", "is_ok"])
literals = st.recursive(
    st.integers(-99, 99) | st.booleans() | st.none() | st.sampled_from(["'a b'", "1.5", '"x"']),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
).map(lambda value: value if isinstance(value, str) else repr(value))
prompts = st.tuples(names, literals, st.sampled_from(["", "x = "]), st.lists(literals, max_size=2)).map(
    lambda parts: [f">>> {parts[2]}{parts[0]}({parts[1]},", "...     1)", *parts[3]]
)
prose = st.sampled_from(
    ["", "    ", "Return the median.", "Note: it may be empty", "f(x) is called once", ">>> # nothing"]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(prompts | prose.map(lambda line: [line]), max_size=8), st.sampled_from(["", "    "]))
def test_examples_at_the_prompt_are_those_of_doctest(parts: list[list[str]], indentation: str) -> None:
    lines = [line for part in parts for line in part]
    docstring = "".join(f"\n{indentation}{line}" for line in lines)
    wanted = [Check(each.source, each.want) for each in DocTestParser().get_examples(docstring)]
    assert examples_of(f'def f(x):\n    """{docstring}\n    """\n') == wanted
    assert examples_of(f"Write it:\n```python\ndef f(x):\n    '''{docstring}\n    '''\n```\nThanks.") == wanted


@pytest.mark.parametrize(
    ("line", "check"),
    [
        ("f([1, 2]) == 2", Check("f([1, 2])", "2")),
        ("For example, `f('a')` returns `'b'`.", Check("f('a')", "'b'")),
        ("f(1, x=2) ➞ [1, 2]  # both", Check("f(1, x=2)", "[1, 2]")),
        ("f('a.b') # => 'Yes'", Check("f('a.b')", "'Yes'")),
        ("f(1) => true", Check("f(1)", "True")),
        ("f(-1) -> None", Check("f(-1)", "")),
        ("assert f(2) == 3", Check("f(2)", "3")),
        ("`assert f(2) == 3, 'f(2)'`", Check("f(2)", "3")),
        ('assert f(2) == 3, "Test 1"', Check("f(2)", "3")),
        ("assert f(2) is None", Check("assert f(2) is None")),
        ("assert not f(1) == True", Check("assert not f(1) == True")),
        ("assert -f(1) == 2", Check("assert -f(1) == 2")),
        ("assert f(x) == 2", None),
        ("2 * f(1) == 4", None),
        ("not f(1) == True", None),
        ("1 - f(1) = 2", None),
        ("- f(1) == 2", Check("f(1)", "2")),
        ("* `f(1)` returns 2", Check("f(1)", "2")),
        ("Example - f(1) == 2", Check("f(1)", "2")),
        (">>> f(2) == 3", Check("assert (f(2) == 3\n)")),
        ("f(5) = 3 + 2 = 5", None),
        ("f(x) == 2", None),
        ("os.remove('x') == 1", None),
        ("n**int = 3", None),
        (">>> f(1", None),
    ],
)
def test_calls_with_their_values_are_examples_too(line: str, check: Check | None) -> None:
    assert examples_of(f"Do it.\n\n{line}\n\nThanks.") == ([check] if check else [])


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_questions_may_have_any_newlines(newline: str) -> None:
    question = 'def f(x):\n    """Adds.\n\n    >>> f(1)\n    2\n\n    So it does.\n    """\n'
    assert checks_of(question.replace("\n", newline)) == checks_of(question)
    assert examples_of(question) == [Check("f(1)\n", "2\n")]


def test_what_python_cannot_write_again_is_no_failure() -> None:
    long = f"f(0x{'f' * 4000})"
    assert shown(long) == long
    assert not has_passed(Check("f(1)", "2"), Outcome("9" * 400 + "+1j"))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("{3, 1, 2}", "{1, 2, 3}\n", True),
        ("[{'a': {2, 1}}, ({1: 2, 3: 4},)]", "[{'a': {1, 2}}, ({3: 4, 1: 2},)]", True),
        ("{1, 2}", "{1, 2, 3}", False),
        ("{1: 2}", "{1: 3}", False),
        ("{1: 1}", "{1: True}", False),
        ("[{1}]", "({1},)", False),
        ("[1, 2]", "[2, 1]", False),
        ("<A object at 0x50>", "<A object at 0x7f>", True),
        ("{x", "{y", False),
    ],
)
def test_programs_do_the_same_whatever_the_order_of_their_sets(one: str, other: str, same: bool) -> None:
    assert (as_compared(Outcome(one)) == as_compared(Outcome(other))) is same
    assert as_compared(Outcome(one, "E")) != as_compared(Outcome(one))


@pytest.mark.parametrize(
    ("check", "outcome", "passed"),
    [
        (Check("f(1)", "2"), Outcome("2\n"), True),
        (Check("f(1)", "[1,2]"), Outcome("[1, 2]\n"), True),
        (Check("f(1)", '"a"'), Outcome("'a'\n"), True),
        (Check("f(1)", "6.00"), Outcome("6.0\n"), True),
        (Check("f(1)", "<f at ...>"), Outcome("<f at 0x1>\n"), True),
        (Check("f(1)", "2"), Outcome("3\n"), False),
        (Check("f(1)", "2"), Outcome("", "NameError: f"), False),
        (Check("f(1)", "2"), Outcome("2\n", "NameError: f"), False),
        (Check("f(1)", ""), Outcome(""), True),
        (Check("f(1)", ""), Outcome("1\n"), False),
        (Check("f(1)", "(" * 500), Outcome("1\n"), False),
        (Check("assert f(1)"), Outcome("anything"), True),
        (Check("assert f(1)"), Outcome("", "AssertionError"), False),
        (Check("f(0)", "Traceback (most recent call last):\nValueError: no"), Outcome("", "ValueError: other"), True),
        (Check("f(0)", "Traceback (most recent call last):\nValueError: no"), Outcome("", "KeyError: 0"), False),
        (Check("f(0)", "Traceback (most recent call last):\nValueError: no"), Outcome("1\n"), False),
    ],
)
def test_a_check_passes_as_in_doctest_or_by_the_value(check: Check, outcome: Outcome, passed: bool) -> None:
    assert has_passed(check, outcome) is passed


def test_the_last_expression_of_a_check_shows_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for source in ("x = 1; x + 1", "print('a')", "None", "[\n  1,  # one\n]", "y = 3"):
        exec(shown(source), {})  # noqa: S102  # a line of this test
    assert capsys.readouterr().out == "2\na\n[1]\n"


def test_a_question_without_checks_and_examples_asks_for_no_program() -> None:
    assert checks_of("What is 6 * 7?") is None
    assert checks_of("What is 6 * 7?", ()) == ("What is 6 * 7?", ())
    stub = 'import math\n\ndef f(x):\n    """>>> f(1)\n    2\n    """\n'
    assert checks_of(f"Complete:\n```python\n{stub}```") == (stub, (Check("f(1)\n", "2\n"),))
    assert checks_of(stub, (Check("assert f(2) == 3"),)) == (stub, (Check("assert f(2) == 3"),))


@pytest.mark.parametrize(
    ("checks", "path", "reason"),
    [
        (["assert f(1) == 2", "assert"], ("checks", 1, "input"), "not Python: invalid syntax"),
        (["# nothing"], ("checks", 0, "input"), "there is no statement in it"),
        ([{"input": "f(1)", "outptu": "2"}], ("checks", 0, "outptu"), "Extra inputs"),
        (["f(1)" + " " * 8189], ("checks", 0, "input"), "at most 8192 characters"),
        (["f(1)"] * 257, ("checks",), "at most 256 items"),
        (["f(1)" + " " * 8000] * 9, ("checks",), "together may have 65536 characters"),
        ("assert f(1) == 2", ("checks",), "valid tuple"),
        (["-" * 8000 + "1"], ("checks", 0, "input"), "not Python"),
    ],
)
def test_malformed_checks_are_refused_by_their_path(checks: Any, path: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(ValidationError) as refused:
        parse_search({"strategy": "greedy", "checks": checks})
    [fault] = refused.value.errors()
    assert fault["loc"] == path
    assert reason in fault["msg"]


def test_checks_are_texts_or_inputs_with_outputs() -> None:
    settings = parse_search({"strategy": "greedy", "checks": ["assert f(1)", {"input": "f(1)", "output": "2"}]})
    assert settings.given_checks == (Check("assert f(1)"), Check("f(1)", "2"))
    assert SearchSettings.model_validate(settings.model_dump(mode="json")) == settings
    assert parse_search({"strategy": "greedy"}).given_checks is None


def test_a_model_is_told_which_checks_failed_and_what_they_did() -> None:
    checks = [Check("f(1)", "2"), Check("f(2)", "3"), Check("assert f(3) == 4")]
    outcomes = [Outcome("2\n"), Outcome("4\n"), Outcome("", "AssertionError: no")]
    assert failed_checks(checks, outcomes) == (
        "The candidate's program failed 2 of 3 checks:\n"
        "- f(2)\n  it shows 4, and must show 3\n"
        "- assert f(3) == 4\n  AssertionError: no"
    )
    assert failed_checks(checks[:1], outcomes[:1]) == "The candidate's program passed all 1 checks."


def test_only_the_beginnings_of_the_first_failed_checks_are_told() -> None:
    told = failed_checks([Check("f()", "1" * 9999)] * 50, [Outcome("2" * 9999, "")] * 50)
    assert told.count("\n- ") == MAX_TOLD
    assert len(told) < 8192
