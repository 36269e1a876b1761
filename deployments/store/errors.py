"""Errors of the store.

StoreError
├── NotThere     unknown, expired, or another owner's: the caller cannot tell which
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


class Full(StoreError):
    """A limit would be exceeded."""

    def __init__(self, what: str, most: int, setting: str) -> None:
        """``what`` is limited to ``most`` by the field ``setting`` of `StoreSettings`."""
        super().__init__(what, most, setting)
        self.what = what
        self.most = most
        self.setting = setting

    def __str__(self) -> str:
        return f"at most {self.most} {self.what} are kept here (store.{self.setting})"


class OtherStore(StoreError):
    """The directory is not the application's store, but another one under the same path."""


class StoreBusy(StoreError):
    """Another process holds the lock or the lease."""
