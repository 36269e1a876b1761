"""JSON records with atomic writes, ids that are safe as file names, and file locks."""

import errno
import fcntl
import math
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from deployments.store.errors import StoreBusy

LOCK_WAIT_S = 5.0
"""Lock timeout, seconds. Work under a lock takes milliseconds."""
DRAFT = ".draft-"
"""Prefix of the names of drafts: incomplete files and directories. Abandoned drafts are swept."""
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


def write_record(path: Path, record: Stored) -> None:
    """Writes a record with `write_whole`."""
    write_whole(path, record.model_dump_json().encode())


def modified(path: Path) -> float:
    """Modification time, Unix seconds; infinity for a missing file, which so never counts as old."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return math.inf


def read_record(path: Path, kind: type[Record]) -> Record | None:
    """Reads a record; None if it is missing or invalid."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None


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
