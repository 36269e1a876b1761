"""Whether an engine hangs: it owes a sign of life and gives none.

vLLM notices an engine process that dies, not one that is stopped, blocked or spinning. Nothing here imports vLLM.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

import psutil  # type: ignore[import-untyped, unused-ignore]

TICK_S = 1.0
"""How often an engine is looked at."""
MIN_CPU_SHARE = 0.02
"""Of one core: less than this is what threads use that only wait. A step on the most crowded machine gets more."""


class Signs(NamedTuple):
    """What there is to see of an engine at one time. Both numbers only grow."""

    reports: int
    """Messages that it has sent."""
    progress: int
    """Messages that told of progress on its requests."""
    owes: bool
    """Whether it has requests, or a question, to which it has not replied yet."""


class HangDetector:
    """Judges an engine by looks at it, one every ``TICK_S`` or so. Single-threaded.

    A long prefill or a compilation sends nothing for a long time, but computes; what neither sends nor computes hangs.
    """

    def __init__(self, stall_s: float, max_step_s: float) -> None:
        """
        Args:
            stall_s: an engine that owes a reply, sends nothing and computes nothing for so long hangs.
            max_step_s: so does one that owes a reply and makes no progress for so long, whatever it does meanwhile.
        """
        self.silent_s = 0.0
        """For how long it has neither sent nor computed anything although it owes a reply."""
        self._stuck_s = 0.0
        self._stall_s = stall_s
        self._max_step_s = max_step_s
        self._last = Signs(0, 0, owes=False)

    def look(self, signs: Signs, computes: Callable[[], bool], seconds: float) -> str | None:
        """How the engine hangs, in words; None while nothing says that it does.

        Args:
            computes: whether it has computed since the last time that this was asked; asked only where it is silent.
            seconds: since the last look.
        """
        last, self._last = self._last, signs
        self._stuck_s = self._stuck_s + seconds if signs.owes and signs.progress == last.progress else 0.0
        silent = signs.owes and signs.reports == last.reports
        self.silent_s = self.silent_s + seconds if silent and not computes() else 0.0
        if self.silent_s >= self._stall_s:
            return f"the engine hangs: it owes a reply and has done nothing for {self.silent_s:.0f} s"
        if self._stuck_s >= self._max_step_s:
            return f"the engine hangs: no progress on its requests for {self._stuck_s:.0f} s"
        return None


class EngineProcesses:
    """An engine's own process and those below it."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._roots = [psutil.Process(pid) for pid in pids]
        self._cpu_s = 0.0

    def computes(self, seconds: float) -> bool:
        """Whether they have used CPU time since this was last asked ``seconds`` ago, and none of them is stopped."""
        cpu_s = 0.0
        stopped = False
        for process in self._all():
            with suppress(psutil.Error):
                times = process.cpu_times()
                cpu_s += times.user + times.system
                stopped = stopped or process.status() == psutil.STATUS_STOPPED
        last, self._cpu_s = self._cpu_s, cpu_s
        return not stopped and cpu_s - last >= MIN_CPU_SHARE * seconds

    def kill(self) -> None:
        """Ends them at once, stopped or not."""
        for process in self._all():
            with suppress(psutil.Error):
                process.kill()

    def _all(self) -> list[psutil.Process]:
        found = list(self._roots)
        for root in self._roots:
            with suppress(psutil.Error):
                found += root.children(recursive=True)
        return found
