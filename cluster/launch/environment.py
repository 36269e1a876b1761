"""Environment variables of Banyan's processes, and the token of their Ray cluster.

The variables are in ``environment.sh`` beside this module, which `make` and `sh` read, too. ``python -m
cluster.launch.environment`` creates the token if there is none. Imports nothing that reads the variables.
"""

import os
import re
import secrets
import sys
import tempfile
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from string import Template

from cluster.launch.errors import LaunchError

FILE = Path(__file__).with_name("environment.sh")
ASSIGNMENT = re.compile(r"export (?P<name>[A-Z_]+)=(?P<value>\S*)")
TOKEN_BYTES = 32


def variables() -> dict[str, str]:
    """The file's variables, with ``${HOME}`` expanded.

    Raises:
        ValueError: a line is neither blank, a comment nor an assignment without quotes.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(FILE.read_text(encoding="utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        assignment = ASSIGNMENT.fullmatch(line)
        if assignment is None:
            raise ValueError(f"{FILE}:{number}: only `export NAME=value` is read alike by make, sh and Python")
        found[assignment["name"]] = Template(assignment["value"]).substitute(HOME=Path.home())
    return found


def set_environment(environment: MutableMapping[str, str] = os.environ) -> None:
    """Sets the variables that are not set yet. Call it before importing Ray, Serve or vLLM, which then read most."""
    for name, value in variables().items():
        environment.setdefault(name, value)


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
            raise LaunchError(f"{path} holds no token: remove it, and one is made")
    except OSError as error:
        raise LaunchError(f"cannot make Ray's token {path}: {error.strerror or error}") from error
    return path


if __name__ == "__main__":
    set_environment()
    try:
        ensure_token()
    except LaunchError as error:
        sys.exit(f"setup: {error}")
