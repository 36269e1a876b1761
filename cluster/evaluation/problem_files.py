r"""Problem files: JSON lines or Parquet.

They have ``problem`` and ``answer``, as MATH-500 and ``banyan problems`` write them, ``problem`` and a ``solution``
with ``\boxed{42}``, as MATH, or ``question`` and a solution that ends in ``#### 42``, as GSM8K.
Records of HumanEval and MBPP have a test instead of an answer (`cluster.evaluation.code_test`).

A bad line is reported by its number and the reason. The caller chooses whether to skip it or to refuse the whole file,
which happens before any request is sent.
"""

import codecs
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from enum import StrEnum
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from cluster.evaluation.code_test import CodeTest, code_question, code_test
from search.answers.extraction import boxed_answer
from search.settings import checked_checks

MAX_LINE_BYTES = 1 << 20
MAX_PROBLEMS = 100_000
MAX_BAD_LINES = 1_000
PARQUET = ".parquet"
PARQUET_ROWS = 256
"""Rows held in memory at once."""
OTHER_FORMATS = {
    codecs.BOM_UTF16_LE: "UTF-16 text; convert it: iconv -f UTF-16 -t UTF-8",
    codecs.BOM_UTF16_BE: "UTF-16 text; convert it: iconv -f UTF-16 -t UTF-8",
    b"{\0": "UTF-16 text; convert it: iconv -f UTF-16LE -t UTF-8",
    b"\0{": "UTF-16 text; convert it: iconv -f UTF-16BE -t UTF-8",
    b"\x1f\x8b": "compressed by gzip; unpack it: gunzip --keep",
    b"PAR1": "a Parquet file; give it a name that ends in .parquet",
}
"""By their first bytes, what files are that one may take for JSON lines, and what to do."""
FINAL_ANSWER = "####"
"""Marker before the answer at the end of GSM8K's solutions."""


Parsed = TypeVar("Parsed")


class OnBadLine(StrEnum):
    """What to do about a line that cannot be used."""

    REFUSE = "refuse"
    """Refuse the whole file."""
    SKIP = "skip"
    """Skip the line."""


class EvalProblem(NamedTuple):
    """One question with the answer it is graded against."""

    unique_id: str
    """The file's own ``unique_id``, or a hash of the question if it has none."""
    problem: str
    answer: str
    level: int | str | None = None
    test: CodeTest | None = None
    """The test that a program must pass, in place of ``answer``, which is then empty."""
    checks: tuple[object, ...] | None = None
    """The request's ``search.checks``; None: it has none."""

    @property
    def search(self) -> dict[str, object]:
        """What the problem adds to the ``search`` field of its request."""
        return {} if self.checks is None else {"checks": list(self.checks)}


class BadLine(NamedTuple):
    """A line that cannot be used."""

    number: int
    """Counted from 1."""
    reason: str

    def __str__(self) -> str:
        return f"line {self.number}: {self.reason}"


class Record(NamedTuple):
    """One line of a file that is a JSON object, or one row of a table."""

    number: int
    """Counted from 1."""
    fields: dict[str, Any]


class ProblemFile(NamedTuple):
    """Content of a problem file: the usable problems in order, and the skipped lines."""

    problems: list[EvalProblem]
    skipped: list[BadLine]


class ProblemFileError(ValueError):
    """A problem file cannot be used. ``bad_lines``: the lines that are the reason, if any."""

    def __init__(self, message: str, bad_lines: tuple[BadLine, ...] = ()) -> None:
        super().__init__(message, bad_lines)
        self.message = message
        self.bad_lines = bad_lines

    def __str__(self) -> str:
        return self.message


