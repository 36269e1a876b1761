"""Processes of an application: which of them end together, and what they leave in shared memory."""

import re
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.processes import engines_of, has_ended

PID = re.compile(r"(?<=[_-])\d{2,7}(?=[_-])")
SHARED_MEMORY = Path("/dev/shm")
REMOVED_WITHIN_S = 30.0


class Replica(NamedTuple):
    """A replica of an engine's deployment, and the processes of its engine."""

    deployment: str
    process: psutil.Process
    engine: tuple[psutil.Process, ...]


def replicas(*deployments: str) -> list[Replica]:
    """Replicas below this process, which started Ray. A replica that is just ending is left out."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            name = " ".join(process.cmdline())
            match = re.match(r"ray::ServeReplica:banyan:(\w+)", name)
            if match and match[1] in deployments:
                found.append(Replica(match[1], process, tuple(engines_of(process))))
        except psutil.Error:
            continue
    return found


def below(process: psutil.Process) -> list[psutil.Process]:
    """The process, its descendants, and the engines of any of them, which still run."""
    try:
        found = {process, *process.children(recursive=True)}
    except psutil.NoSuchProcess:
        return []
    found |= {engine for each in found for engine in engines_of(each)}
    return [process, *(found - {process})]


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The processes that still run: neither gone, nor zombies, nor another process with the same pid."""
    return [each for each in processes if not has_ended(each)]


def shared_memory() -> set[str]:
    """Names in shared memory, including semaphores (``sem.…``)."""
    return {path.name for path in SHARED_MEMORY.iterdir()}


def assert_none_unused(before: set[str]) -> None:
    """Checks that nothing is left in shared memory once the cache server's keeper has had time to look."""
    deadline = time.monotonic() + REMOVED_WITHIN_S
    while unused := unused_since(before):
        assert time.monotonic() < deadline, f"left in shared memory: {sorted(unused)}"
        time.sleep(1.0)


def unused_since(before: set[str]) -> set[str]:
    """Names in shared memory that are new, that no process maps or holds open, and whose creator, if the name contains
    its pid (``lmcache_kv_PID_0``, ``sem.loky-PID-…``), is gone: nothing will ever remove them."""
    new = shared_memory() - before
    if not new:
        return set()
    used: set[str] = set()
    for process in psutil.process_iter():
        try:
            paths = [Path(entry.path) for entry in process.memory_maps(grouped=True)]
            paths += [Path(entry.path) for entry in process.open_files()]
        except (psutil.Error, OSError):
            continue
        used |= {path.name for path in paths if path.parent == SHARED_MEMORY}
    return {name for name in new - used if not any(psutil.pid_exists(int(pid)) for pid in PID.findall(name))}
