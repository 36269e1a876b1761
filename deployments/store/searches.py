"""The searches of one owner that were asked to be kept: their events as they come, and the reply.

Whoever runs a search has its lease while it does. One that has no end and that nobody runs was lost with its process.
"""

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from enum import StrEnum
from io import RawIOBase
from pathlib import Path
from typing import Any

from deployments.store.errors import NotThere
from deployments.store.records import (
    DRAFT,
    LOCK_WAIT_S,
    Stored,
    draft_of,
    is_id,
    is_locked,
    locked,
    modified,
    read_record,
    write_record,
    write_whole,
)
from deployments.store.settings import StoreSettings

MAX_READ_BYTES = 1 << 20
"""Of events, at a time."""
LAST_BYTES = 1 << 16
"""An event is shorter than that."""


class SearchStatus(StrEnum):
    """How a search is."""

    RUNNING = "running"
    FINISHED = "finished"
    """There is a reply."""
    FAILED = "failed"
    """There is an error; also when it was lost with its controller."""
    CANCELLED = "cancelled"
    """Its client has gone."""


class SearchRecord(Stored):
    """What was known of a search when it began."""

    id: str
    """32 hexadecimal digits."""
    created: float
    """Unix seconds."""
    model: str
    strategy: str
    n: int
    prompt_tokens: int


class SearchEnd(Stored):
    """How it ended."""

    status: SearchStatus
    ended: float
    """Unix seconds."""
    error: dict[str, Any] | None = None
    """As clients are told it."""


LOST: dict[str, Any] = {
    "message": "the controller that ran this search was lost, and the search with it",
    "type": "server_error",
    "param": None,
    "code": "search_lost",
}


class Events:
    """A piece of a search's events."""

    def __init__(self, lines: list[str], offset: int) -> None:
        self.lines = lines
        """Whole ones, each the JSON of an event."""
        self.offset = offset
        """Where the next piece begins, bytes."""


class Search:
    """One search, for who looks at it."""

    def __init__(self, directory: Path, settings: StoreSettings) -> None:
        self._directory = directory
        self._settings = settings
        self.id = directory.name

    @property
    def record(self) -> SearchRecord:
        """
        Raises:
            NotThere: it has been removed.
        """
        record = read_record(self._directory / "record.json", SearchRecord)
        if record is None:
            raise NotThere("search", self._directory.name)
        return record

    @property
    def end(self) -> SearchEnd | None:
        """How it ended; None while it runs."""
        if (told := self._told_end) is not None:
            return told
        try:
            if is_locked(self._directory / "lease"):
                return None
        except FileNotFoundError:
            raise NotThere("search", self._directory.name) from None
        # It may have ended since it was looked at first.
        return self._told_end or SearchEnd(status=SearchStatus.FAILED, ended=self.record.created, error=LOST)

    @property
    def reply(self) -> dict[str, Any] | None:
        """Of one that has finished."""
        try:
            reply: dict[str, Any] = json.loads((self._directory / "reply.json").read_bytes())
        except FileNotFoundError:
            return None
        return reply

    @property
    def is_over(self) -> bool:
        """Whether it was kept for long enough, or is none."""
        try:
            end = self.end
        except NotThere:
            return True
        return end is not None and end.ended + self._settings.keep_s <= time.time()

    def events(self, offset: int = 0) -> Events:
        """Whole events from that byte on; none where no more have come."""
        try:
            with (self._directory / "events.jsonl").open("rb") as file:
                file.seek(offset)
                content = file.read(MAX_READ_BYTES)
        except FileNotFoundError:
            return Events([], offset)
        whole, newline, _ = content.rpartition(b"\n")
        return Events(whole.decode().split("\n") if newline else [], offset + len(whole) + len(newline))

    def last_event(self) -> dict[str, Any] | None:
        """The newest, parsed."""
        try:
            with (self._directory / "events.jsonl").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
                whole, _, _ = file.read().rpartition(b"\n")
            event = json.loads(whole.rpartition(b"\n")[2])
        except (FileNotFoundError, ValueError):  # a ValueError: there is none, or it is very long
            return None
        return event if isinstance(event, dict) else None

    @property
    def _told_end(self) -> SearchEnd | None:
        return read_record(self._directory / "end.json", SearchEnd)