def read_problems(
    path: Path,
    on_bad_line: OnBadLine = OnBadLine.REFUSE,
    limit: int | None = None,
    checks_field: str | None = None,
) -> ProblemFile:
    """The first ``limit`` problems of a file (all without a limit); skips empty lines.

    ``checks_field``: the field of a record that has the checks of its search; see `parse_problem`.

    Raises:
        ProblemFileError: the file cannot be read, has no usable line, has more than ``MAX_PROBLEMS``
            problems, or has bad lines that are to be refused.
    """

    def parse(record: Record) -> list[EvalProblem] | BadLine:
        parsed = parse_problem(record, checks_field)
        return parsed if isinstance(parsed, BadLine) else [parsed]

    return ProblemFile(*usable_lines(path, parse, "problems", on_bad_line, limit))


def usable_lines(
    path: Path,
    parse: Callable[[Record], list[Parsed] | BadLine],
    noun: str,
    on_bad_line: OnBadLine = OnBadLine.REFUSE,
    limit: int | None = None,
) -> tuple[list[Parsed], list[BadLine]]:
    """The first ``limit`` items of a file (all without a limit), and the bad lines among them; skips empty lines.

    Args:
        parse: returns the items of a line.
        noun: names the items in messages.

    Raises:
        ProblemFileError: as `read_problems`.
    """
    items: list[Parsed] = []
    bad: list[BadLine] = []
    try:
        for record in read_records(path):
            if limit is not None and len(items) >= limit:
                break
            parsed = parse(record) if isinstance(record, Record) else record
            if isinstance(parsed, BadLine):
                bad.append(parsed)
            else:
                items += parsed
            if len(items) > MAX_PROBLEMS:
                raise ProblemFileError(f"{path} has more than {MAX_PROBLEMS:,} {noun}")
            if len(bad) >= MAX_BAD_LINES:
                raise ProblemFileError(f"{path} has {MAX_BAD_LINES:,} bad lines or more", tuple(bad))
    except OSError as error:
        raise ProblemFileError(f"cannot read {path}: {error.strerror or error}") from error
    if bad and on_bad_line is OnBadLine.REFUSE:
        raise ProblemFileError(f"{path} has {_count(len(bad), 'bad line')}", tuple(bad))
    if not items:
        raise ProblemFileError(f"{path} has no {noun}", tuple(bad))
    return items[:limit], bad


def read_records(path: Path, max_line_bytes: int | None = None) -> Iterator[Record | BadLine]:
    """Streams the non-empty lines of a file, or the rows of one whose name ends in ``.parquet``.

    Raises:
        ProblemFileError: a ``.parquet`` file is not valid Parquet, or another file is no text in UTF-8.
        OSError: the file cannot be read.
    """
    if path.suffix == PARQUET:
        yield from _rows(path)
        return
    if max_line_bytes is None:
        max_line_bytes = MAX_LINE_BYTES
    with path.open("rb") as file:
        check_format(path, file)
        for number, line in enumerate(_lines(file, max_line_bytes), start=1):
            if line is None:
                yield BadLine(number, f"longer than {max_line_bytes:,} bytes")
            elif line.strip():
                yield _record(number, line)


def check_format(path: Path, file: BufferedReader) -> None:
    """Checks that ``file``, opened at ``path`` and not read yet, is not one of `OTHER_FORMATS`: each of its lines would
    be bad.

    Raises:
        ProblemFileError: it is; the message says what it is and what to do.
    """
    if (name := other_format(file)) is not None:
        raise ProblemFileError(f"{path} is {name}")


def other_format(file: BufferedReader) -> str | None:
    """What a file is by its first bytes, and what to do about it; None if it may be JSON lines. Reads nothing of it."""
    head = file.peek(max(map(len, OTHER_FORMATS)))
    return next((name for magic, name in OTHER_FORMATS.items() if head.startswith(magic)), None)


