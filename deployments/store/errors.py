"""What can be wrong with what is kept.

StoreError
├── NotThere     unknown, expired, or another's: nobody can tell which
├── Full         a cap would be passed (what, most, setting)
├── OtherStore   the directory is not the one that is meant
└── StoreBusy    somebody else has the lock, or the lease
"""


class StoreError(Exception):
    """Root of all that the store raises, but for the OSError of a disk that fails."""


class NotThere(StoreError):
    """There is no such thing for who asks."""

    def __init__(self, kind: str, name: str) -> None:
        """``kind``: what it should have been, e.g. ``file``."""
        super().__init__(kind, name)
        self.kind = kind
        self.name = name

    def __str__(self) -> str:
        return f"no such {self.kind}: {self.name[:100]!r}"


class Full(StoreError):
    """A cap would be passed."""

    def __init__(self, what: str, most: int, setting: str) -> None:
        """``what`` is too many or too much, ``setting`` the cap's name in `StoreSettings`."""
        super().__init__(what, most, setting)
        self.what = what
        self.most = most
        self.setting = setting

    def __str__(self) -> str:
        return f"at most {self.most} {self.what} are kept here (store.{self.setting})"


class OtherStore(StoreError):
    """The directory is not the one that is meant: another node's, under the same path."""


class StoreBusy(StoreError):
    """Somebody else has the lock, or the lease."""
