"""CPU seconds by process role, while something runs."""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil

_NAMES = (
    (r"ServeReplica:[\w-]*:?Generator", "generator replica"),
    (r"ServeReplica:[\w-]*:?ProcessRewardModel", "prm replica"),
    (r"ServeReplica:[\w-]*:?SearchController", "controller replica"),
    (r"ServeController", "serve controller"),
    (r"ProxyActor", "http proxy"),
    (r"VLLM::", "engine core"),
    (r"deployments\.engines\.template", "engine template"),
    (r"lmcache", "lmcache server"),
    (r"raylet|gcs_server|/ray/", "ray"),
)


_DETACHED = re.compile(r"lmcache\.v1|deployments\.engines\.template")
_PIDFD = re.compile(r"^Pid:\s*(\d+)$", re.MULTILINE)


def this_and_below() -> list[psutil.Process]:
    """This process, its descendants, and the detached processes: cache servers, engine templates and their engines."""
    this = psutil.Process()
    found = {this, *this.children(recursive=True)}
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if each.create_time() >= this.create_time() and _DETACHED.search(" ".join(each.cmdline())):
                found |= {each, *each.children(recursive=True)}
    return [this, *(found - {this})]


def engines_of(replica: psutil.Process) -> list[psutil.Process]:
    """The engine processes of a replica: spawned, so its descendants, or forked by a template and watched by it. None
    if it has ended."""
    found: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        found += replica.children(recursive=True)
    for pid in watched_by(replica.pid):
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return [each for each in found if _is_engine(each)]


def children_named(name: str) -> list[psutil.Process]:
    """Processes of this name that this process has started and that have not ended."""
    found = []
    for each in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if each.name() == name and not has_ended(each):
                found.append(each)
    return found


def has_ended(process: psutil.Process) -> bool:
    """Whether a process is gone or a zombie. It may end between any two questions that are put to it."""
    with suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def watched_by(pid: int) -> set[int]:
    """Process ids that a process holds pidfds of; none if it has ended."""
    watched: set[int] = set()
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/fdinfo").iterdir():
            with suppress(OSError):
                watched.update(int(found[1]) for found in _PIDFD.finditer(each.read_text()))
    return {each for each in watched if psutil.pid_exists(each)}


def _is_engine(process: psutil.Process) -> bool:
    """By the title that vLLM sets or, before it does, as a spawned or forked process."""
    with suppress(psutil.Error):
        command = " ".join(process.cmdline())
        return command.startswith("VLLM::") or "multiprocessing.spawn" in command or "engines.template" in command
    return False


class CpuClock:
    """CPU seconds since its creation, by role."""

    def __init__(self, processes: Callable[[], Iterable[psutil.Process]] = this_and_below) -> None:
        """``processes``: returns the processes that count."""
        self._processes = processes
        self._before = self._snapshot()
        self._busy_before = _busy_s()

    def spent(self) -> dict[str, float]:
        """CPU seconds by role, largest first; roles under a hundredth of a second are left out."""
        spent: dict[str, float] = defaultdict(float)
        for pid, (role, seconds) in self._snapshot().items():
            _, before = self._before.get(pid, (role, 0.0))
            spent[role] += seconds - before
        ordered = sorted(spent.items(), key=lambda of: -of[1])
        return {role: round(seconds, 2) for role, seconds in ordered if seconds >= 0.01}

    def elsewhere(self) -> float:
        """CPU seconds of this machine that went to other processes."""
        return max(0.0, _busy_s() - self._busy_before - sum(self.spent().values()))

    def _snapshot(self) -> dict[int, tuple[str, float]]:
        """Role and CPU seconds by process id."""
        this = psutil.Process()
        found: dict[int, tuple[str, float]] = {}
        for process in self._processes():
            try:
                times = process.cpu_times()
                role = "benchmark" if process.pid == this.pid else role_of(process)
            except psutil.Error:
                continue
            found[process.pid] = (role, times.user + times.system)
        return found


async def at_rest(seconds: float) -> dict[str, float]:
    """CPU seconds per second of the idle processes, by role, measured over ``seconds``."""
    clock, began = CpuClock(), time.perf_counter()
    await asyncio.sleep(seconds)
    took = time.perf_counter() - began
    return {role: spent / took for role, spent in clock.spent().items()}


def _busy_s() -> float:
    """CPU seconds for which all cores together were not idle, including time that the host took away."""
    times = psutil.cpu_times()
    # User time includes guest time.
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def role_of(process: psutil.Process) -> str:
    """Role of a process in the application."""
    name = " ".join(process.cmdline()) or process.name()
    role = next((role for pattern, role in _NAMES if re.search(pattern, name)), "other")
    if role == "engine core":
        return f"engine of {_owner_of(process)}"
    return role


def _owner_of(engine: psutil.Process) -> str:
    """The role of the replica that has this engine, or ``benchmark``."""
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            name = " ".join(each.cmdline())
            role = next((role for pattern, role in _NAMES[:2] if re.search(pattern, name)), None)
            if role and engine in engines_of(each):
                return role
    return "benchmark"
