"""Runs a program and its test, for `cluster.evaluation.code_test`; started as ``python -I -S`` with an empty
environment.

Reads sources, limits and a proof from standard input, and writes the proof to standard output if every source ran to
its end. A program that ends the process, or prints, proves nothing.
"""

import json
import os
import resource
import sys
import types
from functools import partial
from typing import Any

REFUSED = ("socket.", "subprocess.", "ctypes.", "os.exec", "os.fork", "os.kill", "os.posix_spawn", "os.spawn")
"""Beginnings of the names of audit events that no graded program needs."""
REFUSED_WHOLE = frozenset({"os.system", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.putenv"})


def main() -> None:
    """Exits at the first error."""
    given = json.load(sys.stdin)
    proof = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    seconds, memory = given["seconds"], given["memory"]
    for limit, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        resource.setrlimit(limit, (most, most))
    module = types.ModuleType("program")
    sys.modules["program"] = module
    sys.addaudithook(partial(_refuse, (*sys.path,)))
    for source in given["sources"]:
        exec(compile(source, "program", "exec"), module.__dict__)  # noqa: S102  # that is what it is for
    os.write(proof, given["proof"].encode())


def _refuse(library: tuple[str, ...], event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook. ``library``: the directories from which files may be read."""
    if event.startswith(REFUSED) or event in REFUSED_WHOLE:
        raise PermissionError(f"{event} is refused")
    if event == "open":
        path, mode, _ = arguments
        written = isinstance(mode, str) and any(letter in mode for letter in "wax+")
        if written or not isinstance(path, str) or not path.startswith(library):
            raise PermissionError("files are refused")


main()
