"""The batches of one owner: what was asked for, that it is to end, and how far it is.

Three files, each with one writer, so that none needs to look at another before it writes: the record by the controller
that was asked, the mark of a cancellation by any, the state by the runner that has the lease.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path

from pydantic import Field

from deployments.store.errors import Full, NotThere
from deployments.store.files import PREFIX as FILE_PREFIX
from deployments.store.files import link_or_copy
from deployments.store.records import (
    DRAFT,
    LOCK_WAIT_S,
    Stored,
    draft_of,
    is_id,
    locked,
    new_id,
    read_record,
    write_record,
)
from deployments.store.settings import StoreSettings

PREFIX = "batch_"
RECORD, STATE, LEASE, CANCEL = "record.json", "state.json", "lease", "cancel"
"""What stays of a batch that has ended."""


class BatchStatus(StrEnum):
    """As OpenAI's."""

    VALIDATING = "validating"
    """Its file has not been read yet."""
    FAILED = "failed"
    """Its file is wrong, and nothing of it was done; or its key was removed, and what was done by then has its
    results."""
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    """All is done but the files of results."""
    COMPLETED = "completed"
    EXPIRED = "expired"
    """Its window has closed: what was done by then has its results."""
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED)


class LineError(Stored):
    """Why a batch failed."""

    code: str
    message: str
    line: int | None = None
    """Of its file, counted from 1."""
    param: str | None = None


class BatchUsage(Stored):
    """Tokens of all requests that have a result."""

    input_tokens: int
    cached_tokens: int
    """Of these, read from a cache."""
    output_tokens: int
    reasoning_tokens: int
    """Of these, not on an answering path."""


class BatchRecord(Stored):
    """What was asked for."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    """As it was written."""
    created: float
    """Unix seconds, as all times here."""
    expires: float
    """The window closes."""
    metadata: dict[str, str] | None = None
    output_keep_s: float | None = None
    """For so long the files of results are kept, where it is shorter than the others are."""


class BatchState(Stored):
    """How far it is."""

    status: BatchStatus = BatchStatus.VALIDATING
    in_progress: float | None = None
    """When it was so, as of the next two."""
    finalizing: float | None = None
    ended: float | None = None
    total: int = 0
    """Requests."""
    completed: int = 0
    failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: tuple[LineError, ...] = Field(())
    ending: BatchStatus | None = None
    """How it will end, once that is decided: nothing is asked for it from then on, whoever goes on with it."""
    usage: BatchUsage | None = None
    """Of one that has ended."""
    passes: int = 0
    """How often every request was asked for, and some failed for other reasons than their own."""
    rests_until: float | None = None
    """Since such a pass: nothing is asked for before."""
    again: bool = False
    """Whether what has failed so is to be asked for again. A pass in which a runner died goes on without that."""
    refused_since: float | None = None
    """When its key was refused first, and nothing of it has been done since."""


class Batch:
    """One batch, in its directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.id = directory.name
        self.input_path = directory / "input.jsonl"
        """The file as it was when the batch was made; until it has ended."""
        self.output_path = directory / "output.jsonl"
        """Where its job writes; see `cluster.jobs.outputs`."""

    @property
    def record(self) -> BatchRecord:
        """
        Raises:
            NotThere: it has been removed.
        """
        record = read_record(self._directory / RECORD, BatchRecord)
        if record is None:
            raise NotThere("batch", self._directory.name)
        return record

    @property
    def state(self) -> BatchState:
        """As the runner has told; ``cancelling`` where it has been asked to end and has not yet."""
        told = read_record(self._directory / STATE, BatchState) or BatchState()
        if told.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS) and self.cancelled is not None:
            return told.model_copy(update={"status": BatchStatus.CANCELLING})
        return told

    def tell(self, state: BatchState) -> None:
        """For who has the lease."""
        write_record(self._directory / STATE, state)

    def lease(self) -> AbstractContextManager[None]:
        """Until the end of the block nobody else works at this batch; it ends with the process, too.

        Raises:
            StoreBusy: somebody does.
        """
        return locked(self._directory / LEASE)

    @property
    def cancelled(self) -> float | None:
        """When it was asked to end."""
        try:
            return self._cancel_mark.stat().st_mtime
        except FileNotFoundError:
            return None

    def cancel(self) -> None:
        """Asks it to end."""
        if self.cancelled is None:
            self._cancel_mark.touch()

    def drop_work(self) -> None:
        """Removes the input and what the job wrote, of one that has ended: its results are files of the owner's by
        then. For who has the lease; done twice, it is done."""
        for entry in self._directory.iterdir():
            if entry.name not in (RECORD, STATE, LEASE, CANCEL):
                entry.unlink(missing_ok=True)

    def result_id(self, kind: str) -> str:
        """The id of the file of results of that ``kind``: the same whoever asks."""
        digest = hashlib.sha256(f"{self._directory.name} {kind}".encode()).hexdigest()
        return f"{FILE_PREFIX}{digest[:32]}"

    @property
    def _cancel_mark(self) -> Path:
        return self._directory / CANCEL


