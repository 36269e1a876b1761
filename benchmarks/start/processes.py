"""Samples of an application's processes: when each began and ended, and the CPU time that it took."""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, Self

import psutil

from benchmarks.processes import watched_by
from benchmarks.start.process_names import COMPILER, ENGINE, RAY_WORKERS, REPLICA, process_name

SAMPLE_S = 0.25
MIN_CPU_S = 0.3
"""CPU time from which a process has a row."""
SUMMED = frozenset({COMPILER, RAY_WORKERS})
"""Names whose processes share a row."""


class ProcessRow(NamedTuple):
    """A process, or all processes of a name in ``SUMMED``. Times in seconds since the start."""

    name: str
    began: float
    ended: float | None
    """None if it still ran at the end of the measurement."""
    cpu_s: float
    nice: int
    processes: int = 1

    @property
    def json(self) -> list[str | float | int | None]:
        """A list in the order of the fields, with rounded times."""
        ended = None if self.ended is None else round(self.ended, 2)
        return [self.name, round(self.began, 2), ended, round(self.cpu_s, 2), self.nice, self.processes]


@dataclass
class Sampled:
    """What samples showed of a process. Times in seconds since the command began."""

    pid: int
    began: float
    parent: int | None
    """Process id of its first parent; None for the command and for detached processes."""
    titles: list[str] = field(default_factory=list)
    last_seen: float = 0.0
    cpu_s: float = 0.0
    children_cpu_s: float = 0.0
    """CPU time of its children that have ended, and of theirs."""
    nice: int = 0


class ProcessSamples:
    """A thread that samples the command's process, its descendants, and processes that detached from them."""

    def __init__(self, command: int, directory: Path) -> None:
        """``command``: the process id of ``banyan serve``. ``directory``: its TMPDIR, by which detached processes are
        known."""
        self._command, self._directory = command, str(directory)
        # Creation times come from the kernel's clock and differ from `time.time()` by up to a second.
        self._created, self._began = psutil.Process(command).create_time(), time.monotonic()
        self._processes: dict[psutil.Process, Sampled] = {}
        self._by_pid: dict[int, Sampled] = {}
        self._now = 0.0
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def rows(self, since: float = 0.0) -> list[ProcessRow]:
        """The rows of all processes that began at least ``since`` seconds after the command, relative to that time."""
        with self._lock:
            self._sample()
            adopt_forks(self._by_pid)
            return process_rows(self._by_pid, self._now, since)

    @property
    def seconds(self) -> float:
        """Seconds since the command began."""
        return time.monotonic() - self._began

    def _run(self) -> None:
        while not self._end.wait(SAMPLE_S):
            with self._lock:
                self._sample()

    def _sample(self) -> None:
        self._now = self.seconds
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError), process.oneshot():
                known = self._processes.get(process) or self._add(process)
                if known is None:
                    continue
                known.last_seen = self._now
                times = process.cpu_times()
                known.cpu_s = times.user + times.system
                known.children_cpu_s = times.children_user + times.children_system
                known.nice = process.nice()
                title = " ".join(process.cmdline()).strip()
                if title and title not in known.titles:
                    known.titles.append(title)

    def _add(self, process: psutil.Process) -> Sampled | None:
        """None if it is not one of the application's."""
        created = process.create_time()
        if created < self._created:
            return None
        parent: int | None = process.ppid()
        if parent not in self._by_pid:
            parent = None
            # Ray's workers write their title over their environment, but they are descendants.
            if process.pid != self._command and process.environ().get("TMPDIR") != self._directory:
                return None
        sampled = Sampled(process.pid, created - self._created, parent)
        self._processes[process] = self._by_pid[process.pid] = sampled
        return sampled


def adopt_forks(processes: Mapping[int, Sampled]) -> None:
    """Makes replicas the parents of their engines that a template process has forked: a replica holds a pidfd of its
    engine. Both must still run."""
    names = {pid: _name(each, processes) for pid, each in processes.items()}
    engines = {pid for pid, name in names.items() if name == ENGINE}
    for replica, name in names.items() if engines else ():
        if name.startswith(REPLICA):
            for engine in engines & watched_by(replica):
                processes[engine].parent = replica


def process_rows(processes: Mapping[int, Sampled], now: float, since: float = 0.0) -> list[ProcessRow]:
    """Rows of all processes that began at ``since`` or later and took ``MIN_CPU_S``, in the order of their beginnings.

    ``now``: the time of the last sample; a process that it did not see has ended.
    """
    names = {pid: _name(each, processes) for pid, each in processes.items()}
    counted = {pid: each for pid, each in processes.items() if each.began >= since}
    rows = [
        ProcessRow(
            names[pid],
            each.began - since,
            each.last_seen - since if each.last_seen < now else None,
            each.cpu_s,
            each.nice,
        )
        for pid, each in counted.items()
    ]
    compiled_s = _compilers_cpu_s(names, counted)
    rows = [row._replace(cpu_s=max(row.cpu_s, compiled_s)) if row.name == COMPILER else row for row in _summed(rows)]
    return sorted((row for row in rows if row.cpu_s >= MIN_CPU_S), key=lambda row: row.began)


def _summed(rows: Iterable[ProcessRow]) -> Iterator[ProcessRow]:
    for name, group in groupby(sorted(rows, key=lambda row: row.name), key=lambda row: row.name):
        same = list(group)
        if name not in SUMMED:
            yield from same
            continue
        ended = [row.ended for row in same if row.ended is not None]
        yield ProcessRow(
            name,
            min(row.began for row in same),
            max(ended) if len(ended) == len(same) else None,
            sum(row.cpu_s for row in same),
            max(row.nice for row in same),
            len(same),
        )


def _compilers_cpu_s(names: Mapping[int, str], processes: Mapping[int, Sampled]) -> float:
    """CPU time of all children of processes that ran compilers. Samples miss compilers that end within
    ``SAMPLE_S``; such a process has hardly any other children that end."""
    parents = {each.parent for pid, each in processes.items() if names[pid] == COMPILER}
    return sum(each.children_cpu_s for pid, each in processes.items() if pid in parents and names[pid] != COMPILER)


def _name(process: Sampled, processes: Mapping[int, Sampled]) -> str:
    return process_name(process.titles, (process_name(each.titles) for each in _ancestors(process, processes)))


def _ancestors(process: Sampled, processes: Mapping[int, Sampled]) -> Iterator[Sampled]:
    while process.parent is not None and process.parent in processes and process.parent != process.pid:
        process = processes[process.parent]
        yield process
