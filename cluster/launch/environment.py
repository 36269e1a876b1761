"""The environment of Banyan's processes, and the token that guards their Ray.

The variables stand in ``environment.sh`` beside this module, for `make` and `sh` as well. ``python -m
cluster.launch.environment`` makes the token where there is none. Imports nothing that reads the variables.
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
    """What the file says, with ``${HOME}`` filled in.

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
    """Sets what is not set yet. To be called before Ray, Serve or vLLM is imported: they read most of it then."""
    for name, value in variables().items():
        environment.setdefault(name, value)


def ensure_token(environment: MutableMapping[str, str] = os.environ) -> Path | None:
    """Makes Ray's token where there is none, readable by its owner only; None where Ray needs no file.

    Raises:
        LaunchError: the file cannot be made, or is there and empty.
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
                os.link(file.name, path)  # whole or not at all, and never over one that a cluster uses
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
