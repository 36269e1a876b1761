"""The store of an application: clients' files, batches and searches, in a directory that all nodes see.

The store is plain files, without a database or a process of its own. Every file has one writer: a record is written
once and atomically, by the process that creates it; a state is written by the process that holds the lease. So any
number of controllers can read and write at the same time, and what a process has written survives its death.
"""

from deployments.store.batches import Batch, Batches, BatchRecord, BatchState, BatchStatus, BatchUsage, LineError
from deployments.store.directory import ANONYMOUS, Owned, Pending, Store
from deployments.store.errors import Damaged, Full, NotThere, OtherStore, StoreBusy, StoreError
from deployments.store.files import FileRecord, Files
from deployments.store.records import write_whole
from deployments.store.searches import (
    LOST,
    Events,
    RecordedMessage,
    ResponseRecord,
    Search,
    SearchEnd,
    Searches,
    SearchRecord,
    SearchStatus,
    SearchWriter,
)
from deployments.store.settings import StoreSettings

__all__ = [
    "ANONYMOUS",
    "LOST",
    "Batch",
    "BatchRecord",
    "BatchState",
    "BatchStatus",
    "BatchUsage",
    "Batches",
    "Damaged",
    "Events",
    "FileRecord",
    "Files",
    "Full",
    "LineError",
    "NotThere",
    "OtherStore",
    "Owned",
    "Pending",
    "RecordedMessage",
    "ResponseRecord",
    "Search",
    "SearchEnd",
    "SearchRecord",
    "SearchStatus",
    "SearchWriter",
    "Searches",
    "Store",
    "StoreBusy",
    "StoreError",
    "StoreSettings",
    "write_whole",
]
