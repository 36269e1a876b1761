"""The stored searches of one owner: their events, written as they arrive, the reply, and the response if it is one.

The controller that runs a search holds its lease. A search without an end whose lease is free was lost with its
controller.
"""

import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from enum import StrEnum
from io import RawIOBase
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from deployments.store.errors import Damaged, Full, NotThere
from deployments.store.records import (
    DRAFT,
    LOCK_WAIT_S,
    Stored,
    checked,
    discard,
    discard_all,
    draft_of,
    is_id,
    is_locked,
    locked,
    make_directory,
    modified,
    open_part,
    read_json,
    read_record,
    readable,
    sync_directory,
    write_record,
    write_whole,
)
from deployments.store.settings import StoreSettings

RECORD, BEGUN, END, EVENTS, LEASE = "record.json", "begun.json", "end.json", "events.jsonl", "lease"
MAX_REPLY_BYTES = 1 << 26
"""Maximum size of a reply, and of a response's request. The longest body and tree are shorter."""
CANCEL = "cancel"
"""Name of the mark of a cancelled search."""
MAX_READ_BYTES = 1 << 20
"""Most bytes of events in one read."""
LAST_BYTES = 1 << 16
"""Bytes read from the end of the file to find the last event, which is shorter."""


class SearchStatus(StrEnum):
    """Status of a stored search."""

    RUNNING = "running"
    FINISHED = "finished"
    """The search has a reply."""
    FAILED = "failed"
    """The search has an error, or was lost with its controller."""
    CANCELLED = "cancelled"
    """The client has disconnected."""


class SearchRecord(Stored):
    """What is known of a search when it begins."""

    id: str
    """32 hexadecimal digits."""
    created: float
    """Unix seconds."""
    model: str
    strategy: str
    n: int
    prompt_tokens: int
    question: str = ""
    """The beginning of the question."""


class SearchEnd(Stored):
    """How a search ended."""

    status: SearchStatus
    ended: float
    """Unix seconds."""
    error: dict[str, Any] | None = None
    """The error as clients get it."""
    steps: int | None = None
    """Number of scored steps; above the byte limit, not all of their events are stored."""


LOST: dict[str, Any] = {
    "message": "the controller that ran this search was lost, or the end of the search could not be stored",
    "type": "server_error",
    "param": None,
    "code": "search_lost",
}


NOT_KEPT: dict[str, Any] = {
    "message": "the search has ended, but its reply could not be stored",
    "type": "server_error",
    "param": None,
    "code": "reply_not_kept",
}


class _Reply(Stored):
    """The fields that every stored reply has."""

    id: str
    choices: list[dict[str, Any]]


class _Response(Stored):
    """The fields of a stored response that are read."""

    id: str
    status: str
    background: bool
    previous_response_id: str | None
    output: list[dict[str, Any]]


RecordedMessage = tuple[str, str] | tuple[str, str, dict[str, Any]]
"""Role and text, and what a message has of tools, if it has any: ``tool_calls`` or ``tool_call_id``."""


class ResponseRecord(Stored):
    """The response of a search, as it is when the search begins."""

    response: dict[str, Any]
    """The ``response`` in progress, as clients get it."""
    messages: tuple[RecordedMessage, ...]
    """The messages of its input."""
    streamed: bool


class Events:
    """A page of a search's events."""

    def __init__(self, lines: list[str], offset: int) -> None:
        self.lines = lines
        """Complete events, each as JSON."""
        self.offset = offset
        """Byte offset of the next page."""


