"""Engines and memory of a served application that this process started."""

from collections.abc import Iterator
from contextlib import suppress

import psutil

from benchmarks.processes import role_of, this_and_below

ROLES = ("http proxy", "controller replica", "generator replica", "prm replica", "engine of")
"""Beginnings of the roles whose memory counts."""


def engine_processes() -> set[psutil.Process]:
    """The processes of all engines that run now; one that starts is not among them yet."""
    found = set()
    for process in this_and_below():
        with suppress(psutil.Error):
            if "".join(process.cmdline()[:1]).startswith("VLLM::"):
                found.add(process)
    return found


def memory_mb() -> dict[str, int]:
    """Resident memory of proxy, controllers, replicas and engines by role, in MB, without files and shared memory,
    which LMCache fills up to its limit."""
    sums: dict[str, int] = {}
    for process, role in _roles():
        with suppress(psutil.Error):
            memory = process.memory_info()
            sums[role] = sums.get(role, 0) + memory.rss - memory.shared
    return {role: size >> 20 for role, size in sorted(sums.items())}


def _roles() -> Iterator[tuple[psutil.Process, str]]:
    for process in this_and_below()[1:]:
        with suppress(psutil.Error):
            if (role := role_of(process)).startswith(ROLES):
                yield process, role
