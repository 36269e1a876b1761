"""The token of Ray's authentication. ``python -m cluster.launch.token`` creates it if there is none."""

import os
import secrets
import sys
import tempfile
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

from cluster.launch.errors import LaunchError
from deployments.startup.environment import set_environment

TOKEN_BYTES = 32


def ensure_token(environment: MutableMapping[str, str] = os.environ) -> Path | None:
    """Creates Ray's token file if there is none, readable by its owner only. None if Ray needs no file.

    Raises:
        LaunchError: the file cannot be created, or exists and is empty.
    """
    if environment.get("RAY_AUTH_MODE") != "token" or environment.get("RAY_AUTH_TOKEN"):
        return None
    path = Path(environment["RAY_AUTH_TOKEN_PATH"])
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, encoding="ascii") as file:
            file.write(secrets.token_hex(TOKEN_BYTES))
            file.flush()
            with suppress(FileExistsError):
                os.link(file.name, path)  # atomic, and never replaces a token that a cluster uses
        if not path.stat().st_size:
            raise LaunchError(f"{path} contains no token: remove it, and a new one is created")
    except OSError as error:
        raise LaunchError(f"cannot make Ray's token {path}: {error.strerror or error}") from error
    return path


if __name__ == "__main__":
    set_environment()
    try:
        ensure_token()
    except LaunchError as error:
        sys.exit(f"setup: {error}")
