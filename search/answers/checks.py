"""Checks of programs: what a program must do, as its question or the request says.

A check is a line of Python's prompt with what it shows, as in ``doctest``, or statements that must not fail, such as an
assertion. This module reads them and judges outcomes; it runs nothing.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, DocTestParser, OutputChecker
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from search.answers.code_answer import code_answer

MAX_CHECKS = 256
MAX_CHECK_CHARS = 8192
"""Longest check: source and output together."""
MAX_CHECKS_CHARS = 65_536
"""Most characters of all checks of a request."""
MAX_TOLD, MAX_TOLD_CHARS = 8, 400
"""Failed checks that a model is told of, and the most characters of each of their parts."""
MAX_EXAMPLES_CHARS = 16_384
"""Length up to which a question is searched for examples."""
_PARAGRAPHS = re.compile(r"\n[ \t]*\n")
_OPENING = re.compile(r"(?:\"\"\"|''')[ \t]*(?=>>>)")
_QUOTES = re.compile(r"(?:\"\"\"|''')[ \t]*$|^[ \t]{0,12}(?:`{3}|~{3}).*$", re.MULTILINE)
_CALL = re.compile(r"(?<![\w.])[A-Za-z_]\w{0,127}\(")
_SHOWS = re.compile(r"==?>|[-=]=?>|==?|[➞→⟹]|#? ?\b(?:should )?returns?\b|\bgives\b", re.IGNORECASE)
_OPERATOR = re.compile(r"(?:[\d)\]]\s*-|[\w)\]]\s*[*+/%]|\bnot\s)`?\s*$|(?:^|[\s(=])-`?$")
"""Before a call: the value that is stated is not the call's own. A dash with a space behind it may be a list's."""
_LITERAL = re.compile(r"[-+.\d'\"\[({]|[bBrRuU]{1,2}['\"]|(?:True|False|None)\b")
"""Beginning of a literal: to parse every text would take long."""
_MAX_LINE_CHARS = 512
_MAX_SIGNS = 4
"""Signs in a line that are tried, from the first."""
_SPELLINGS = {"true": "True", "false": "False", "none": "None", "null": "None"}
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_TRACEBACK = "Traceback (most recent call last):"


class Check(NamedTuple):
    """Something that a program must do."""

    source: str
    """Python that runs after the program and the checks before this one."""
    output: str | None = None
    """What Python's prompt shows for it; None: anything, as long as it does not fail."""


class Outcome(NamedTuple):
    """What a check did."""

    output: str = ""
    """What Python's prompt showed."""
    error: str = ""
    """The last line of the error; empty without one."""


class Checks(NamedTuple):
    """All checks of a question."""

    setup: str = ""
    """The program of the question, which runs before the candidate's: helpers, imports, and what is to be filled in. It
    may fail."""
    checks: tuple[Check, ...] = ()


def parsed_python(source: str) -> ast.Module:
    """The syntax tree of a program or a check. Raises ValueError if it is no Python, or empty."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"not Python: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError("not Python") from error
    if not tree.body:
        raise ValueError("there is no statement in it")
    return tree


@lru_cache(maxsize=1024)
def shown(source: str) -> str:
    """The source of a check, whose last expression prints itself as at Python's prompt."""
    tree = parsed_python(source)
    if not isinstance(last := tree.body[-1], ast.Expr):
        return source
    try:
        before, value = ast.unparse(ast.Module(tree.body[:-1], [])), ast.unparse(last.value)
    except (RecursionError, ValueError):  # such as an integer of thousands of digits
        return source
    return f"{before}\n_ = {value}\nif _ is not None:\n    print(repr(_))\n"


def has_passed(check: Check, outcome: Outcome) -> bool:
    """Whether a check did what it must. As in ``doctest`` an output may have ``...`` and other white space; of an
    expected error only the kind counts. Literals are compared by value."""
    wanted = check.output
    if wanted is None or outcome.error:
        expected = _expected_error(wanted) if wanted else ""
        return (outcome.error.partition(":")[0] if expected else outcome.error) == expected
    if OutputChecker().check_output(_line(wanted), _line(outcome.output), ELLIPSIS | NORMALIZE_WHITESPACE):
        return True
    try:
        return bool(_value(wanted) == _value(outcome.output))
    except ValueError:
        return False


def as_compared(outcome: Outcome) -> Outcome:
    """An outcome by which programs that do the same are equal: sets and dicts have an order of their own, and objects
    no address."""
    text = _ADDRESS.sub(" at 0x", outcome.output)
    if "{" in text:
        with suppress(ValueError, RecursionError):
            text = repr(_ordered(_value(text)))
    return outcome._replace(output=text)


def _ordered(value: Any) -> Any:
    """A literal's value with its sets and dicts as sorted lists."""
    match value:
        case dict():
            return ["{:}", *sorted(([_ordered(key), _ordered(of_key)] for key, of_key in value.items()), key=repr)]
        case set():
            return ["{}", *sorted(map(_ordered, value), key=repr)]
        case list() | tuple():
            return [type(value).__name__, *map(_ordered, value)]
        case _:
            return value


