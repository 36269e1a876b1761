"""The lock-step side as seen by the benchmark: one worker process per core, a problem at a time on each; and one worker
on all cores for problems alone, where the model is large enough to gain by it."""

import asyncio
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.lock_step.beam_search import BeamSettings
from benchmarks.lock_step.worker import Batch, Question, Start
from benchmarks.model_pairs import ModelPair
from deployments.embedded.problems import Problem
from deployments.engines.allocator import allocator_environment
from deployments.engines.cores import is_small_model
from deployments.engines.settings import GeneratorSettings

ROOT = Path(__file__).parents[2]
START_S = 900.0
"""Longest wait for a worker to start: it compiles two models where no compiled code is cached."""
SOLVE_S = 600.0
"""Longest wait for one batch of problems."""
END_S = 15.0
"""Longest wait for a worker to end by itself."""
LOG_TAIL = 2000
"""Characters of a worker's log that an error quotes."""


class WorkerFailed(RuntimeError):
    """A worker process ended or gave no reply in time."""


class Worker:
    """One worker process. Blocking; for one thread at a time."""

    def __init__(self, start: Start, environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.lock_step.worker"],
                cwd=ROOT,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
            )
        try:
            self._exchange(start, START_S)
        except WorkerFailed:
            self.close()
            raise

    def solve(self, question: Question) -> dict[str, Any]:
        """The fields of ``benchmarks.lock_step.engines.Solved``.

        Raises:
            WorkerFailed: the worker ended or gave no reply in time.
        """
        [solved] = self.solve_batch(Batch((question,), 1))
        return solved

    def solve_batch(self, batch: Batch) -> list[dict[str, Any]]:
        """The same for each of several problems."""
        solved: list[dict[str, Any]] = self._exchange(batch, SOLVE_S)
        return solved

    def close(self) -> None:
        """Ends the process by closing its stdin, or kills it if it does not end then."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _exchange(self, request: Start | Batch, timeout_s: float) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            reply = json.loads(self._read_line(time.monotonic() + timeout_s))
        except (OSError, EOFError) as error:
            tail = self._log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:]
            raise WorkerFailed(
                f"a worker ended or gave no reply in {timeout_s:g} s; its log ends with:\n{tail}"
            ) from error
        return reply

    def _read_line(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                raise EOFError
            line += piece
        return line


class WorkerPool:
    """Idle and busy workers. A worker solves one problem at a time."""

    def __init__(self, workers: Sequence[Worker], start_wide: Callable[[], Worker] | None = None) -> None:
        """
        Args:
            start_wide: starts a worker on all cores, for problems alone; they go to one of the others if it is None.
        """
        self.size = len(workers)
        self._start_wide = start_wide
        self._wide: Worker | None = None
        # Last in, first out: problems that come one at a time all go to the same worker.
        self._idle: asyncio.LifoQueue[Worker] = asyncio.LifoQueue()
        for worker in workers:
            self._idle.put_nowait(worker)

    @asynccontextmanager
    async def for_problems_alone(self) -> AsyncIterator[None]:
        """Has the worker on all cores meanwhile: while the others are at work, memory does not suffice for it, too."""
        if self._start_wide is None:
            yield
            return
        self._wide = wide = await asyncio.to_thread(self._start_wide)
        try:
            yield
        finally:
            self._wide = None
            await asyncio.to_thread(wide.close)

    async def solve_alone(self, problem: Problem, seed: int) -> dict[str, Any]:
        """Solves a problem while no other worker has one; within `for_problems_alone`."""
        if self._wide is None:
            return await self.solve(problem, seed)
        return await asyncio.to_thread(self._wide.solve, Question(problem.text, seed))

    async def solve(self, problem: Problem, seed: int) -> dict[str, Any]:
        """Solves a problem on the next idle worker; see ``Worker.solve``."""
        worker = await self._idle.get()
        try:
            return await asyncio.to_thread(worker.solve, Question(problem.text, seed))
        finally:
            self._idle.put_nowait(worker)


@contextmanager
def worker_pool(models: ModelPair, search: BeamSettings, context_tokens: int, logs: Path) -> Iterator[WorkerPool]:
    """One worker on each core that this process may use, and one on all cores unless the models are small.

    Args:
        context_tokens: most tokens of prompt and path together.
        logs: directory of the workers' logs.
    """
    cores = tuple(sorted(os.sched_getaffinity(0)))
    with ExitStack() as stack:

        def started(cores: tuple[int, ...]) -> Worker:
            environment = worker_environment(os.environ, len(cores))
            start = Start(cores, models.generator, models.prm, search, context_tokens)
            return Worker(start, environment, logs / f"worker-{'-'.join(map(str, cores))}.log")

        # One after the other: the first compiles, the others find the code in the cache.
        workers = [stack.enter_context(closing(started((core,)))) for core in cores]
        gains = len(cores) > 1 and not is_small_model(GeneratorSettings(model=models.generator).model_path)
        yield WorkerPool(workers, partial(started, cores) if gains else None)


def worker_environment(environment: Mapping[str, str], threads: int) -> dict[str, str]:
    """Environment of a worker: ``environment`` without the allocator settings of Banyan's controllers, with tcmalloc as
    vLLM's documentation asks for, and ``threads`` per engine."""
    kept = {
        name: value for name, value in environment.items() if not name.startswith("MALLOC_") and name != "LD_PRELOAD"
    }
    return kept | {
        **allocator_environment(preload=True),
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # engines in the worker's own process
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_NO_USAGE_STATS": "1",
    }