def parse_problem(record: Record, checks_field: str | None = None) -> EvalProblem | BadLine:
    """The problem in a record. ``checks_field``: the field with its checks, a list or a single one, in the form of
    ``search.checks``."""
    number, fields = record
    checks = None
    if checks_field is not None:
        given = fields.get(checks_field)
        checks = tuple(given) if isinstance(given, list) else (given,)
        try:
            checked_checks(checks)
        except ValueError as error:
            return BadLine(number, f"{checks_field!r} has no checks: {error}")
    if (test := code_test(fields)) is not None:
        fields = {**fields, "problem": code_question(fields), "unique_id": fields.get("task_id")}
    name = "problem" if "problem" in fields or "question" not in fields else "question"
    fields = {**fields, **_as_text(fields)}
    reason = _reason(fields, name, "text")
    if reason is None and test is None:
        reason = _reason(fields, "answer", "text or a finite number")
    if reason is None and fields.get("unique_id") is not None:
        reason = _reason(fields, "unique_id", "text or an integer")
    if reason is not None:
        boxless = reason == "no 'answer'" and "solution" in fields
        return BadLine(number, reason + (r", and no \boxed{answer} in 'solution'" if boxless else ""))
    level = fields.get("level")
    unique_id = fields.get("unique_id") or hashlib.sha256(fields[name].encode()).hexdigest()[:16]
    known_level = level if isinstance(level, int | str) and not isinstance(level, bool) else None
    answer = fields["answer"] if test is None else ""
    return EvalProblem(unique_id, fields[name], answer, known_level, test, checks)


def _as_text(fields: dict[str, Any]) -> dict[str, str]:
    """The answer and the id of a record as text, as far as they are written otherwise and mean a text."""
    found: dict[str, str] = {}
    answer, unique_id, solution = (fields.get(name) for name in ("answer", "unique_id", "solution"))
    if isinstance(answer, int | float) and not isinstance(answer, bool) and math.isfinite(answer):
        found["answer"] = str(answer)
    elif isinstance(answer, str) and FINAL_ANSWER in answer:
        found["answer"] = answer.rpartition(FINAL_ANSWER)[2].strip()
    elif answer is None and isinstance(solution, str) and (boxed := boxed_answer(solution)) is not None:
        found["answer"] = boxed
    if isinstance(unique_id, int) and not isinstance(unique_id, bool):
        found["unique_id"] = str(unique_id)
    return found


def _rows(path: Path) -> Iterator[Record]:
    from pyarrow import ArrowException, parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as table:
            for batch in table.iter_batches(PARQUET_ROWS):
                for fields in batch.to_pylist():
                    number += 1
                    yield Record(number, fields)
    except ArrowException as error:
        raise ProblemFileError(f"{path} is not a Parquet file that can be read: {error}") from error


def _lines(file: BinaryIO, max_bytes: int) -> Iterator[bytes | None]:
    """The file's lines; None for one over the limit, which is read in pieces and dropped."""
    while line := file.readline(max_bytes + 1):
        if len(line) <= max_bytes:
            yield line
            continue
        while not line.endswith(b"\n") and (rest := file.readline(max_bytes)):
            line = rest
        yield None


def _record(number: int, line: bytes) -> Record | BadLine:
    try:
        fields = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        return BadLine(number, f"not UTF-8 (byte {error.start + 1})")
    except (ValueError, RecursionError) as error:
        return BadLine(number, f"not JSON ({getattr(error, 'msg', None) or 'nested too deeply'})")
    if not isinstance(fields, dict):
        return BadLine(number, f"must be a JSON object, not {_kind(fields)}")
    return Record(number, fields)


def _reason(fields: dict[str, object], name: str, wanted: str) -> str | None:
    """The reason why a field cannot be used as text; None if it can."""
    if name not in fields:
        return f"no {name!r}"
    value = fields[name]
    if not isinstance(value, str):
        return f"{name!r} must be {wanted}, not {_kind(value)}"
    if not value.strip():
        return f"{name!r} is empty"
    if "\0" in value:
        return f"{name!r} contains a NUL character"
    if any("\ud800" <= character <= "\udfff" for character in value):
        return f"{name!r} contains a lone surrogate"
    return None


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case float() if not math.isfinite(value):
            return f"{value}"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
