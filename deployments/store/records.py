"""JSON records with atomic writes and one reader, ids that are safe as file names, and file locks."""

import errno
import fcntl
import math
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from deployments.store.errors import Damaged, Full, StoreBusy

LOCK_WAIT_S = 5.0
"""Lock timeout, seconds. Work under a lock takes milliseconds."""
DRAFT = ".draft-"
"""Prefix of the names of drafts: incomplete files and directories. Abandoned drafts are swept."""
MAX_RECORD_BYTES = 1 << 20
"""Maximum size of a record, but for those that hold what a client has sent or is told."""
UNREADABLE = (
    errno.EACCES,
    errno.EPERM,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENXIO,
    errno.EIO,
    errno.EBADMSG,
    errno.EUCLEAN,
)
"""Errors that are a file's own. Others, such as too many open files, say nothing about the file."""
Record = TypeVar("Record", bound="Stored")


class Stored(BaseModel):
    """Base of records. Unknown fields, as a later version may write them, are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


def new_id(prefix: str) -> str:
    """Returns an unguessable name: ``prefix`` and 32 hexadecimal digits."""
    return f"{prefix}{secrets.token_hex(16)}"


def is_id(name: str, prefix: str = "") -> bool:
    """Whether ``name`` has the form of `new_id`, and so is safe as a file name."""
    return re.fullmatch(r"[0-9a-f]{32}", name.removeprefix(prefix)) is not None and name.startswith(prefix)


def draft_of(path: Path) -> Path:
    """Returns a new draft path beside ``path``, to be renamed to it."""
    return path.with_name(f"{DRAFT}{secrets.token_hex(8)}")


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file atomically. It is on the disk when this returns."""
    draft = draft_of(path)
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            draft.replace(path)
        except IsADirectoryError:  # damage, which would stay for ever
            discard(path)
            draft.replace(path)
        sync_directory(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Syncs the names in a directory to the disk: until then a crash of the machine may undo a rename or creation."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems sync no directories
            raise
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Creates a directory with its parents, all of them synced, unless it exists."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def write_record(path: Path, record: Stored, most: int = MAX_RECORD_BYTES) -> None:
    """Writes a record with `write_whole`.

    Raises:
        Full: it is longer than ``most`` bytes.
    """
    content = record.model_dump_json().encode()
    if len(content) > most:
        raise Full("bytes of one record", most)
    write_whole(path, content)


def discard(directory: Path) -> None:
    """Removes a directory all at once: it is renamed before its content is removed.

    Raises:
        FileNotFoundError: it has been removed already.
    """
    removed = draft_of(directory)
    directory.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def discard_all(directories: Iterable[Path]) -> None:
    """Removes each directory with `discard`, unless it is gone or the system refuses."""
    for directory in directories:
        with suppress(OSError):
            discard(directory)


def modified(path: Path) -> float:
    """Modification time, Unix seconds; infinity for a missing file, which so never counts as old."""
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return math.inf


def read_json(path: Path, name: str, most: int = MAX_RECORD_BYTES) -> dict[str, Any] | None:
    """Reads a JSON object; None if the file is missing. All stored JSON is read by this function, but for events.

    Raises:
        Damaged: as `open_part`, or the file is longer than ``most`` bytes, or no JSON object.
    """
    with open_part(path, name) or nullcontext() as file:
        if file is None:
            return None
        with readable(name, path.name):
            content = file.read(most + 1)
    if len(content) > most:
        raise Damaged(name, path.name, f"is longer than {most} bytes")
    try:
        value = from_json(content, allow_inf_nan=False)
    except ValueError:
        raise Damaged(name, path.name, "is not valid JSON") from None
    if not isinstance(value, dict):
        raise Damaged(name, path.name, "is not a JSON object")
    return value


def open_part(path: Path, name: str) -> BinaryIO | None:
    """Opens a part of the file, batch or search with the id ``name``; None if it is missing.

    Raises:
        Damaged: it is no regular file, or cannot be read.
    """
    with suppress(FileNotFoundError, NotADirectoryError), readable(name, path.name):
        # A pipe in the file's place would block the opening.
        file = open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK))  # noqa: SIM115
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
        raise Damaged(name, path.name, "is not a file")
    return None


@contextmanager
def readable(name: str, part: str) -> Iterator[None]:
    """Converts errors of the system that concern one file alone.

    Raises:
        Damaged: the part ``part`` cannot be read.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ESTALE:
            raise FileNotFoundError(error.errno, error.strerror) from None
        if error.errno not in UNREADABLE:
            raise
        raise Damaged(name, part, f"cannot be read: {error.strerror}") from None


def read_record(path: Path, kind: type[Record], name: str, most: int = MAX_RECORD_BYTES) -> Record | None:
    """Reads a record; None if it is missing.

    Raises:
        Damaged: as `read_json`, or the record is invalid or another one's.
    """
    value = read_json(path, name, most)
    return None if value is None else checked(value, kind, name, path.name)


def checked(value: dict[str, Any], kind: type[Record], name: str, part: str) -> Record:
    """Returns the record in the stored object ``value``.

    Raises:
        Damaged: a field is invalid, or its id is neither ``name`` nor ends with it.
    """
    try:
        record = kind.model_validate(value)
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        raise Damaged(name, part, f"has an invalid field: {field[:80]}") from None
    if not str(getattr(record, "id", name)).endswith(name):
        raise Damaged(name, part, "belongs to another object")
    return record


@contextmanager
def locked(path: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Holds an exclusive lock on ``path``, a file for this purpose only, until the end of the block. The kernel
    releases the lock of a process that dies.

    Raises:
        StoreBusy: another process still holds it after ``wait_s``.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        until = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise StoreBusy(f"{path.name} is locked") from None
                time.sleep(0.01)
        yield
    finally:
        os.close(file)


def is_locked(path: Path) -> bool:
    """Whether the lock is held now. Concurrent checks do not disturb each other.

    Raises:
        FileNotFoundError: it was never held.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
