"""Where the problems of strategies are solved: off the event loop on which all searches of a process run."""

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
"""Wall clock of a worker's start, in which it also imports the operator's function."""
SOLVE_S = 30.0
"""Wall clock of one problem: for a worker that is stopped or gets no processor, and for an operator's function that is
slow. What decides in all other cases are limits on a problem's own steps, which are the same on any machine."""

logger = logging.getLogger("banyan.solver")


class SolverError(RuntimeError):
    """The solver cannot be started."""


class Solver:
    """Solves problems in threads of this process: quick to have, and they still hold its loop for some milliseconds."""

    async def solve(self, problem: Problem) -> Any:
        """What the problem's function makes of its argument."""
        return await asyncio.to_thread(problem.function, problem.argument, None)


class ProcessSolver(Solver):
    """Solves problems in a process of its own, one at a time. One for a whole process, any event loop.

    A problem that it cannot solve, or not in time, gets its fallback, and a line in the log.
    """

    def __init__(self, step_clusters: str | None = None) -> None:
        """
        Args:
            step_clusters: import path of the operator's `search.problem.StepClusters`, which the worker calls. None:
                steps are told apart by their formulas and words.
        """
        # The worker finds modules where this process does, also those that an operator has added to the path.
        greeting = json.dumps({"path": sys.path, "step_clusters": step_clusters})
        self._worker = WorkerProcess("solver", WORKER_SCRIPT, STARTUP_S, greeting.encode() + b"\n")
        # One thread is the queue to the one worker.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="solver")
        self._closing = False

    async def start(self) -> None:
        """Starts the worker ahead of the first problem, which would wait seconds for it.

        Raises:
            SolverError: it cannot be started, or cannot import what ``step_clusters`` names.
        """
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._start)
        except WorkerLost as error:
            raise SolverError(str(error)) from error

    async def solve(self, problem: Problem) -> Any:
        # In the search's own context: a warning there belongs to it.
        solve = copy_context().run
        return await asyncio.get_running_loop().run_in_executor(self._thread, solve, self._solve, problem)

    def close(self) -> None:
        """Ends the worker, working or not."""
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
        """Runs in the thread."""
        if self._closing:
            return problem.fallback
        try:
            self._start()
            line = json.dumps([problem.name, problem.argument]).encode() + b"\n"
            reply = json.loads(self._worker.exchange(line, SOLVE_S))
            if reply["error"] is None:
                return reply["solution"]
            # The class of what was raised, not its words, which may quote a step.
            reason = reply["error"].partition(":")[0]
        except (WorkerLost, SolverError) as error:
            reason = str(error)
        logger.warning("%s was not solved and gets its fallback: %s", problem.name, reason)
        return problem.fallback
