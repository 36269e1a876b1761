"""Conditions of a start: whether Python may write bytecode, and whether other processes keep the cores busy."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.pace.checkouts import RAY_VARIABLES, Checkout

NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
OMITTED = RAY_VARIABLES | {
    NO_BYTECODE,
    "MAKEFLAGS",
    "MAKELEVEL",
    "PYTHONPATH",
    "PYTHONPYCACHEPREFIX",
    "VENV",
    "VIRTUAL_ENV",
}
"""Variables of the caller that are removed from the environment of both sides, as are the variables of a checkout."""
SETTLE_S = 60.0
LOOK_S = 2.0
IDLE_PERCENT = 5.0
"""Share of all cores that may be busy on an idle machine."""
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(1_000_000): pass"
"""A busy process. It ends with this program, even if this program is killed."""


class Condition(NamedTuple):
    """What a start is measured under."""

    writes_bytecode: bool
    """Whether Python may write bytecode, during set-up and at the start."""
    busy: bool = False
    """Whether a busy process per core runs beside the application."""

    def __str__(self) -> str:
        return f"{NO_BYTECODE}{'=1' if not self.writes_bytecode else ' unset'}, {'busy' if self.busy else 'quiet'}"

    @property
    def variables(self) -> dict[str, str]:
        return {} if self.writes_bytecode else {NO_BYTECODE: "1"}


QUIET = Condition(writes_bytecode=False)
CONDITIONS = (Condition(writes_bytecode=True), QUIET, Condition(writes_bytecode=False, busy=True))
"""In the order in which they are measured: conditions with the same bytecode setting share a ``.venv``."""


def environment(inherited: Mapping[str, str], checkouts: Sequence[Checkout], condition: Condition) -> dict[str, str]:
    """The caller's environment without variables that a checkout sets itself or that name another environment."""
    omitted = OMITTED.union(*(checkout.variables for checkout in checkouts))
    return {name: value for name, value in inherited.items() if name not in omitted} | condition.variables


def cache_variables(directory: Path) -> dict[str, str]:
    """Variables that put all caches of an application into ``directory``, vLLM's compiled code among them."""
    return {
        "XDG_CACHE_HOME": str(directory),
        "VLLM_CACHE_ROOT": str(directory / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
    }


def settle() -> None:
    """Waits until the machine is idle: the application before may still be ending, and its files being written."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline and psutil.cpu_percent(interval=LOOK_S) > IDLE_PERCENT:
        continue


@contextmanager
def busy_cores() -> Iterator[None]:
    """A busy process on each core."""
    with ExitStack() as stack:
        for _ in os.sched_getaffinity(0):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.DEVNULL))
            stack.callback(process.kill)
        yield
