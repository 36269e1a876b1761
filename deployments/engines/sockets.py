"""Where an engine's processes meet: vLLM makes their sockets in the temporary directory and leaves them there.

Each engine has a directory of its own, which goes when the engine ends. That of an engine whose owner was killed goes
when the next engine starts on the machine: an owner holds a lock on its directory that ends with it in any case.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "banyan-engine-"
_NAME_BYTES = len("/00000000-0000-0000-0000-000000000000")
_PATH_BYTES = 107
"""The longest path of a socket that Linux takes."""


class SocketDirectory:
    """One engine's; those that dead owners left are removed as it is made."""

    def __init__(self, parent: Path | None = None) -> None:
        """
        Args:
            parent: of all of them; the temporary directory.
        """
        parent = parent or Path(tempfile.gettempdir())
        for path in parent.glob(f"{PREFIX}*"):
            _remove_if_left(path)
        self.path, self._lock = _made(parent)

    @property
    def environment(self) -> dict[str, str]:
        """What tells vLLM; nothing where its sockets' paths would be too long, and they stay where they were."""
        if len(os.fsencode(self.path)) + _NAME_BYTES > _PATH_BYTES:
            return {}
        return {"VLLM_RPC_BASE_PATH": str(self.path)}

    def remove(self) -> None:
        """The engine has ended. To be called once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _made(parent: Path) -> tuple[Path, int]:
    """A new directory, and what holds its lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            lock = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # another that starts took it for left
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return path, lock
        os.close(lock)


def _remove_if_left(path: Path) -> None:
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
