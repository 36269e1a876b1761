"""Small JSON records that others read while they are written, names that nobody can make a path of, and locks."""

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
"""What is done under a lock takes milliseconds."""
DRAFT = ".draft-"
"""Begins the name of whatever is not whole yet; what is left of it is swept away."""
Record = TypeVar("Record", bound="Stored")


class Stored(BaseModel):
    """Base of records. One that a later version wrote is read, without what is not known of here."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


def new_id(prefix: str) -> str:
    """A name that nobody can guess: ``prefix`` and 32 hexadecimal digits."""
    return f"{prefix}{secrets.token_hex(16)}"


def is_id(name: str, prefix: str = "") -> bool:
    """Whether ``name`` is one of ours, and so safe as the name of a file."""
    return re.fullmatch(r"[0-9a-f]{32}", name.removeprefix(prefix)) is not None and name.startswith(prefix)


def draft_of(path: Path) -> Path:
    """Where what is to be ``path`` is made."""
    return path.with_name(f"{DRAFT}{secrets.token_hex(8)}")


def write_whole(path: Path, content: bytes) -> None:
    """Writes it whole or not at all, and to the disk."""
    draft = draft_of(path)
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_record(path: Path, record: Stored) -> None:
    """As `write_whole` does."""
    write_whole(path, record.model_dump_json().encode())


def modified(path: Path) -> float:
    """Unix seconds; infinity where it is gone, which is never old."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return math.inf


def read_record(path: Path, kind: type[Record]) -> Record | None:
    """None where there is none, or none that can be understood."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None


@contextmanager
def locked(path: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Alone with ``path``, a file for this only, until the end of the block. The kernel gives the lock of a process
    that dies to others.

    Raises:
        StoreBusy: somebody else has it, and has had it for ``wait_s``.
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
    """Whether somebody is alone with it now. Asking keeps nobody from asking.

    Raises:
        FileNotFoundError: nobody ever was.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
