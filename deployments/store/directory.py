"""The whole store: a part for each owner, and marks of the batches that have not ended."""

import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from deployments.store.batches import Batch, Batches, BatchRecord
from deployments.store.errors import NotThere, OtherStore
from deployments.store.files import Files, link_or_copy
from deployments.store.records import LOCK_WAIT_S, draft_of, is_id, new_id, sync_directory, write_whole
from deployments.store.searches import Searches
from deployments.store.settings import StoreSettings

ANONYMOUS = "anonymous"
"""Owner of requests without a key, where none is required."""
STALE_S = 3600.0
"""Age in seconds after which an incomplete file or mark counts as abandoned."""
_OWNER = re.compile(r"[0-9a-z]{1,64}")


class Pending(NamedTuple):
    """A batch that has not ended."""

    name: str
    """Name of the batch's mark."""
    owner: str
    batch: Batch


class Owned(NamedTuple):
    """The parts of one owner."""

    files: Files
    batches: Batches
    searches: Searches


class Store:
    """The store of all owners. Every method blocks on the disk: do not call it in an event loop."""

    def __init__(self, path: Path, settings: StoreSettings) -> None:
        self.settings = settings
        self._root = path
        self._owners = path / "owners"
        self._pending = path / "pending"

    @classmethod
    def of(cls, settings: StoreSettings) -> "Store | None":
        """The store with these settings; None if they name no path."""
        return None if settings.path is None else cls(settings.path, settings)

    def prepare(self, known: str | None = None) -> str:
        """Creates the directory if needed. Returns its id, which is the same on every node.

        Raises:
            OtherStore: the id is not the ``known`` one, or the directory has none although its file exists.
            OSError: the directory can be neither used nor created.
        """
        for directory in (self._root, self._owners, self._pending):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark = self._root / "id"
        if not mark.exists():
            draft = draft_of(mark)
            try:
                write_whole(draft, new_id("").encode())
                link_or_copy(draft, mark)
                sync_directory(self._root)
            finally:
                draft.unlink(missing_ok=True)
        here = _id_in(mark)
        if known is not None and here != known:
            raise OtherStore(
                f"{self._root} on {socket.gethostname()} is another directory than where the application was built: "
                "every node has to see the same one (controller.store.path)"
            )
        return here

    def owned(self, owner: str) -> Owned:
        """The parts of an owner, whose name is lower-case letters and digits.

        Raises:
            ValueError: the name is not valid.
        """
        if not _OWNER.fullmatch(owner):
            raise ValueError(f"unknown owner {owner[:80]!r}")
        directory = self._owners / owner
        return Owned(
            Files(directory / "files", self.settings),
            Batches(directory / "batches", self.settings),
            Searches(directory / "searches", self.settings),
        )

    def begin(self, owner: str, record: BatchRecord) -> Batch:
        """Adds a batch and marks it for the batch runner.

        Raises:
            NotThere: the owner has no such input file.
            Damaged: as `Files.open`.
            Full, StoreBusy: as `Batches.add`.
        """
        owned = self.owned(owner)
        owned.batches.check_room()
        owned.files.check_bytes()
        given = owned.files.path(record.input_file_id)
        # Before the batch: a mark without a batch is harmless, a batch without a mark would wait for ever.
        mark = self._mark(owner, record)
        mark.touch()
        sync_directory(self._pending)
        try:
            owned.batches.add(record, given)
        except BaseException as error:
            if self._batch(owner, record.id).is_dir():  # the batch was added before a later step failed
                raise
            mark.unlink(missing_ok=True)
            if isinstance(error, FileNotFoundError):  # removed meanwhile
                raise NotThere("file", record.input_file_id) from None
            raise
        return owned.batches.get(record.id)

    def pending(self) -> list[Pending]:
        """The batches that have not ended, the oldest first. Removes stale marks without a batch."""
        return list(self._read_marks())

    def finished(self, pending: Pending) -> None:
        """Removes the mark of a batch that has ended."""
        (self._pending / pending.name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Removes all that has expired, and marks batches again that have not ended and lost their mark.

        Raises:
            OSError: a part could not be swept; all others were.
        """
        before = time.time() - STALE_S
        failed: list[OSError] = []
        for owner in sorted(self._owners.iterdir()):
            if not _OWNER.fullmatch(owner.name):  # not created by the store
                continue
            owned = self.owned(owner.name)
            for sweep in (*(partial(part.sweep, before) for part in owned), partial(self._mark_again, owner.name)):
                try:
                    sweep()
                except OSError as error:
                    failed.append(error)
        if failed:
            raise failed[0]

    def _read_marks(self) -> Iterator[Pending]:
        for mark in sorted(self._pending.iterdir()):
            _, _, named = mark.name.partition("-")
            owner, _, batch_id = named.partition("-")
            directory = self._batch(owner, batch_id)
            if directory.is_dir():
                yield Pending(mark.name, owner, Batch(directory))
                continue
            with suppress(OSError):  # removed meanwhile, or not a mark
                if mark.stat().st_mtime < time.time() - STALE_S:
                    mark.unlink()

    def _mark_again(self, owner: str) -> None:
        """Creates the missing marks of an owner's batches that have not ended."""
        for record in self.owned(owner).batches.unfinished():
            if not (mark := self._mark(owner, record)).exists():
                mark.touch()

    def _mark(self, owner: str, record: BatchRecord) -> Path:
        return self._pending / f"{int(record.created * 1e6):020}-{owner}-{record.id}"

    def _batch(self, owner: str, batch_id: str) -> Path:
        return self._owners / owner / "batches" / batch_id


def _id_in(mark: Path) -> str:
    """The store's id. Where the file system has no hard links, another node may be writing it at the moment.

    Raises:
        OtherStore: there is none.
    """
    until = time.monotonic() + LOCK_WAIT_S
    while not is_id(found := mark.read_text(errors="replace")):
        if time.monotonic() >= until:
            raise OtherStore(
                f"{mark} on {socket.gethostname()} contains no store id: remove it, and a new one is created"
            )
        time.sleep(0.05)
    return found
