"""Shared memory through which engines without a GPU hand their KV to the cache server.

In LMCache 0.5.6 the *engine's* worker process creates one segment per KV tensor, named ``lmcache_kv_<its pid>_<n>``,
and unlinks it at an orderly exit. The server maps segments and creates none. So the server's death leaves nothing
behind, but an engine that is killed leaves its whole KV cache in ``/dev/shm``. Only segments whose creator is gone are
removed. Standard library only: the guard process imports this.
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
"""Maximum age of a promise, seconds. An older engine never started, and its pid may be another process by now."""
_SETTLED_S = 5.0
"""Age in seconds at which the creator of a segment has certainly mapped it."""


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
    """Free shared memory on this machine."""
    stat = os.statvfs(SHM)
    return stat.f_bavail * stat.f_frsize


class Reservation:
    """Reservation of shared memory by an engine that is starting, visible to the other engines of this machine."""

    def __init__(self, size: int, pid: int | None = None) -> None:
        """
        Args:
            size: bytes.
            pid: id of the process that starts the engine; the promise ends with it. By default this process.
        """
        self._path = SHM / f"banyan_kv_{pid or os.getpid()}_{size}"
        self._path.touch()

    def before(self) -> int:
        """Bytes of the older promises of other engines, which may not have taken them yet."""
        own = _created(self._path)
        return sum(size for path, size in _promises().items() if _created(path) < own)

    def end(self) -> None:
        """Ends the promise: the memory is taken, or never will be."""
        self._path.unlink(missing_ok=True)


def _promises() -> dict[Path, int]:
    """Size in bytes of each valid promise. Removes expired promises and those of dead processes."""
    found = {}
    for path in SHM.iterdir():
        match = _PROMISE.fullmatch(path.name)
        if match is None:
            continue
        if Path(f"/proc/{match['pid']}").exists() and time.time() - _created(path)[0] / 1e9 < _PROMISED_S:
            found[path] = int(match["size"])
            continue
        with suppress(OSError):  # it is another user's, or gone
            path.unlink()
    return found


def _created(path: Path) -> tuple[int, str]:
    """Sort key by creation time, then name. A file that is gone sorts last."""
    try:
        return path.stat().st_mtime_ns, path.name
    except OSError:
        return sys.maxsize, path.name


def mapped_by(pid: int) -> set[str]:
    """Names of the KV segments that a process has mapped; empty if it is gone or we may not read it."""
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
    """Unlink the orphans among ``names`` (None: among all KV segments) and return their names."""
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
