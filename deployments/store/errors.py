"""Errors of the store.

StoreError
├── NotThere     unknown, expired, or another owner's: the caller cannot tell which
├── Damaged      a stored record cannot be read (name, part, reason)
├── Full         a limit would be exceeded (what, most, setting)
├── OtherStore   the directory is not the application's store
└── StoreBusy    another process holds the lock or the lease
"""


class StoreError(Exception):
    """Root of the store's errors. A failing disk raises OSError instead."""


class NotThere(StoreError):
    """The owner has no such file, batch or search."""

    def __init__(self, kind: str, name: str) -> None:
        """``kind``: what was looked up, e.g. ``file``."""
        super().__init__(kind, name)
        self.kind = kind
        self.name = name

    def __str__(self) -> str:
        return f"no such {self.kind}: {self.name[:100]!r}"


class Damaged(StoreError):
    """A file, batch or search is there, but a part of it cannot be read. It can be deleted."""

    def __init__(self, name: str, part: str, reason: str) -> None:
        """``name``: id of the file, batch or search. ``part``: name of the damaged file on the disk."""
        super().__init__(name, part, reason)
        self.name = name
        self.part = part
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name} is damaged in the store: {self.part} {self.reason}"


class Full(StoreError):
    """A limit would be exceeded."""

    def __init__(self, what: str, most: int, setting: str | None = None) -> None:
        """``what`` is limited to ``most``, by the field ``setting`` of `StoreSettings` if it can be set."""
        super().__init__(what, most, setting)
        self.what = what
        self.most = most
        self.setting = setting

    def __str__(self) -> str:
        name = f" (store.{self.setting})" if self.setting else ""
        return f"at most {self.most} {self.what} can be stored{name}"


class OtherStore(StoreError):
    """The directory is not the application's store, but another one under the same path."""


class StoreBusy(StoreError):
    """Another process holds the lock or the lease."""
