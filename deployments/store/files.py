"""The files of one owner: bytes, and a record beside them."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal

from deployments.store.errors import Damaged, Full, NotThere
from deployments.store.records import (
    LOCK_WAIT_S,
    Stored,
    draft_of,
    is_id,
    locked,
    make_directory,
    modified,
    new_id,
    open_part,
    read_record,
    sync_directory,
    write_record,
)
from deployments.store.settings import StoreSettings

PREFIX = "file-"
PIECE_BYTES = 1 << 20
Purpose = Literal["batch", "batch_output"]


class FileRecord(Stored):
    """Metadata of a file."""

    id: str
    filename: str
    purpose: Purpose
    bytes: int
    created: float
    """Unix seconds, as all times here."""
    expires: float


class Files:
    """The files of one owner. A file exists if its record does: bytes are written before it and removed after it."""

    def __init__(self, directory: Path, settings: StoreSettings) -> None:
        self._directory = directory
        self._settings = settings

    def check_room(self) -> None:
        """Checks that a file can be added.

        Raises:
            Full: the limit of files or of bytes is reached.
        """
        uploaded = sum(record.purpose == "batch" for record in self._records())
        if uploaded >= self._settings.files_max:
            raise Full("files", self._settings.files_max, "files_max")
        self.check_bytes()

    def check_bytes(self, more: int = 0) -> None:
        """Checks the limit of bytes of all files.

        Raises:
            Full: it is reached, or would be exceeded by ``more`` bytes.
        """
        total, most = sum(record.bytes for record in self._records()), self._settings.bytes_max
        if total >= most or total + more > most:
            raise Full("bytes of files", most, "bytes_max")

    def add(self, source: BinaryIO, filename: str, keep_s: float | None = None) -> FileRecord:
        """Stores ``source`` as an input file of batches. ``keep_s``: lifetime in seconds, at most that of the settings.

        Raises:
            Full: a limit would be exceeded; nothing is stored.
            StoreBusy: the lock was not free in time.
        """
        make_directory(self._directory)
        file_id = new_id(PREFIX)
        draft = draft_of(self._data(file_id))
        try:
            with draft.open("xb") as file:
                size = self._copied(source, file)
            with locked(self._directory / "lock", LOCK_WAIT_S):
                self.check_room()
                self.check_bytes(size)
                kept_s = min(self._settings.keep_s, keep_s or self._settings.keep_s)
                return self._put(draft, file_id, filename, "batch", size, kept_s)
        finally:
            draft.unlink(missing_ok=True)

    def adopt(self, path: Path, file_id: str, filename: str, keep_s: float | None = None) -> FileRecord:
        """Stores ``path`` as an output file of a batch, under an id that the caller derives from the batch: repeated
        calls store one file. No limit applies, since the results are paid for."""
        with suppress(NotThere, Damaged):
            self.path(file_id)
            return self.get(file_id)
        make_directory(self._directory)
        draft = draft_of(self._data(file_id))
        try:
            link_or_copy(path, draft)
            os.utime(draft)  # a hard link has its file's age: without a record yet, `sweep` would remove it
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            kept_s = min(self._settings.keep_s, keep_s or self._settings.keep_s)
            return self._put(draft, file_id, filename, "batch_output", draft.stat().st_size, kept_s)
        finally:
            draft.unlink(missing_ok=True)

    def get(self, file_id: str) -> FileRecord:
        """Returns a file's record.

        Raises:
            NotThere: the file does not exist, or has expired.
        """
        record = read_record(self._record(file_id), FileRecord, file_id) if is_id(file_id, PREFIX) else None
        if record is None or record.expires <= time.time():
            raise NotThere("file", file_id)
        return record

    def path(self, file_id: str) -> Path:
        """Path of the file's bytes.

        Raises:
            NotThere, Damaged: as for `open`.
        """
        _, file = self.open(file_id)
        file.close()
        return self._data(file_id)

    def open(self, file_id: str) -> tuple[FileRecord, BinaryIO]:
        """Opens the file's bytes.

        Raises:
            NotThere: as for ``get``.
            Damaged: they are missing, or not as many as they were.
        """
        record, path = self.get(file_id), self._data(file_id)
        if (file := open_part(path, file_id)) is None:
            self.get(file_id)  # it may have been removed meanwhile, the record first
            raise Damaged(file_id, path.name, "is missing")
        if (size := os.fstat(file.fileno()).st_size) != record.bytes:
            file.close()
            raise Damaged(file_id, path.name, f"has {size} bytes instead of {record.bytes}")
        return record, file

    def newest_first(self) -> list[FileRecord]:
        """All files but those whose record is damaged."""
        now = time.time()
        alive = [record for record in self._records() if record.expires > now]
        return sorted(alive, key=lambda record: (record.created, record.id), reverse=True)

    def delete(self, file_id: str) -> None:
        """Removes a file, damaged or not.

        Raises:
            NotThere: as for ``get``.
        """
        with suppress(Damaged):
            self.get(file_id)
        self._drop(file_id)

    def sweep(self, before: float) -> None:
        """Removes expired files, and bytes without a record that are older than ``before``, Unix seconds."""
        now = time.time()
        for record in list(self._records()):
            if record.expires <= now:
                self._drop(record.id)
        for entry in _entries(self._directory):
            orphan = entry.name.startswith(".") or (entry.suffix == ".data" and not entry.with_suffix(".json").exists())
            if orphan and modified(entry) < before:
                _unlink(entry)
            elif entry.suffix == ".json" and self._is_damaged(entry) and modified(entry) + self._settings.keep_s <= now:
                self._drop(entry.stem)

    def _put(self, draft: Path, file_id: str, filename: str, purpose: Purpose, size: int, keep_s: float) -> FileRecord:
        now = time.time()
        record = FileRecord(
            id=file_id, filename=filename, purpose=purpose, bytes=size, created=now, expires=now + keep_s
        )
        draft.replace(self._data(file_id))
        sync_directory(self._directory)  # before the record says that it is there
        write_record(self._record(file_id), record)
        return record

    def _copied(self, source: BinaryIO, file: BinaryIO) -> int:
        size = 0
        while piece := source.read(PIECE_BYTES):
            size += len(piece)
            if size > self._settings.file_bytes_max:
                raise Full("bytes of one file", self._settings.file_bytes_max, "file_bytes_max")
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        return size

    def _records(self) -> Iterator[FileRecord]:
        for entry in _entries(self._directory):
            with suppress(Damaged):
                if entry.suffix == ".json" and (record := read_record(entry, FileRecord, entry.stem)) is not None:
                    yield record

    def _is_damaged(self, entry: Path) -> bool:
        try:
            read_record(entry, FileRecord, entry.stem)
        except Damaged:
            return True
        return False

    def _drop(self, file_id: str) -> None:
        _unlink(self._record(file_id))
        _unlink(self._data(file_id))

    def _record(self, file_id: str) -> Path:
        return self._directory / f"{file_id}.json"

    def _data(self, file_id: str) -> Path:
        return self._directory / f"{file_id}.data"


def link_or_copy(path: Path, target: Path) -> None:
    """Hard-links or copies ``path`` to ``target``, which outlives it. Replaces no existing ``target``."""
    try:
        os.link(path, target)
    except FileExistsError:
        return
    except OSError:  # the file system has no hard links
        with suppress(FileExistsError):
            _copy(path, target)


def _unlink(path: Path) -> None:
    """Removes a file, or the directory in its place."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _copy(path: Path, target: Path) -> None:
    with path.open("rb") as source, target.open("xb") as copy:
        try:
            shutil.copyfileobj(source, copy)
            copy.flush()
            os.fsync(copy.fileno())
        except BaseException:
            target.unlink()
            raise


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []
