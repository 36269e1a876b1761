"""The batches of one owner: record, cancellation mark and state of each.

These are three files, so that no writer has to read before it writes. The controller that takes the request writes the
record, any controller can create the cancellation mark, and the runner that holds the lease writes the state.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from enum import StrEnum
from pathlib import Path

from pydantic import Field

from deployments.store.errors import Damaged, Full, NotThere
from deployments.store.files import PREFIX as FILE_PREFIX
from deployments.store.files import link_or_copy
from deployments.store.records import (
    DRAFT,
    LOCK_WAIT_S,
    Stored,
    discard,
    discard_all,
    draft_of,
    is_id,
    locked,
    make_directory,
    modified,
    new_id,
    read_record,
    sync_directory,
    write_record,
)
from deployments.store.settings import StoreSettings

PREFIX = "batch_"
RECORD, STATE, LEASE, CANCEL = "record.json", "state.json", "lease", "cancel"
"""Files that remain when a batch has ended."""


class BatchStatus(StrEnum):
    """Status of a batch, as in OpenAI's API."""

    VALIDATING = "validating"
    """The input file has not been checked yet."""
    FAILED = "failed"
    """The input file is invalid and no request was made; or the API key was removed, the results became too long or
    their files were damaged, and requests done by then have results."""
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    """All requests are done; the result files are not there yet."""
    COMPLETED = "completed"
    EXPIRED = "expired"
    """The completion window has closed; requests done by then have results."""
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED)


class LineError(Stored):
    """One reason why a batch failed."""

    code: str
    message: str
    line: int | None = None
    """Line of the input file, counted from 1."""
    param: str | None = None


class BatchUsage(Stored):
    """Tokens of all requests that have a result."""

    input_tokens: int
    cached_tokens: int
    """Input tokens that were read from a cache."""
    output_tokens: int
    reasoning_tokens: int
    """Output tokens that are not on the answering path."""


class BatchRecord(Stored):
    """The request that created a batch."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    """As the client wrote it."""
    created: float
    """Unix seconds, as all times here."""
    expires: float
    """When the completion window closes."""
    metadata: dict[str, str] | None = None
    output_keep_s: float | None = None
    """Lifetime of the result files in seconds, if shorter than that of other files."""


class BatchState(Stored):
    """Progress of a batch."""

    status: BatchStatus = BatchStatus.VALIDATING
    in_progress: float | None = None
    """Time of this status, as for the next two."""
    finalizing: float | None = None
    ended: float | None = None
    total: int = 0
    """Number of requests."""
    completed: int = 0
    failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: tuple[LineError, ...] = Field(())
    ending: BatchStatus | None = None
    """Final status, once decided. From then on no runner sends requests of the batch."""
    usage: BatchUsage | None = None
    """Set when the batch has ended."""
    passes: int = 0
    """Number of passes over all requests in which some failed for reasons of the service."""
    rests_until: float | None = None
    """Earliest time of the next pass."""
    again: bool = False
    """Whether the next pass retries failures of the service. A pass that resumes after a crash does not."""
    refused_since: float | None = None
    """When its API key was first refused; None once a request has been done since."""


class Batch:
    """One batch, in its directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.id = directory.name
        self.input_path = directory / "input.jsonl"
        """The input file as of the batch's creation; removed when the batch has ended."""
        self.output_path = directory / "output.jsonl"
        """Output of the batch's job; see `cluster.jobs.outputs`."""

    @property
    def record(self) -> BatchRecord:
        """The request that created the batch.

        Raises:
            NotThere: the batch has been removed.
        """
        record = read_record(self._directory / RECORD, BatchRecord, self.id)
        if record is None:
            raise self._missing(RECORD)
        return record

    @property
    def state(self) -> BatchState:
        """State as the runner wrote it; ``cancelling`` if the batch is cancelled and has not ended.

        Raises:
            NotThere: the batch has been removed.
        """
        state = read_record(self._directory / STATE, BatchState, self.id)
        if state is None:
            if not self.input_path.exists():  # only an ended batch has no input
                raise self._missing(STATE)
            state = BatchState()
        if state.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS) and self.cancelled is not None:
            return state.model_copy(update={"status": BatchStatus.CANCELLING})
        return state

    def tell(self, state: BatchState) -> None:
        """Writes the state. Only for the process that holds the lease."""
        write_record(self._directory / STATE, state)

    def lease(self) -> AbstractContextManager[None]:
        """Exclusive right to work at this batch, until the block or the process ends.

        Raises:
            StoreBusy: another process holds it.
        """
        return locked(self._directory / LEASE)

    @property
    def cancelled(self) -> float | None:
        """When the batch was cancelled; None if it was not."""
        try:
            return self._cancel_mark.lstat().st_mtime
        except FileNotFoundError:
            return None

    def cancel(self) -> None:
        """Marks the batch as cancelled. Its runner then ends it.

        Raises:
            NotThere: the batch has been removed.
        """
        if self.cancelled is None:
            try:
                self._cancel_mark.touch()
                sync_directory(self._directory)
            except FileNotFoundError:
                raise NotThere("batch", self.id) from None

    def drop_work(self) -> None:
        """Removes input and job output of an ended batch, whose results are files of the owner by then. Idempotent.
        Only for the process that holds the lease."""
        for entry in self._directory.iterdir():
            if entry.name not in (RECORD, STATE, LEASE, CANCEL):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)

    def result_id(self, kind: str) -> str:
        """Id of the result file of that ``kind``, derived from the batch's id."""
        digest = hashlib.sha256(f"{self._directory.name} {kind}".encode()).hexdigest()
        return f"{FILE_PREFIX}{digest[:32]}"

    @property
    def _cancel_mark(self) -> Path:
        return self._directory / CANCEL

    def _missing(self, part: str) -> NotThere | Damaged:
        """The error of a batch without one of its parts."""
        return Damaged(self.id, part, "is missing") if self._directory.is_dir() else NotThere("batch", self.id)