class Search:
    """A stored search, as readers use it."""

    def __init__(self, directory: Path, settings: StoreSettings) -> None:
        self._directory = directory
        self._settings = settings
        self.id = directory.name

    @property
    def record(self) -> SearchRecord:
        """What was known of the search when it began.

        Raises:
            NotThere: the search has been removed.
        """
        record = read_record(self._directory / RECORD, SearchRecord, self.id)
        if record is None:
            raise self._missing(RECORD)
        return record

    @property
    def end(self) -> SearchEnd | None:
        """How the search ended; None while it runs."""
        if (end := self._told_end) is not None:
            return end
        try:
            with readable(self.id, LEASE):
                runs = is_locked(self._directory / LEASE)
            if runs:
                return None
        except FileNotFoundError:
            # It may have ended since the first read.
            if self._told_end is None:
                raise self._missing(LEASE) from None
        return self._told_end or SearchEnd(status=SearchStatus.FAILED, ended=self.record.created, error=LOST)

    @property
    def reply(self) -> dict[str, Any] | None:
        """The reply of a finished search; else None."""
        return self._result("reply.json", _Reply)

    @property
    def begun(self) -> ResponseRecord:
        """The response as it began.

        Raises:
            NotThere: the search has been removed, or its reply is no response.
        """
        record = read_record(self._directory / BEGUN, ResponseRecord, self.id, MAX_REPLY_BYTES)
        if record is None:
            raise NotThere("response", self.id)
        checked(record.response, _Response, self.id, BEGUN)
        return record

    @property
    def response(self) -> dict[str, Any] | None:
        """The response of a finished search; else None."""
        return self._result("response.json", _Response)

    def cancel(self) -> None:
        """Marks the search as cancelled. Its controller then ends it, if it runs in the background."""
        with suppress(FileNotFoundError):  # removed meanwhile
            (self._directory / CANCEL).touch()

    @property
    def is_over(self) -> bool:
        """Whether the search has expired or does not exist. A damaged one expires with its directory's age."""
        try:
            end = self.end
        except NotThere:
            return True
        except Damaged:
            return modified(self._directory) + self._settings.keep_s <= time.time()
        return end is not None and end.ended + self._settings.keep_s <= time.time()

    def events(self, offset: int = 0) -> Events:
        """Complete events from byte ``offset`` on; empty if there are no new ones.

        Raises:
            Damaged: they cannot be read, or one of them is no event.
        """
        whole, newline, _ = self._event_bytes(offset, MAX_READ_BYTES).rpartition(b"\n")
        lines = whole.split(b"\n") if newline else []
        for line in lines:
            self._checked_event(line)
        return Events([line.decode() for line in lines], offset + len(whole) + len(newline))

    def last_event(self) -> dict[str, Any] | None:
        """The newest event, parsed; None if there is none, or it cannot be read."""
        try:
            size = (self._directory / EVENTS).stat().st_size
            whole, newline, _ = self._event_bytes(max(0, size - LAST_BYTES), LAST_BYTES).rpartition(b"\n")
            return self._checked_event(whole.rpartition(b"\n")[2]) if newline else None
        except (FileNotFoundError, Damaged):
            return None

    def _event_bytes(self, offset: int, most: int) -> bytes:
        with open_part(self._directory / EVENTS, self.id) or nullcontext() as file:
            if file is None:
                return b""
            file.seek(offset)
            with readable(self.id, EVENTS):
                return file.read(most)

    def _checked_event(self, line: bytes) -> dict[str, Any]:
        try:
            event = from_json(line, allow_inf_nan=False)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            raise Damaged(self.id, EVENTS, "has a line that is not an event")
        return event

    def _result(self, part: str, kind: type[Stored]) -> dict[str, Any] | None:
        value = read_json(self._directory / part, self.id, MAX_REPLY_BYTES)
        if value is not None:
            checked(value, kind, self.id, part)
        elif (end := self.end) is not None and end.status is SearchStatus.FINISHED:
            raise self._missing(part)
        return value

    def _missing(self, part: str) -> NotThere | Damaged:
        """The error of a search without one of its parts."""
        return Damaged(self.id, part, "is missing") if self._directory.is_dir() else NotThere("search", self.id)

    @property
    def _told_end(self) -> SearchEnd | None:
        return read_record(self._directory / END, SearchEnd, self.id)


