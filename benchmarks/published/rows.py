"""Rows of a measurement in JSONL files: appended as problems finish, read again by the next session."""

import json
import os
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class RowFile:
    """A JSONL file with one row per key. A line that was cut off by the end of a process counts as missing."""

    def __init__(self, path: Path, key: tuple[str, ...]) -> None:
        self.path = path
        self._key = key
        self.rows: dict[tuple[Hashable, ...], Row] = {}
        for row in _whole_rows(path):
            self.rows[self._key_of(row)] = row

    def __contains__(self, key: tuple[Hashable, ...]) -> bool:
        return key in self.rows

    def append(self, row: Row) -> None:
        """Adds a row to the file; it is on the disk when this returns.

        Raises:
            ValueError: there is a row with the same key.
        """
        key = self._key_of(row)
        if key in self.rows:
            raise ValueError(f"{self.path} has a row {key} already")
        line = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            if not _ends_with_newline(self.path):
                file.write(b"\n")
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows[key] = row

    def _key_of(self, row: Row) -> tuple[Hashable, ...]:
        return tuple(row[name] for name in self._key)


def _whole_rows(path: Path) -> Iterable[Row]:
    if not path.exists():
        return
    lines = path.read_text("utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            if line:
                yield json.loads(line)
        except ValueError as error:
            # Only an append that was interrupted leaves half a line; later rows follow it on lines of their own.
            if line.endswith("}"):
                raise ValueError(f"{path}, line {number}: no JSON") from error


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