class SearchWriter:
    """One search, for who runs it. To be ended, which gives its lease back; its methods may be called in any thread."""

    def __init__(self, directory: Path, most_bytes: int, events: RawIOBase, held: ExitStack) -> None:
        """``held``: the lease, and whatever else is to be closed at the end."""
        self._directory = directory
        self._room = most_bytes
        self._events = events
        self._held = held
        self._lock = threading.Lock()

    def append(self, lines: Sequence[str]) -> None:
        """Events, each as JSON without a newline. What is more than may be is not kept, nor what follows it.

        Raises:
            OSError: they could not be written; nothing is kept of what follows.
        """
        with self._lock:
            content = "".join(f"{line}\n" for line in lines).encode()
            room, self._room = self._room, 0
            if len(content) <= room and self._events.write(content) == len(content):
                self._room = room - len(content)

    def end(self, end: SearchEnd, reply: str | None = None) -> None:
        """Nothing follows. ``reply``: as JSON, of one that has finished."""
        with self._lock, self._held:
            if reply is not None:
                write_whole(self._directory / "reply.json", reply.encode())
            write_record(self._directory / "end.json", end)


class Searches:
    """A search is there when its directory is; the oldest goes where there are too many."""

    def __init__(self, directory: Path, settings: StoreSettings) -> None:
        self._directory = directory
        self._settings = settings

    def begin(self, record: SearchRecord) -> SearchWriter:
        """
        Raises:
            StoreBusy: another one is being added for too long.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        place = self._directory / record.id
        draft = draft_of(place)
        draft.mkdir()
        try:
            write_record(draft / "record.json", record)
            with ExitStack() as held:
                # Leased before anybody can see it: the lease goes with the directory.
                held.enter_context(locked(draft / "lease"))
                events = held.enter_context((draft / "events.jsonl").open("ab", buffering=0))
                with locked(self._directory / "lock", LOCK_WAIT_S):
                    self._make_room()
                    draft.rename(place)
                return SearchWriter(place, self._settings.search_bytes_max, events, held.pop_all())
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def get(self, search_id: str) -> Search:
        """
        Raises:
            NotThere: there is none, or its time is over.
        """
        search = Search(self._directory / search_id, self._settings)
        if not is_id(search_id) or search.is_over:
            raise NotThere("search", search_id)
        return search

    def newest_first(self) -> list[Search]:
        alive = []
        for entry in self._entries():
            search = Search(entry, self._settings)
            if not search.is_over:
                alive.append((search.record, search))
        alive.sort(key=lambda each: (each[0].created, each[0].id), reverse=True)
        return [search for _, search in alive]

    def sweep(self, before: float) -> None:
        """Removes those whose time is over, and drafts older than ``before``, Unix seconds."""
        for entry in self._entries():
            if Search(entry, self._settings).is_over:
                shutil.rmtree(entry, ignore_errors=True)
        for entry in self._entries(drafts=True):
            if modified(entry) < before:
                shutil.rmtree(entry, ignore_errors=True)

    def _make_room(self) -> None:
        """For one more."""
        entries = list(self._entries())
        if (excess := len(entries) + 1 - self._settings.searches_max) <= 0:
            return
        for entry in sorted(entries, key=modified)[:excess]:
            shutil.rmtree(entry, ignore_errors=True)

    def _entries(self, drafts: bool = False) -> Iterator[Path]:
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return
        for name in names:
            if name.startswith(DRAFT) if drafts else is_id(name):
                yield self._directory / name
