"""What clients leave with an application: files, batches and searches, in a directory that all its nodes see.

Plain files and nothing else: no database, no process of its own. Who writes what is such that nobody overwrites
another: a record is written once and whole, by whoever made it; a state by the one process that has the lease. So any
number of controllers can read and write at a time, and what is there when a process dies is there when the next one
looks.
"""

from deployments.store.batches import Batch, Batches, BatchRecord, BatchState, BatchStatus, BatchUsage, LineError
from deployments.store.directory import ANONYMOUS, Owned, Pending, Store
from deployments.store.errors import Full, NotThere, OtherStore, StoreBusy, StoreError
from deployments.store.files import FileRecord, Files
from deployments.store.searches import Events, Search, SearchEnd, Searches, SearchRecord, SearchStatus, SearchWriter
from deployments.store.settings import StoreSettings

__all__ = [
    "ANONYMOUS",
    "Batch",
    "BatchRecord",
    "BatchState",
    "BatchStatus",
    "BatchUsage",
    "Batches",
    "Events",
    "FileRecord",
    "Files",
    "Full",
    "LineError",
    "NotThere",
    "OtherStore",
    "Owned",
    "Pending",
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
]