class Batches:
    """A batch is there when its directory is, which is made beside its place and moved there."""

    def __init__(self, directory: Path, settings: StoreSettings) -> None:
        self._directory = directory
        self._settings = settings

    def check_room(self) -> None:
        """
        Raises:
            Full: none could be added, since as many as may be have not ended.
        """
        if sum(not batch.state.status.is_final for batch in self._alive()) >= self._settings.batches_max:
            raise Full("batches that have not ended", self._settings.batches_max, "batches_max")

    def new_id(self) -> str:
        return new_id(PREFIX)

    def add(self, record: BatchRecord, given: Path) -> None:
        """``given``: the bytes of its input file, of which it keeps its own.

        Raises:
            Full: as of ``check_room``.
            StoreBusy: another one is being added for too long.
            FileNotFoundError: the input is gone.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        draft = draft_of(self._directory / record.id)
        draft.mkdir()
        try:
            link_or_copy(given, draft / "input.jsonl")
            write_record(draft / RECORD, record)
            with locked(self._directory / "lock", LOCK_WAIT_S):
                self.check_room()
                draft.rename(self._directory / record.id)
                self._drop_oldest()
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def get(self, batch_id: str) -> Batch:
        """
        Raises:
            NotThere: there is none, or its time is over.
        """
        batch = Batch(self._directory / batch_id)
        if not is_id(batch_id, PREFIX) or self._is_over(batch):
            raise NotThere("batch", batch_id)
        return batch

    def newest_first(self) -> list[Batch]:
        alive = [(batch.record, batch) for batch in self._alive()]
        alive.sort(key=lambda each: (each[0].created, each[0].id), reverse=True)
        return [batch for _, batch in alive]

    def sweep(self, before: float) -> None:
        """Removes those whose time is over, and drafts older than ``before``, Unix seconds."""
        for entry in self._entries():
            over = entry.name.startswith(PREFIX) and self._is_over(Batch(entry))
            try:
                if over or (entry.name.startswith(DRAFT) and entry.stat().st_mtime < before):
                    shutil.rmtree(entry, ignore_errors=True)
            except FileNotFoundError:
                continue

    def _drop_oldest(self) -> None:
        """Of those that have ended, as many as there are too many."""
        alive = self.newest_first()
        ended = [batch for batch in reversed(alive) if batch.state.status.is_final]
        for batch in ended[: max(0, len(alive) - self._settings.batches_max)]:
            shutil.rmtree(self._directory / batch.id, ignore_errors=True)

    def _alive(self) -> Iterator[Batch]:
        for entry in self._entries():
            if entry.name.startswith(PREFIX) and not self._is_over(batch := Batch(entry)):
                yield batch

    def _is_over(self, batch: Batch) -> bool:
        try:
            _ = batch.record
        except NotThere:
            return True
        ended = batch.state.ended
        return ended is not None and ended + self._settings.keep_s <= time.time()

    def _entries(self) -> list[Path]:
        try:
            return [Path(entry.path) for entry in os.scandir(self._directory)]
        except FileNotFoundError:
            return []
