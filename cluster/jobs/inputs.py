"""What a job is given: problems, or requests as OpenAI's batch files have them; read as a stream, line by line."""

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
    parse_problem,
    read_records,
)
from cluster.jobs.formats import InputKind

URLS = ("/v1/chat/completions", "/v1/responses", "/v1/search", "/v1/completions", "/v1/score")
"""What a batch request may ask for."""
MAX_ID_CHARACTERS = 512


class BatchRequest(NamedTuple):
    """One request of an OpenAI batch file."""

    custom_id: str
    url: str
    body: dict[str, Any]


class Item(NamedTuple):
    """One line of the input that is not empty, counted from 1, or one row."""

    number: int
    work: EvalProblem | BatchRequest | BadLine


class JobInput(NamedTuple):
    """The input as it was found: what a job that goes on must find again."""

    path: Path
    kind: InputKind
    lines: int
    """Those that are not empty, usable or not."""
    last: int
    """The number of the last of them."""
    sha256: str

    def items(self) -> Iterator[Item]:
        """Every line that is not empty, in order.

        Raises:
            ProblemFileError: it cannot be read.
        """
        parse = parse_request if self.kind is InputKind.OPENAI else parse_problem
        for record in _records(self.path):
            if isinstance(record, BadLine):
                yield Item(record.number, record)
            else:
                yield Item(record.number, parse(record))


def look_at(path: Path, kind: InputKind | None = None) -> JobInput:
    """What ``path`` holds; ``kind`` is told by its first usable line where it is not given.

    Raises:
        ProblemFileError: it cannot be read, or has no line.
    """
    if path.suffix == PARQUET and kind is InputKind.OPENAI:
        raise ProblemFileError(f"{path}: a batch file is JSON lines, not Parquet")
    digest = hashlib.sha256()
    lines = last = number = 0
    try:
        with path.open("rb") as file:
            begins, empty = True, True
            while piece := file.readline(MAX_LINE_BYTES + 1):
                digest.update(piece)
                number += begins
                # What is longer than a line may be counts as one, whatever is in it: it is named as wrong.
                if empty and (piece.strip() or len(piece) > MAX_LINE_BYTES):
                    lines, last, empty = lines + 1, number, False
                if begins := piece.endswith(b"\n"):
                    empty = True
    except OSError as error:
        raise ProblemFileError(f"cannot read {path}: {error.strerror or error}") from error
    if path.suffix == PARQUET:
        kind, lines = InputKind.PROBLEMS, _rows_in(path)
        last = lines
    if not lines:
        raise ProblemFileError(f"{path} is empty")
    return JobInput(path, kind or _kind_of(path), lines, last, digest.hexdigest())


def parse_request(record: Record) -> BatchRequest | BadLine:
    """The request in a line of a batch file."""
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
    if body.get("stream"):
        return BadLine(number, "body.stream must be false: a batch is not streamed")
    return BatchRequest(custom_id, url, body)


def _records(path: Path) -> Iterator[Record | BadLine]:
    try:
        yield from read_records(path)
    except OSError as error:
        raise ProblemFileError(f"cannot read {path}: {error.strerror or error}") from error


def _kind_of(path: Path) -> InputKind:
    first = next((record.fields for record in _records(path) if isinstance(record, Record)), {})
    return InputKind.OPENAI if {"custom_id", "body"} & first.keys() else InputKind.PROBLEMS


def _rows_in(path: Path) -> int:
    from pyarrow import ArrowException, parquet

    try:
        return int(parquet.read_metadata(path).num_rows)
    except ArrowException as error:
        raise ProblemFileError(f"{path} is not a Parquet file that can be read: {error}") from error
