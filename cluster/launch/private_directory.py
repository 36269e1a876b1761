"""A temporary directory that no other user can enter."""

import os
import tempfile
from pathlib import Path

from cluster.launch.errors import LaunchError


def private_directory() -> Path:
    """Creates this user's directory in the temporary one if needed, and returns it.

    Its path is short: those of Ray's sockets, which are below it, may have 107 characters.

    Raises:
        LaunchError: it cannot be created, or is not this user's alone.
    """
    path = Path(tempfile.gettempdir()) / f"banyan-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise LaunchError(f"cannot make the directory {path} for Ray: {error.strerror or error}") from error
    if path.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise LaunchError(f"{path} is not this user's alone: remove it, or name a directory for Ray in RAY_TMPDIR")
    return path
