"""CPU seconds by process role, while something runs."""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

import psutil

_NAMES = (
    (r"ServeReplica:[\w-]*:?Generator", "generator replica"),
    (r"ServeReplica:[\w-]*:?ProcessRewardModel", "prm replica"),
    (r"ServeReplica:[\w-]*:?SearchController", "controller replica"),
    (r"ServeController", "serve controller"),
    (r"ProxyActor", "http proxy"),
    (r"VLLM::", "engine core"),
    (r"lmcache", "lmcache server"),
    (r"raylet|gcs_server|/ray/", "ray"),
)


def this_and_below() -> list[psutil.Process]:
    """This process, all processes that it started, and the cache servers, which detach."""
    this = psutil.Process()
    found = [this, *this.children(recursive=True)]
    return found + [each for each in psutil.process_iter() if each not in found and _is_cache_server_of(this, each)]


def _is_cache_server_of(this: psutil.Process, other: psutil.Process) -> bool:
    try:
        return other.create_time() >= this.create_time() and "lmcache.v1" in " ".join(other.cmdline())
    except psutil.Error:
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
        # The engine's process is its replica's child, or this benchmark's.
        parent = process.parent()
        above = " ".join(parent.cmdline()) if parent else ""
        owner = next((label for pattern, label in _NAMES[:2] if re.search(pattern, above)), "benchmark")
        return f"engine of {owner}"
    return role