class SearchWriter:
    """A stored search, as its controller writes it. Thread-safe. ``end`` releases the lease and must be called."""

    def __init__(self, directory: Path, most_bytes: int, events: RawIOBase, held: ExitStack) -> None:
        """``held``: the lease and other resources, which ``end`` closes."""
        self._directory = directory
        self._room = most_bytes
        self._events = events
        self._held = held
        self._lock = threading.Lock()

    def append(self, lines: Sequence[str]) -> None:
        """Appends events, each as JSON without a newline. Events beyond the byte limit, and all later ones, are lost.

        Raises:
            OSError: the events could not be written; later ones are discarded.
        """
        with self._lock:
            content = "".join(f"{line}\n" for line in lines).encode()
            room, self._room = self._room, 0
            if len(content) <= room and self._events.write(content) == len(content):
                self._room = room - len(content)

    @property
    def is_cancelled(self) -> bool:
        """Whether the search was marked as cancelled, or removed."""
        return (self._directory / CANCEL).exists() or not self._directory.exists()

    def end(self, end: SearchEnd, reply: str | None = None, response: str | None = None) -> None:
        """Ends the search. ``reply`` and ``response``: as JSON, if the search has finished. If they are not kept, the
        search has failed.

        Raises:
            Full: they are longer than the byte limit.
            OSError: they could not be written.
        """
        with self._lock, self._held, suppress(FileNotFoundError):  # removed meanwhile
            try:
                for name, content in (("reply.json", reply), ("response.json", response)):
                    if content is not None:
                        self._write(name, content.encode())
            except (Full, OSError) as error:
                told = (
                    {**NOT_KEPT, "message": f"{NOT_KEPT['message']}: {error}"} if isinstance(error, Full) else NOT_KEPT
                )
                end = end.model_copy(update={"status": SearchStatus.FAILED, "error": told})
                with suppress(OSError):
                    write_record(self._directory / END, end)
                raise
            write_record(self._directory / END, end)

    def _write(self, name: str, content: bytes) -> None:
        if len(content) > MAX_REPLY_BYTES:
            raise Full("bytes of one reply", MAX_REPLY_BYTES)
        write_whole(self._directory / name, content)


class Searches:
    """The searches of one owner. A search exists if its directory does. Beyond the limit the oldest is removed."""

    def __init__(self, directory: Path, settings: StoreSettings) -> None:
        self._directory = directory
        self._settings = settings

    def begin(self, record: SearchRecord, response: ResponseRecord | None = None) -> SearchWriter:
        """Adds a search and leases it. ``response``: if its reply is one.

        Raises:
            Full: the response's request is longer than the byte limit.
            StoreBusy: the lock was not free in time.
        """
        make_directory(self._directory)
        target = self._directory / record.id
        draft = draft_of(target)
        draft.mkdir()
        try:
            write_record(draft / RECORD, record)
            if response is not None:
                write_record(draft / BEGUN, response, MAX_REPLY_BYTES)
            with ExitStack() as held:
                # Leased before it is visible: the lease moves with the directory.
                held.enter_context(locked(draft / LEASE))
                events = held.enter_context((draft / EVENTS).open("ab", buffering=0))
                with locked(self._directory / "lock", LOCK_WAIT_S):
                    self._make_room()
                    draft.rename(target)
                    sync_directory(self._directory)
                return SearchWriter(target, self._settings.search_bytes_max, events, held.pop_all())
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def get(self, search_id: str) -> Search:
        """Returns a search.

        Raises:
            NotThere: it does not exist, or has expired.
        """
        search = Search(self._directory / search_id, self._settings)
        if not is_id(search_id) or search.is_over:
            raise NotThere("search", search_id)
        return search

    def remove(self, search_id: str) -> None:
        """Removes a search, damaged or not, all at once.

        Raises:
            NotThere: it does not exist, or has expired.
        """
        self.get(search_id)
        try:
            discard(self._directory / search_id)
        except FileNotFoundError:
            raise NotThere("search", search_id) from None
        sync_directory(self._directory)

    def newest_first(self) -> list[Search]:
        """All searches but those that are damaged, or were removed meanwhile."""
        alive = []
        for entry in self._entries():
            search = Search(entry, self._settings)
            with suppress(NotThere, Damaged):
                if not search.is_over:
                    alive.append((search.record, search))
        alive.sort(key=lambda each: (each[0].created, each[0].id), reverse=True)
        return [search for _, search in alive]

    def sweep(self, before: float) -> None:
        """Removes expired searches, and drafts older than ``before``, Unix seconds."""
        discard_all(entry for entry in self._entries() if Search(entry, self._settings).is_over)
        for entry in self._entries(drafts=True):
            if modified(entry) < before:
                shutil.rmtree(entry, ignore_errors=True)

    def _make_room(self) -> None:
        """Removes the oldest searches until one more fits."""
        entries = list(self._entries())
        if (excess := len(entries) + 1 - self._settings.searches_max) <= 0:
            return
        discard_all(sorted(entries, key=modified)[:excess])

    def _entries(self, drafts: bool = False) -> Iterator[Path]:
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return
        for name in names:
            if name.startswith(DRAFT) if drafts else is_id(name):
                yield self._directory / name