class Batches:
    """The batches of one owner. A batch exists if its directory does, which is built as a draft and renamed."""

    def __init__(self, directory: Path, settings: StoreSettings) -> None:
        self._directory = directory
        self._settings = settings

    def check_room(self) -> None:
        """Checks that a batch can be added.

        Raises:
            Full: the limit of batches that have not ended is reached.
        """
        if len(self.unfinished()) >= self._settings.batches_max:
            raise Full("batches that have not ended", self._settings.batches_max, "batches_max")

    def new_id(self) -> str:
        return new_id(PREFIX)

    def add(self, record: BatchRecord, given: Path) -> None:
        """Adds a batch. ``given`` is the input file, of which the batch keeps a link or a copy.

        Raises:
            Full: as `check_room`.
            StoreBusy: the lock was not free in time.
            FileNotFoundError: the input file is gone.
        """
        make_directory(self._directory)
        draft = draft_of(self._directory / record.id)
        draft.mkdir()
        try:
            link_or_copy(given, draft / "input.jsonl")
            write_record(draft / RECORD, record)
            with locked(self._directory / "lock", LOCK_WAIT_S):
                self.check_room()
                draft.rename(self._directory / record.id)
                sync_directory(self._directory)
                self._drop_oldest()
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def get(self, batch_id: str) -> Batch:
        """Returns a batch.

        Raises:
            NotThere: it does not exist, or has expired.
        """
        batch = Batch(self._directory / batch_id)
        if not is_id(batch_id, PREFIX) or self._is_over(batch):
            raise NotThere("batch", batch_id)
        return batch

    def remove(self, batch_id: str) -> None:
        """Removes a batch, damaged or not, all at once. What is done of it is lost: cancel it first.

        Raises:
            NotThere: it does not exist, or has expired.
        """
        try:
            discard(self._directory / self.get(batch_id).id)
        except FileNotFoundError:
            raise NotThere("batch", batch_id) from None
        sync_directory(self._directory)

    def newest_first(self) -> list[Batch]:
        """All batches but those that are damaged, or were removed meanwhile."""
        alive = []
        for batch in self._alive():
            with suppress(NotThere, Damaged):
                alive.append((batch.record, batch))
        alive.sort(key=lambda each: (each[0].created, each[0].id), reverse=True)
        return [batch for _, batch in alive]

    def unfinished(self) -> list[BatchRecord]:
        """The records of the batches that have not ended, without those that are damaged."""
        found = []
        for batch in self._alive():
            with suppress(NotThere, Damaged):
                if not batch.state.status.is_final:
                    found.append(batch.record)
        return found

    def sweep(self, before: float) -> None:
        """Removes expired batches, and drafts older than ``before``, Unix seconds."""
        entries = self._entries()
        discard_all(each for each in entries if each.name.startswith(PREFIX) and self._is_over(Batch(each)))
        for entry in entries:
            if entry.name.startswith(DRAFT) and modified(entry) < before:
                shutil.rmtree(entry, ignore_errors=True)

    def _drop_oldest(self) -> None:
        """Removes the oldest ended batches beyond the limit of all batches."""
        alive = self.newest_first()
        ended = [batch for batch in reversed(alive) if _has_ended(batch)]
        excess = max(0, len(alive) - self._settings.batches_max)
        discard_all(self._directory / batch.id for batch in ended[:excess])

    def _alive(self) -> Iterator[Batch]:
        for entry in self._entries():
            if entry.name.startswith(PREFIX) and not self._is_over(batch := Batch(entry)):
                yield batch

    def _is_over(self, batch: Batch) -> bool:
        """Whether the batch has expired or does not exist. A damaged one expires with its directory's age."""
        try:
            _, ended = batch.record, batch.state.ended
        except NotThere:
            return True
        except Damaged:
            ended = modified(self._directory / batch.id)
        return ended is not None and ended + self._settings.keep_s <= time.time()

    def _entries(self) -> list[Path]:
        try:
            return [Path(entry.path) for entry in os.scandir(self._directory)]
        except FileNotFoundError:
            return []


def _has_ended(batch: Batch) -> bool:
    """Whether the batch has ended. A damaged one has: it is not worked at."""
    try:
        return batch.state.status.is_final
    except (NotThere, Damaged):
        return True
