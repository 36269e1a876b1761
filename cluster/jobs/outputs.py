"""What a job writes: results and errors, one line each for a line of the input, appended and never changed.

These two files are all that a job knows of itself: which lines are done stands in them. A line is written in one piece
after its search has ended; what a killed job was at has none, and is done when the job goes on. Beside them, written
before them, stands what the job was (`Identity`): with other settings it cannot go on.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster.evaluation.reports import write_json
from cluster.jobs.formats import InputKind

PIECE_BYTES = 1 << 16
FAILED = "failed"
"""The kind of an error that is not the line's own: asking again may help."""


class OutputError(Exception):
    """The output cannot be written, or is not of this job."""


class Identity(BaseModel):
    """What a job is: the same before and after it was killed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    input_sha256: str
    input_kind: InputKind
    lines: int = Field(ge=1)
    model: str | None
    """That the endpoint serves. None: it does not matter, since each request names its own."""
    search: dict[str, Any]
    """The ``search`` field of every request; empty where requests bring their own."""
    seed: int
    trees: bool


class Lines:
    """Which lines are done: a bit for each."""

    def __init__(self, last: int) -> None:
        self._last = last
        self._bits = bytearray(last // 8 + 1)
        self.count = 0

    def __contains__(self, number: int) -> bool:
        return bool(self._bits[number >> 3] & (1 << (number & 7)))

    def add(self, number: int) -> None:
        """
        Raises:
            ValueError: there is no such line, or it is done already.
        """
        if not 0 < number <= self._last:
            raise ValueError(f"there is no line {number}")
        if number in self:
            raise ValueError(f"line {number} is there twice")
        self._bits[number >> 3] |= 1 << (number & 7)
        self.count += 1


class Outputs:
    """The files of one job, which nobody else writes meanwhile. Use as a context manager.

    ``path`` is the file of results; ``errors`` and ``identity`` stand beside it. Where the results are not there yet,
    the job begins.
    """

    def __init__(self, path: Path, identity: Identity, last: int, again: bool = False) -> None:
        """``last``: the number of the input's last line. ``again``: what failed for other reasons than the line's own
        is to be done again.

        Raises:
            OutputError: the files are another job's, or in use, or cannot be written.
        """
        self.path, self.errors_path, self.identity_path = paths(path)
        self.done = Lines(last)
        self.failed = 0
        self._broken: str | None = None
        try:
            with ExitStack() as opened:
                self._results = self._open(identity)
                opened.callback(os.close, self._results)
                if again:
                    self._forget_failures()
                self._errors = os.open(self.errors_path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
                opened.callback(os.close, self._errors)
                for file, name in ((self._results, self.path), (self._errors, self.errors_path)):
                    _cut_torn_line(file)
                    self._count(name)
                self._opened = opened.pop_all()
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def put(self, line: dict[str, Any]) -> None:
        """Takes the result of one line of the input.

        Raises:
            ValueError: it has a number that JSON has not; nothing was written.
            OutputError: it could not be written.
        """
        self._append(self._results, line)

    def put_error(self, line: dict[str, Any]) -> None:
        """Takes the reason why a line has no result.

        Raises:
            OutputError: it could not be written.
        """
        self._append(self._errors, line)
        self.failed += 1

    def sync(self) -> None:
        """Returns when all of it is on the disk."""
        for file in (self._results, self._errors):
            os.fsync(file)

    def results(self) -> Iterator[dict[str, Any]]:
        """Every result there is, read from the file."""
        return read_lines(self.path)

    def errors(self) -> Iterator[dict[str, Any]]:
        """Every error there is, read from the file."""
        return read_lines(self.errors_path)

    def may_go_better(self) -> bool:
        """Whether a line failed for other reasons than its own: what ``again`` is for."""
        return any(line.get("kind") == FAILED for line in self.errors())

    def _open(self, identity: Identity) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        try:
            file, begins = os.open(self.path, flags | os.O_EXCL, 0o644), True
        except FileExistsError:
            file, begins = os.open(self.path, flags, 0o644), False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A job may have been killed between making the file and saying what it is.
            if begins or not (os.fstat(file).st_size or self.identity_path.exists()):
                self.errors_path.unlink(missing_ok=True)
                write_json(self.identity_path, identity.model_dump(mode="json"))
            self._check(identity)
        except BaseException as error:
            os.close(file)
            if isinstance(error, BlockingIOError):
                raise OutputError(f"another job is writing {self.path}") from None
            raise
        return file

    def _check(self, identity: Identity) -> None:
        try:
            found = Identity.model_validate_json(self.identity_path.read_bytes())
        except (FileNotFoundError, ValidationError) as error:
            raise OutputError(f"{self.path} is there and is no job's: {self.identity_path} does not say so") from error
        compared = [name for name in Identity.model_fields if name != "model" or identity.model is not None]
        other = [name for name in compared if getattr(found, name) != getattr(identity, name)]
        if other:
            was = "; ".join(f"{name} was {getattr(found, name)} and is {getattr(identity, name)}" for name in other)
            raise OutputError(f"{self.path} is of another job: {was}. Name another file, or remove this one")

    def _count(self, path: Path) -> None:
        for line in read_lines(path):
            try:
                self.done.add(line_number(line))
            except (KeyError, TypeError, ValueError) as error:
                raise OutputError(f"{path} is not as a job leaves it: {error}") from error
            self.failed += path == self.errors_path

    def _forget_failures(self) -> None:
        if not self.errors_path.exists():
            return
        draft = self.errors_path.with_name(f"{self.errors_path.name}.{os.getpid()}.tmp")
        try:
            with draft.open("w", encoding="utf-8") as file:
                file.writelines(_text(line) for line in self.errors() if line.get("kind") != FAILED)
            draft.replace(self.errors_path)
        finally:
            draft.unlink(missing_ok=True)

    def _append(self, file: int, line: dict[str, Any]) -> None:
        rest = memoryview(_text(line).encode())
        if self._broken is not None:  # half a line may stand at the end, and there it can be cut off
            raise OutputError(self._broken)
        try:
            while rest:
                rest = rest[os.write(file, rest) :]
        except OSError as error:
            self._broken = f"cannot write {self.path}: {error.strerror or error}"
            raise OutputError(self._broken) from error
        self.done.add(line_number(line))


def paths(path: Path) -> tuple[Path, Path, Path]:
    """The files of results, of errors, and of the job's identity."""
    stem = path.with_suffix("") if path.suffix == ".jsonl" else path
    return path, stem.with_name(f"{stem.name}.errors.jsonl"), stem.with_name(f"{stem.name}.job.json")


def line_number(line: dict[str, Any]) -> int:
    """Which line of the input a result or an error is of."""
    number = line["line"]
    if type(number) is not int:
        raise ValueError(f"line {number!r} is no number")
    return number


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line of a file of JSON objects; a torn last one is passed over.

    Raises:
        OutputError: a line is no JSON object.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                parsed = json.loads(line)
            except ValueError:
                parsed = None
            if not isinstance(parsed, dict):
                raise OutputError(f"{path} is not as a job leaves it: line {number} is no JSON object")
            yield parsed


def _cut_torn_line(file: int) -> None:
    """A job that was killed, or found no room, may have left half a line."""
    end = os.fstat(file).st_size
    while end:
        start = max(0, end - PIECE_BYTES)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    os.ftruncate(file, end)


def _text(line: dict[str, Any]) -> str:
    # ASCII: what a model writes may hold separators that some readers take for the end of a line.
    return json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n"
