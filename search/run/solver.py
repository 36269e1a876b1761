"""Solvers: they run the problems of strategies off the event loop that all searches of a process share."""

import asyncio
import json
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

from search.problem import Problem
from search.tools.worker_process import WorkerLost, WorkerProcess

WORKER_SCRIPT = Path(__file__).with_name("solver_worker.py")
STARTUP_S = 120.0
"""Timeout of a worker's start, which includes the import of the operator's function."""
SOLVE_S = 30.0
"""Timeout of one problem, wall clock. It is for a worker that is stopped or gets no CPU, and for an operator's slow
function. Normally a limit on the problem's own steps applies first, which is the same on any machine."""

logger = logging.getLogger("banyan.solver")


class SolverError(RuntimeError):
    """The solver cannot be started."""


class Solver:
    """Solves problems in threads of this process. It needs no start, but a problem can still block the event loop for
    some milliseconds."""

    async def solve(self, problem: Problem) -> Any:
        """The result of the problem's function for its argument."""
        return await asyncio.to_thread(problem.function, problem.argument, None)


class ProcessSolver(Solver):
    """Solves problems in a worker process, one at a time. One instance serves a whole process and any event loop.

    A thread would not do: HiGHS and scipy rarely release the interpreter's lock (2 to 19 ms for 256 leaves, 0.5 ms with
    a process).

    If a problem fails or times out, its fallback is returned and a warning is logged.
    """

    def __init__(self, step_clusters: str | None = None) -> None:
        """
        Args:
            step_clusters: import path of the operator's `search.problem.StepClusters`, which the worker calls. None:
                steps are clustered by their formulas and words.
        """
        # The worker gets this process's module path, with whatever an operator has added to it.
        greeting = json.dumps({"path": sys.path, "step_clusters": step_clusters})
        self._worker = WorkerProcess("solver", WORKER_SCRIPT, STARTUP_S, greeting.encode() + b"\n")
        # One thread is the queue to the one worker.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="solver")
        self._closing = False

    async def start(self) -> None:
        """Starts the worker now, so that the first problem does not wait seconds for it.

        Raises:
            SolverError: the worker cannot be started, or cannot import ``step_clusters``.
        """
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._start)
        except WorkerLost as error:
            raise SolverError(str(error)) from error

    async def solve(self, problem: Problem) -> Any:
        # In the search's own context, so that a logged warning belongs to that search.
        solve = copy_context().run
        return await asyncio.get_running_loop().run_in_executor(self._thread, solve, self._solve, problem)

    def close(self) -> None:
        """Ends the worker, busy or not."""
        self._closing = True
        self._worker.kill()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._worker.close()

    def _start(self) -> None:
        if said := self._worker.start():
            error = json.loads(said)["error"]
            if error is not None:
                self._worker.close()
                raise SolverError(error)

    def _solve(self, problem: Problem) -> Any:
        """The solution or the fallback. Runs in the thread."""
        if self._closing:
            return problem.fallback
        try:
            self._start()
            line = json.dumps([problem.name, problem.argument]).encode() + b"\n"
            reply = json.loads(self._worker.exchange(line, SOLVE_S))
            if reply["error"] is None:
                return reply["solution"]
            # Only the exception's class: its message may quote a step.
            reason = reply["error"].partition(":")[0]
        except (WorkerLost, SolverError) as error:
            reason = str(error)
        logger.warning("%s failed in the solver process, its fallback is used: %s", problem.name, reason)
        return problem.fallback
