"""The checkouts of both sides, and their set-up."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

from benchmarks.pace.checkouts import ROOT, Checkout, worktree

MAX_ERROR_LINES = 40


class SetUpError(RuntimeError):
    """``make setup`` failed. Ends with the tail of its output."""


class SetUp(NamedTuple):
    """A set-up of a clean checkout with empty package caches."""

    side: str
    writes_bytecode: bool
    seconds: float
    venv_mb: int
    """Disk space of ``.venv``."""

    @property
    def json(self) -> dict[str, Any]:
        return self._asdict() | {"seconds": round(self.seconds, 1)}


@contextmanager
def clean_checkout(name: str, commit: str, directory: Path) -> Iterator[Checkout]:
    """A checkout of the commit in ``directory`` (not there yet) that runs in a ``.venv`` of its own. Removed at the
    end."""
    with worktree(commit, directory):
        yield Checkout(name, directory, directory / ".venv" / "bin" / "python")


def has_uncommitted_changes() -> bool:
    """Whether the working tree that this program is part of differs from HEAD, results of benchmarks aside."""
    command = ["git", "status", "--porcelain", "--", ".", ":(exclude)benchmarks/results"]
    return bool(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip())


def set_up(checkout: Checkout, writes_bytecode: bool, inherited: Mapping[str, str], directory: Path) -> SetUp:
    """Removes everything from a checkout that is not committed, and runs its ``make setup``.

    Args:
        directory: for temporary files and package caches; not there yet, removed at the end.

    Raises:
        SetUpError: the set-up failed.
    """
    subprocess.run(["git", "clean", "-ffdxq"], cwd=checkout.root, check=True)
    directory.mkdir(parents=True)
    caches = {"UV_CACHE_DIR": str(directory / "uv"), "PIP_CACHE_DIR": str(directory / "pip")}
    log = directory / "setup.log"
    try:
        began = time.monotonic()
        status = _run(
            ["make", "--no-print-directory", "setup"],
            checkout.root,
            {**inherited, **caches, "TMPDIR": str(directory)},
            log,
        )
        seconds = time.monotonic() - began
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-MAX_ERROR_LINES:])
    finally:
        rmtree(directory, ignore_errors=True)
    if status:
        raise SetUpError(f"`make setup` of {checkout.name} ended with status {status}:\n{tail}")
    return SetUp(checkout.name, writes_bytecode, seconds, disk_mb(checkout.root / ".venv"))


def disk_mb(directory: Path) -> int:
    """Disk space of a directory in MB, as ``du`` counts it."""
    done = subprocess.run(["du", "-sm", directory], check=True, capture_output=True, text=True)
    return int(done.stdout.split()[0])


def _run(command: list[str], directory: Path, environment: Mapping[str, str], log: Path) -> int:
    """Runs a command in a session of its own, and returns its status. No process of the session is left."""
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            return process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
