"""The whole store: each owner's part of it, and the batches that wait for a runner."""

import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from deployments.store.batches import Batch, Batches, BatchRecord
from deployments.store.errors import OtherStore
from deployments.store.files import Files, link_or_copy
from deployments.store.records import draft_of, new_id
from deployments.store.searches import Searches
from deployments.store.settings import StoreSettings

ANONYMOUS = "anonymous"
"""The owner of what comes without a key, where none is wanted."""
STALE_S = 3600.0
"""What is not whole after so long never will be."""
_OWNER = re.compile(r"[0-9a-z]{1,64}")


class Pending(NamedTuple):
    """A batch that has not ended."""

    name: str
    """Of its mark."""
    owner: str
    batch: Batch


class Owned(NamedTuple):
    """What one owner has."""

    files: Files
    batches: Batches
    searches: Searches


class Store:
    """What all owners have. Every method works on the disk: not for an event loop."""

    def __init__(self, path: Path, settings: StoreSettings) -> None:
        self.settings = settings
        self._root = path
        self._owners = path / "owners"
        self._pending = path / "pending"

    @classmethod
    def of(cls, settings: StoreSettings) -> "Store | None":
        """None where nothing is kept."""
        return None if settings.path is None else cls(settings.path, settings)

    def prepare(self, known: str | None = None) -> str:
        """Makes the directory where there is none. Returns what it is known by, from whatever node.

        Raises:
            OtherStore: that is not what it is ``known`` by.
            OSError: it can be neither used nor made.
        """
        for directory in (self._root, self._owners, self._pending):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark = self._root / "id"
        if not mark.exists():
            draft = draft_of(mark)
            try:
                draft.write_text(new_id(""))
                link_or_copy(draft, mark)
            finally:
                draft.unlink()
        here = mark.read_text()
        if known is not None and here != known:
            raise OtherStore(
                f"{self._root} on {socket.gethostname()} is another directory than where the application was built: "
                "every node has to see the same one (controller.store.path)"
            )
        return here

    def owned(self, owner: str) -> Owned:
        """What belongs to that owner: lower-case letters and digits.

        Raises:
            ValueError: nobody is called so.
        """
        if not _OWNER.fullmatch(owner):
            raise ValueError(f"no owner is called {owner[:80]!r}")
        directory = self._owners / owner
        return Owned(
            Files(directory / "files", self.settings),
            Batches(directory / "batches", self.settings),
            Searches(directory / "searches", self.settings),
        )

    def begin(self, owner: str, record: BatchRecord) -> Batch:
        """Adds a batch, which a runner finds from then on.

        Raises:
            NotThere: its file is not the owner's.
            Full, StoreBusy: as of `Batches.add`.
        """
        owned = self.owned(owner)
        owned.batches.check_room()
        owned.files.check_bytes()
        given = owned.files.path(record.input_file_id)
        # Before the batch: a mark without one says nothing, a batch without one would wait for ever.
        mark = self._pending / f"{int(record.created * 1e6):020}-{owner}-{record.id}"
        mark.touch()
        try:
            owned.batches.add(record, given)
        except BaseException:
            if not self._batch(owner, record.id).is_dir():  # it may have been added before something else failed
                mark.unlink(missing_ok=True)
            raise
        return owned.batches.get(record.id)

    def pending(self) -> list[Pending]:
        """The batches that have not ended, the oldest first. A mark of none is removed when it is stale."""
        return list(self._read_marks())

    def finished(self, pending: Pending) -> None:
        """It needs no runner any more."""
        (self._pending / pending.name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Removes what has been kept for long enough.

        Raises:
            OSError: something could not be looked at; all else was.
        """
        before = time.time() - STALE_S
        failed: list[OSError] = []
        for owner in sorted(self._owners.iterdir()):
            if not _OWNER.fullmatch(owner.name):  # not ours
                continue
            for part in self.owned(owner.name):
                try:
                    part.sweep(before)
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
            with suppress(OSError):  # gone meanwhile, or no mark at all
                if mark.stat().st_mtime < time.time() - STALE_S:
                    mark.unlink()

    def _batch(self, owner: str, batch_id: str) -> Path:
        return self._owners / owner / "batches" / batch_id
