"""Input of a job: problems, or requests in the format of OpenAI's batch files; read as a stream."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cluster.evaluation.problem_files import (
    MAX_LINE_BYTES,
    PARQUET,
    BadLine,
    EvalProblem,
    ProblemFileError,
    Record,
    check_format,
    parse_problem,
    read_records,
)
from cluster.jobs.formats import InputKind
from search.tools.fair_threads import Steps, result_of

URLS = ("/v1/chat/completions", "/v1/responses", "/v1/search", "/v1/completions", "/v1/score")
"""Endpoints that a batch request may call."""
MAX_ID_CHARACTERS = 512
MAX_DEPTH = 64
"""Nesting of a request's body. The endpoint takes no deeper one, and Python can read some that it cannot write."""


class BatchRequest(NamedTuple):
    """One request of an OpenAI batch file."""

    custom_id: str
    url: str
    body: dict[str, Any]


class Item(NamedTuple):
    """One non-empty line or one row of the input, with its number, counted from 1."""

    number: int
    work: EvalProblem | BatchRequest | BadLine


class JobInput(NamedTuple):
    """What a scan of the input found. A resumed job must find the same."""

    path: Path
    kind: InputKind
    lines: int
    """Number of non-empty lines, valid or not."""
    last: int
    """Number of the last non-empty line."""
    sha256: str
    checks_field: str | None = None
    """Field of the problems that has the checks of their searches; see `parse_problem`."""

    def items(self) -> Iterator[Item]:
        """Every non-empty line, in order.

        Raises:
            ProblemFileError: it cannot be read.
        """
        for record in _records(self.path):
            if isinstance(record, BadLine):
                yield Item(record.number, record)
            else:
                is_request = self.kind is InputKind.OPENAI
                work = parse_request(record) if is_request else parse_problem(record, self.checks_field)
                yield Item(record.number, work)


def look_at(path: Path, kind: InputKind | None = None) -> JobInput:
    """Scans ``path``. If ``kind`` is not given, the first valid line decides.

    Raises:
        ProblemFileError: it cannot be read, or has no line.
    """
    return result_of(looking_at(path, kind))


def looking_at(path: Path, kind: InputKind | None = None) -> Steps[JobInput]:
    """`look_at` in steps of a line."""
    if path.suffix == PARQUET and kind is InputKind.OPENAI:
        raise ProblemFileError(f"{path}: a batch file is JSON lines, not Parquet")
    digest = hashlib.sha256()
    lines = last = number = 0
    try:
        with path.open("rb") as file:
            if path.suffix != PARQUET:
                check_format(path, file)
            begins, empty = True, True
            while piece := file.readline(MAX_LINE_BYTES + 1):
                digest.update(piece)
                number += begins
                # A line over the limit counts as non-empty, whatever it contains: it is reported as invalid.
                if empty and (piece.strip() or len(piece) > MAX_LINE_BYTES):
                    lines, last, empty = lines + 1, number, False
                if begins := piece.endswith(b"\n"):
                    empty = True
                yield
    except OSError as error:
        raise ProblemFileError(f"cannot read {path}: {error.strerror or error}") from error
    if path.suffix == PARQUET:
        kind, lines = InputKind.PROBLEMS, _rows_in(path)
        last = lines
    if not lines:
        raise ProblemFileError(f"{path} is empty")
    return JobInput(path, kind or _kind_of(path), lines, last, digest.hexdigest())


def parse_request(record: Record) -> BatchRequest | BadLine:
    """The request in a line of a batch file, or why it is invalid."""
    number, fields = record
    custom_id, method, url, body = (fields.get(name) for name in ("custom_id", "method", "url", "body"))
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_ID_CHARACTERS:
        return BadLine(number, f"custom_id must be text of 1 to {MAX_ID_CHARACTERS} characters")
    if any("\ud800" <= character <= "\udfff" for character in custom_id):
        return BadLine(number, "custom_id contains a lone surrogate")
    if method != "POST":
        return BadLine(number, "method must be POST")
    if url not in URLS:
        return BadLine(number, f"url must be one of {', '.join(URLS)}")
    if not isinstance(body, dict):
        return BadLine(number, "body must be an object")
    if _is_deeper(body, MAX_DEPTH):
        return BadLine(number, f"body is nested more than {MAX_DEPTH} deep")
    if body.get("stream"):
        return BadLine(number, "body.stream must be false: a batch is not streamed")
    if body.get("background"):
        return BadLine(number, "body.background must be false: a line ends with its search")
    return BatchRequest(custom_id, url, body)


def _records(path: Path) -> Iterator[Record | BadLine]:
    try:
        yield from read_records(path)
    except OSError as error:
        raise ProblemFileError(f"cannot read {path}: {error.strerror or error}") from error


def _is_deeper(value: dict[str, Any], most: int) -> bool:
    """Whether objects and lists are nested more than ``most`` deep."""
    level: list[dict[str, Any] | list[Any]] = [value]
    for _ in range(most):
        members = (part.values() if isinstance(part, dict) else part for part in level)
        level = [each for several in members for each in several if isinstance(each, dict | list)]
    return bool(level)


def _kind_of(path: Path) -> InputKind:
    first = next((record.fields for record in _records(path) if isinstance(record, Record)), {})
    return InputKind.OPENAI if {"custom_id", "body"} & first.keys() else InputKind.PROBLEMS


def _rows_in(path: Path) -> int:
    from pyarrow import ArrowException, parquet

    try:
        return int(parquet.read_metadata(path).num_rows)
    except ArrowException as error:
        raise ProblemFileError(f"{path} is not a Parquet file that can be read: {error}") from error
