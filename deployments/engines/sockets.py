"""Socket directories of engine processes: by default vLLM makes sockets in the temporary directory and leaves them.

Each engine has its own directory, which is removed when the engine ends. If its owner was killed, the next engine that
starts on the machine removes it: an owner holds a lock on its directory, which ends with the owner's process.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "banyan-engine-"
_NAME_BYTES = len("/00000000-0000-0000-0000-000000000000")
MAX_PATH_BYTES = 107
"""The longest path of a socket on Linux."""


class SocketDirectory:
    """The socket directory of one engine. The constructor also removes the directories of dead owners."""

    def __init__(self, parent: Path | None = None) -> None:
        """
        Args:
            parent: the directory of all socket directories; by default the temporary directory.
        """
        parent = parent or Path(tempfile.gettempdir())
        for path in parent.glob(f"{PREFIX}*"):
            _remove_if_orphaned(path)
        self.path, self._lock = _create_locked(parent)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that make vLLM use the directory. Empty where its sockets' paths would be too long:
        vLLM then uses its default."""
        if len(os.fsencode(self.path)) + _NAME_BYTES > MAX_PATH_BYTES:
            return {}
        return {"VLLM_RPC_BASE_PATH": str(self.path)}

    def remove(self) -> None:
        """Removes the directory. To be called once, when the engine has ended."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def private_directory() -> Path:
    """Creates this user's directory in the temporary one if needed, and returns it. No other user can enter it.

    Its path is short, as those of the sockets below it have to be.

    Raises:
        PermissionError: it belongs to another user or is open to others.
        OSError: it cannot be created.
    """
    path = Path(tempfile.gettempdir()) / f"banyan-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if path.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} must belong to this user and be closed to others (mode 0700)")
    return path


def _create_locked(parent: Path) -> tuple[Path, int]:
    """Creates a directory. Returns its path and the file descriptor that holds its lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            lock = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # another engine's start took it for orphaned
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return path, lock
        os.close(lock)


def _remove_if_orphaned(path: Path) -> None:
    try:
        lock = os.open(path, os.O_RDONLY)
    except OSError:  # gone, or another user's
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        pass  # its owner lives
    finally:
        os.close(lock)
