"""A temporary directory for Ray that no other user can enter."""

from pathlib import Path

from cluster.launch.errors import LaunchError
from deployments.engines import sockets


def private_directory() -> Path:
    """Creates this user's directory in the temporary one if needed, and returns it.

    Raises:
        LaunchError: it cannot be created, or is not this user's alone.
    """
    try:
        return sockets.private_directory()
    except OSError as error:
        if error.strerror is not None:
            raise LaunchError(f"cannot make the directory {error.filename} for Ray: {error.strerror}") from error
        raise LaunchError(f"{error}: remove it, or name a directory for Ray in RAY_TMPDIR") from error