def failed_checks(checks: Sequence[Check], outcomes: Sequence[Outcome]) -> str:
    """Says which checks a program failed and what each of them did, the first ``MAX_TOLD`` of them; or that it passed
    all."""
    failed = [
        (check, outcome) for check, outcome in zip(checks, outcomes, strict=True) if not has_passed(check, outcome)
    ]
    if not failed:
        return f"The candidate's program passed all {len(checks)} checks."
    lines = [f"The candidate's program failed {len(failed)} of {len(checks)} checks:"]
    for check, outcome in failed[:MAX_TOLD]:
        did = outcome.error or f"it shows {outcome.output.strip() or 'nothing'}"
        wanted = f", and must show {check.output.strip()}" if check.output else ""
        lines.append(f"- {check.source.strip()[:MAX_TOLD_CHARS]}\n  {did[:MAX_TOLD_CHARS]}{wanted[:MAX_TOLD_CHARS]}")
    return "\n".join(lines)


def checks_of(question: str, given: tuple[Check, ...] | None = None) -> Checks | None:
    """The checks of a question: the given ones, or else the examples in it. None if there are neither: then the
    question asks for no program."""
    if given is None:
        given = tuple(examples_of(question)) or None
    if given is None:
        return None
    short = _with_newlines(question[:MAX_EXAMPLES_CHARS])
    return Checks(code_answer(short) or short, given)


def examples_of(question: str) -> list[Check]:
    """The examples in a question, at most `MAX_CHECKS`: those at Python's prompt (``>>> f(1)`` and below it ``2``), and
    calls of literals with the value that they return (``f(1) == 2``, ``f(1) -> 2``, ``f(1) returns 2``). Also
    ``>>> f(1) == 2`` with nothing below it means that this is true."""
    text = _QUOTES.sub("\n", _OPENING.sub("", _with_newlines(question[:MAX_EXAMPLES_CHARS])))
    found = (
        check
        for paragraph in _PARAGRAPHS.split(text)
        for check in (_prompts(paragraph) if ">>>" in paragraph else _stated(paragraph))
        if _is_python(check.source)
    )
    return [*islice(found, MAX_CHECKS)]


def _prompts(paragraph: str) -> Iterator[Check]:
    try:
        examples = DocTestParser().get_examples(paragraph)
    except ValueError:  # the indentation of its lines is inconsistent
        return
    for each in examples:
        yield _as_meant(Check(each.source, each.want))


def _as_meant(check: Check) -> Check:
    """An example in the form ``>>> f(1) == 2``, for which nothing is shown, means that this is true."""
    if check.output:
        return check
    try:
        expression = ast.parse(check.source.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return check
    return Check(f"assert ({check.source.strip()}\n)") if isinstance(expression, ast.Compare) else check


def _stated(paragraph: str) -> Iterator[Check]:
    for line in paragraph.splitlines():
        begins = _CALL.search(line) if len(line) <= _MAX_LINE_CHARS else None
        if begins is None:
            continue
        if asserted := _asserted(line.replace("`", " ").strip()):
            yield asserted
            continue
        if _OPERATOR.search(line, 0, begins.start()):
            continue
        text = line[begins.start() :].replace("`", " ")
        for shows in islice(_SHOWS.finditer(text), _MAX_SIGNS):
            call = text[: shows.start()].rstrip(" \t#")
            value = _stated_value(text[shows.end() :]) if call.endswith(")") else None
            if value is not None and _is_call_of_literals(call):
                yield Check(call, "" if value == "None" else value)
                break


def _asserted(line: str) -> Check | None:
    """The check of an assertion, which may have a message; None if the line is none."""
    if not line.startswith("assert "):
        return None
    try:
        [statement] = parsed_python(line).body
    except ValueError:
        return None
    assert isinstance(statement, ast.Assert)
    test = statement.test
    if isinstance(test, ast.Compare) and isinstance(test.left, ast.Call) and isinstance(test.ops[0], ast.Eq):
        call, value = (ast.get_source_segment(line, each) or "" for each in (test.left, test.comparators[0]))
        if len(test.ops) == 1 and _stated_value(value) == value and _is_call_of_literals(call):
            return Check(call, "" if value == "None" else value)
    calls = [each for each in ast.walk(test) if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)]
    of_literals = all(_is_call_of_literals(ast.get_source_segment(line, each) or "") for each in calls)
    return Check(line) if calls and of_literals else None


def _stated_value(text: str) -> str | None:
    """The literal with which a text begins, before a comment or the end of its sentence; None if there is none."""
    for part in (text.partition(" #")[0], text, text.partition(". ")[0]):
        written = part.strip().rstrip(".,;").strip()
        written = _SPELLINGS.get(written.lower(), written)
        if not _LITERAL.match(written):
            continue
        try:
            _value(written)
        except ValueError:
            continue
        return written
    return None


def _is_call_of_literals(text: str) -> bool:
    try:
        called = ast.parse(text, mode="eval").body
        if not isinstance(called, ast.Call) or not isinstance(called.func, ast.Name):
            return False
        for value in (*called.args, *(keyword.value for keyword in called.keywords)):
            ast.literal_eval(value)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return False
    return True


def _is_python(source: str) -> bool:
    try:
        parsed_python(source)
    except ValueError:
        return False
    return True


def _value(literal: str) -> Any:
    """Raises ValueError if the text is no literal, or too long."""
    if len(literal) > MAX_CHECK_CHARS:
        raise ValueError("too long")
    try:
        return ast.literal_eval(literal.strip())
    except (SyntaxError, TypeError, RecursionError, MemoryError, OverflowError) as error:
        raise ValueError("no literal") from error


def _with_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _line(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _expected_error(wanted: str) -> str:
    """The kind of the error that a check expects; empty if it expects none."""
    lines = wanted.strip().splitlines()
    return lines[-1].partition(":")[0].strip() if lines and lines[0].strip() == _TRACEBACK else ""
