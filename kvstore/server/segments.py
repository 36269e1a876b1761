"""Shared memory through which engines without a GPU hand their KV to the cache server.

Who makes what, in LMCache 0.5.6: the *engine's* worker process creates one segment per KV tensor, named
``lmcache_kv_<its pid>_<n>``, and unlinks it when it exits in good order; the server maps it and creates none. So the
server's death leaves nothing behind, but an engine that is killed leaves its whole KV cache in ``/dev/shm``.
Only segments whose creator is gone are ever removed. Standard library only: the guard process imports this.
"""

import os
import re
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

SHM = Path("/dev/shm")
_NAME = re.compile(r"lmcache_kv_(?P<pid>\d+)_\d+")
_PROMISE = re.compile(r"banyan_kv_(?P<pid>\d+)_(?P<size>\d+)")
_PROMISED_S = 900.0
"""An engine that has not started after this time will not; the process may be another under the same pid."""
_SETTLED_S = 5.0
"""A segment this old has long been mapped by its creator."""


def creator(name: str) -> int | None:
    """The pid in a KV segment's name; None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match["pid"]) if match else None


def segments() -> set[str]:
    """Names of all KV segments on this machine."""
    try:
        return {name for name in os.listdir(SHM) if creator(name) is not None}
    except OSError:
        return set()


def free_bytes() -> int:
    """Shared memory that is left on this machine."""
    room = os.statvfs(SHM)
    return room.f_bavail * room.f_frsize


class Promise:
    """Shared memory that an engine is about to take, told to those that start beside it on this machine."""

    def __init__(self, size: int, pid: int | None = None) -> None:
        """
        Args:
            size: bytes.
            pid: of the process that starts the engine, with which the promise ends; this one.
        """
        self._path = SHM / f"banyan_kv_{pid or os.getpid()}_{size}"
        self._path.touch()

    def before(self) -> int:
        """Bytes that others promised themselves earlier and may not have taken yet."""
        own = _made(self._path)
        return sum(size for path, size in _promises().items() if _made(path) < own)

    def end(self) -> None:
        """It is taken, or will not be."""
        self._path.unlink(missing_ok=True)


def _promises() -> dict[Path, int]:
    """Those that stand, and how many bytes each is of. What processes that are gone have left is removed."""
    found = {}
    for path in SHM.iterdir():
        match = _PROMISE.fullmatch(path.name)
        if match is None:
            continue
        if Path(f"/proc/{match['pid']}").exists() and time.time() - _made(path)[0] / 1e9 < _PROMISED_S:
            found[path] = int(match["size"])
            continue
        with suppress(OSError):  # another user's, or gone
            path.unlink()
    return found


def _made(path: Path) -> tuple[int, str]:
    """When, and for two of the same moment one before the other; what is gone counts as later than anything."""
    try:
        return path.stat().st_mtime_ns, path.name
    except OSError:
        return sys.maxsize, path.name


def mapped_by(pid: int) -> set[str]:
    """Names of the KV segments that a process has mapped; empty if it is gone or not ours to look into."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    paths = (line.split(maxsplit=5)[5] for line in lines if str(SHM) in line)
    names = {Path(path.removesuffix(" (deleted)")).name for path in paths}
    return {name for name in names if creator(name) is not None}


def is_orphan(name: str) -> bool:
    """Whether the segment's creator is gone: no such process, a zombie, or another process under a recycled pid."""
    pid = creator(name)
    if pid is None:
        return False
    try:
        stat = (SHM / name).stat()
        if stat.st_uid != os.getuid():
            return False
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    except (OSError, IndexError):
        return False
    if state in "ZX":
        return True
    settled = time.time() - stat.st_ctime > _SETTLED_S
    return settled and _readable(pid) and name not in mapped_by(pid)


def remove_orphans(names: Iterable[str] | None = None) -> list[str]:
    """Unlink those of ``names`` (None: of all KV segments) that are orphans; the names unlinked."""
    if names is None:
        with suppress(OSError):
            _promises()
    removed = []
    for name in segments() if names is None else names:
        if is_orphan(name):
            try:
                (SHM / name).unlink()
            except OSError:
                continue
            removed.append(name)
    return removed


def _readable(pid: int) -> bool:
    return os.access(f"/proc/{pid}/maps", os.R_OK)
