"""Detects an engine that hangs: one that owes a reply and shows no sign of life.

vLLM notices an engine process that dies, not one that is stopped, blocked or spinning. Nothing here imports vLLM.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

import psutil  # type: ignore[import-untyped, unused-ignore]

TICK_S = 1.0
"""Interval between two observations of an engine."""
MIN_CPU_SHARE = 0.02
"""CPU time that counts as computing, as a share of one core. Idle threads use less; an engine step uses more, even on
the most crowded machine."""


class Signs(NamedTuple):
    """An observation of an engine. Both numbers only grow."""

    reports: int
    """Number of messages that it has sent."""
    progress: int
    """Number of messages that reported progress on its requests."""
    owes: bool
    """Whether it owes a reply: to a request, or to a ping."""


class HangDetector:
    """Decides from observations, about one per ``TICK_S``, whether an engine hangs. Single-threaded.

    During a long prefill or a compilation an engine sends nothing, but computes, on its cores or its devices. An engine
    that does neither hangs.
    """

    def __init__(self, stall_s: float, max_step_s: float) -> None:
        """
        Args:
            stall_s: time after which an engine hangs that owes a reply and neither sends nor computes.
            max_step_s: time after which an engine hangs that owes a reply and makes no progress, computing or not.
        """
        self.silent_s = 0.0
        """Seconds for which the engine has neither sent nor computed anything although it owes a reply."""
        self._stuck_s = 0.0
        self._stall_s = stall_s
        self._max_step_s = max_step_s
        self._last = Signs(0, 0, owes=False)

    def look(self, signs: Signs, computes: Callable[[], bool], seconds: float) -> str | None:
        """Records an observation. Returns a description of the hang, or None.

        Args:
            computes: returns whether the engine has computed since its last call; called only where the engine sent
                nothing.
            seconds: time since the last observation.
        """
        last, self._last = self._last, signs
        self._stuck_s = self._stuck_s + seconds if signs.owes and signs.progress == last.progress else 0.0
        silent = signs.owes and signs.reports == last.reports
        self.silent_s = self.silent_s + seconds if silent and not computes() else 0.0
        if self.silent_s >= self._stall_s:
            return f"the engine hangs: it has work but has done nothing for {self.silent_s:.0f} s"
        if self._stuck_s >= self._max_step_s:
            return f"the engine hangs: no progress on its requests for {self._stuck_s:.0f} s"
        return None


class EngineProcesses:
    """An engine's processes: its own and their descendants."""

    def __init__(self, pids: Iterable[int], devices_compute: Callable[[], bool] = lambda: False) -> None:
        """
        Args:
            devices_compute: returns whether the devices of these processes are computing. vLLM's model runners sleep
                while they wait for a GPU (``torch.cuda.Event(blocking=True)``).
        """
        self._roots = [psutil.Process(pid) for pid in pids]
        self._devices_compute = devices_compute
        self._cpu_s = 0.0

    def computes(self, seconds: float) -> bool:
        """Whether they have used CPU time since the last call, ``seconds`` ago, or their devices are computing.

        False if one of them is stopped, even where another engine keeps the devices busy.
        """
        cpu_s = 0.0
        stopped = False
        for process in self._all():
            with suppress(psutil.Error):
                times = process.cpu_times()
                cpu_s += times.user + times.system
                stopped = stopped or process.status() == psutil.STATUS_STOPPED
        last, self._cpu_s = self._cpu_s, cpu_s
        return not stopped and (cpu_s - last >= MIN_CPU_SHARE * seconds or self._devices_compute())

    def kill(self) -> None:
        """Kills them at once, stopped or not."""
        for process in self._all():
            with suppress(psutil.Error):
                process.kill()

    def _all(self) -> list[psutil.Process]:
        found = list(self._roots)
        for root in self._roots:
            with suppress(psutil.Error):
                found += root.children(recursive=True)
        return found
