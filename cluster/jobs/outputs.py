"""Output files of a job: results and errors, one line for each line of the input, append-only.

These two files are the only state of a job: they say which lines are done. A line is written when its search has
ended. Input lines that were in progress when a job was killed have none, and are done when the job resumes. A third
file, written first, holds the job's `Identity`: a job cannot resume with other settings.
"""

import fcntl
import json
import os
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster.jobs.formats import InputKind
from deployments.store import write_whole

PIECE_BYTES = 1 << 16
FAILED = "failed"
"""Kind of an error of the service: a retry may succeed."""


class OutputError(Exception):
    """The output cannot be written, or belongs to another job."""


class Damaged(OutputError):
    """A file is not as a job leaves it, or is another job's."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


class OutputFull(OutputError):
    """The results would be longer than they may be."""


class Identity(BaseModel):
    """What identifies a job: the same when it resumes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    input_sha256: str
    input_kind: InputKind
    lines: int = Field(ge=1)
    model: str | None
    """Model that the endpoint serves; None if each request names its own."""
    search: dict[str, Any]
    """The ``search`` field of every request; empty if requests have their own."""
    seed: int
    trees: bool
    checks_field: str | None = None


class Lines:
    """Set of the lines that are done, with one bit for each."""

    def __init__(self, last: int) -> None:
        self._last = last
        self._bits = bytearray(last // 8 + 1)
        self.count = 0

    def __contains__(self, number: int) -> bool:
        return bool(self._bits[number >> 3] & (1 << (number & 7)))

    def add(self, number: int) -> None:
        """Marks a line as done.

        Raises:
            ValueError: there is no such line, or it is done already.
        """
        if not 0 < number <= self._last:
            raise ValueError(f"there is no line {number}")
        if number in self:
            raise ValueError(f"line {number} occurs twice")
        self._bits[number >> 3] |= 1 << (number & 7)
        self.count += 1


class Outputs:
    """The files of one job, locked against other jobs. Use as a context manager.

    ``path`` is the file of results; the errors and the identity are beside it. If the results do not exist yet, the job
    is new.
    """

    def __init__(
        self, path: Path, identity: Identity, last: int, again: bool = False, most_bytes: int | None = None
    ) -> None:
        """``last``: number of the input's last line. ``again``: whether to retry lines with an error of kind `FAILED`.
        ``most_bytes``: limit of the results and errors together, for new results.

        Raises:
            Damaged: the files are not as a job leaves them, or belong to another job.
            OutputError: the files are in use, or cannot be written.
        """
        self._most_bytes = most_bytes
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
                self._bytes = sum(os.fstat(file).st_size for file in (self._results, self._errors))
                # Closed with this object at the latest: a caller that is cancelled while a thread opens the files never
                # gets it, and they would stay locked.
                self._close = weakref.finalize(self, opened.pop_all().close)
        except IsADirectoryError as error:
            raise Damaged(path, f"or a file beside it is a directory: {error.filename}") from error
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def put(self, line: dict[str, Any]) -> None:
        """Appends the result of one input line.

        Raises:
            ValueError: it contains a number that JSON cannot express, or is nested too deeply; nothing was written.
            OutputFull: the results would become too long; nothing was written.
            OutputError: it could not be written.
        """
        text = _text(line)
        if self._most_bytes is not None and self._bytes + len(text) > self._most_bytes:
            raise OutputFull(f"the results would be longer than {self._most_bytes} bytes")
        self._append(self._results, text, line_number(line))

    def put_error(self, line: dict[str, Any]) -> None:
        """Appends the error of one input line.

        Raises:
            OutputError: it could not be written.
        """
        self._append(self._errors, _text(line), line_number(line))
        self.failed += 1

    def sync(self) -> None:
        """Syncs both files to the disk."""
        for file in (self._results, self._errors):
            os.fsync(file)

    def results(self) -> Iterator[dict[str, Any]]:
        """All results so far, read from the file."""
        return read_lines(self.path)

    def errors(self) -> Iterator[dict[str, Any]]:
        """All errors so far, read from the file."""
        return read_lines(self.errors_path)

    def may_go_better(self) -> bool:
        """Whether a line has an error of kind `FAILED`, which ``again`` retries."""
        return any(line.get("kind") == FAILED for line in self.errors())

    def _open(self, identity: Identity) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        try:
            file, begins = os.open(self.path, flags | os.O_EXCL, 0o644), True
        except FileExistsError:
            file, begins = os.open(self.path, flags, 0o644), False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A job may have been killed after creating the file, before writing its identity.
            if begins or not (os.fstat(file).st_size or self.identity_path.exists()):
                self.errors_path.unlink(missing_ok=True)
                write_whole(self.identity_path, identity.model_dump_json().encode())
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
            raise Damaged(
                self.path, f"exists but belongs to no job: {self.identity_path.name} is missing or invalid"
            ) from error
        compared = [name for name in Identity.model_fields if name != "model" or identity.model is not None]
        other = [name for name in compared if getattr(found, name) != getattr(identity, name)]
        if other:
            was = "; ".join(f"{name} was {getattr(found, name)} and is {getattr(identity, name)}" for name in other)
            raise Damaged(self.path, f"belongs to another job: {was}. Choose another file, or remove this one")

    def _count(self, path: Path) -> None:
        for line in read_lines(path):
            try:
                self.done.add(line_number(line))
            except (KeyError, TypeError, ValueError) as error:
                raise Damaged(path, f"is damaged: {error}") from error
            self.failed += path == self.errors_path

    def _forget_failures(self) -> None:
        if not self.errors_path.exists():
            return
        draft = self.errors_path.with_name(f"{self.errors_path.name}.{os.getpid()}.tmp")
        try:
            with draft.open("wb") as file:
                file.writelines(_text(line) for line in self.errors() if line.get("kind") != FAILED)
            draft.replace(self.errors_path)
        finally:
            draft.unlink(missing_ok=True)

    def _append(self, file: int, text: bytes, number: int) -> None:
        rest = memoryview(text)
        if self._broken is not None:  # a torn line can only be cut off at the end
            raise OutputError(self._broken)
        try:
            while rest:
                rest = rest[os.write(file, rest) :]
        except OSError as error:
            path = self.path if file == self._results else self.errors_path
            self._broken = f"cannot write {path}: {error.strerror or error}"
            raise OutputError(self._broken) from error
        self._bytes += len(text)
        self.done.add(number)


def paths(path: Path) -> tuple[Path, Path, Path]:
    """Paths of the results, the errors and the job's identity."""
    stem = path.with_suffix("") if path.suffix == ".jsonl" else path
    return path, stem.with_name(f"{stem.name}.errors.jsonl"), stem.with_name(f"{stem.name}.job.json")


def line_number(line: dict[str, Any]) -> int:
    """Number of the input line of a result or an error."""
    number = line["line"]
    if type(number) is not int:
        raise ValueError(f"line {number!r} is not a number")
    return number


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Complete lines of a file of JSON objects; skips a torn last line.

    Raises:
        Damaged: a line is not a JSON object.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                parsed = json.loads(line)
            except (ValueError, RecursionError):
                parsed = None
            if not isinstance(parsed, dict):
                raise Damaged(path, f"is damaged: line {number} is not a JSON object")
            yield parsed


def _cut_torn_line(file: int) -> None:
    """Cuts off a torn last line, as left by a job that was killed or ran out of disk space."""
    end = os.fstat(file).st_size
    while end:
        start = max(0, end - PIECE_BYTES)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    os.ftruncate(file, end)


def _text(line: dict[str, Any]) -> bytes:
    # ASCII: a model's text may contain separators that some readers take for line ends.
    try:
        return json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
