"""Environment variables of Banyan's processes: ``environment.sh`` beside this module, which `make` and `sh` read, too.

Imports nothing that reads the variables.
"""

import os
import re
import sys
from collections.abc import MutableMapping
from pathlib import Path
from string import Template

from deployments.engines.service_links import drop_service_links

FILE = Path(__file__).with_name("environment.sh")
ASSIGNMENT = re.compile(r"export (?P<name>[A-Za-z_]+)=(?P<value>\S*)")


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
            raise ValueError(
                f"{FILE}:{number}: only lines `export NAME=value` are allowed: make, sh and Python read the file"
            )
        found[assignment["name"]] = Template(assignment["value"]).substitute(HOME=Path.home())
    return found


def set_environment(environment: MutableMapping[str, str] = os.environ) -> None:
    """Sets each variable that is not set yet; one that is empty in the file is always set, to turn it off. Removes the
    ``…_PORT`` variables that Kubernetes sets for Services.

    Call it before importing Ray, Serve or vLLM, which then read most.
    """
    for name, value in variables().items():
        if name not in environment or not value:
            environment[name] = value
    drop_service_links(environment)
    if environment is os.environ:  # Python has read its own variable
        sys.dont_write_bytecode = bool(environment["PYTHONDONTWRITEBYTECODE"])
