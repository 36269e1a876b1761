"""What is compared: Banyan's engines in one process, lock step, and the served application. Each solves problems."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import httpx

from benchmarks.engines import Engines, engines_of, solve_all
from benchmarks.lock_step.beam_search import BeamSettings
from benchmarks.lock_step.worker import Batch, Question, Start
from benchmarks.lock_step.worker_pool import Worker, WorkerPool, worker_environment
from benchmarks.model_pairs import ModelPair
from benchmarks.on_gpu.setups import Setup
from deployments.embedded.problems import Problem
from search.run.runner import run_search
from search.settings import parse_search

BEAMS = BeamSettings()
SEARCH = {"strategy": "beam_search", "n": BEAMS.n, "m": BEAMS.m}
COUNTERS = (
    "generated_tokens",
    "engine_steps",
    "engine_step_requests",
    "preemptions",
    "prefix_hits",
    "external_hits",
    "ahead_begun",
    "ahead_adopted",
    "ahead_unused_tokens",
)
THREADS = 4
"""OpenMP threads of a process in lock step on a GPU's machine."""


class Task(NamedTuple):
    """A problem and the seed of its search."""

    problem: Problem
    seed: int

    @property
    def question(self) -> Question:
        return Question(self.problem.text, self.seed)


class Found(NamedTuple):
    """What became of a task."""

    answer: str | None
    steps: int
    tokens: int


class Side(Protocol):
    """One way of solving problems."""

    name: str

    async def solve(self, tasks: Sequence[Task], in_flight: int) -> list[Found]:
        """What became of each task, in their order; ``in_flight``: tasks at a time."""
        ...

    async def counters(self) -> Mapping[str, int]:
        """Counters of the engines; none if it has none."""
        ...


class Banyan:
    """Banyan's engines, controller and reward model in this process."""

    name = "banyan"

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self._turns = itertools.count()
        self._ahead = engines.generator._running.write_ahead
        self._auto = self._ahead.setting

    async def solve(self, tasks: Sequence[Task], in_flight: int, merge_siblings: bool = True) -> list[Found]:
        """Each turn has a cache salt of its own, so that it finds nothing of an earlier one."""
        turn = f"turn {next(self._turns)}"

        async def solve(task: Task, index: int) -> Found:
            settings = parse_search(SEARCH | {"seed": task.seed, "merge_siblings": merge_siblings})
            outcome = await run_search(
                task.problem.text,
                self.engines.prompt(task.problem.text),
                settings,
                self.engines.environment,
                search_id=f"{turn}: {index}",
                cache_salt=turn,
            )
            return Found(outcome.selection.answer, outcome.cost.nodes, outcome.cost.generated_tokens)

        return (await solve_all(solve, tasks, in_flight, 0))[0]

    @property
    def engine_facts(self) -> dict[str, Any]:
        """What vLLM decided about the generator: its model runner and the type of its weights."""
        config = self.engines.generator._running.engine.vllm_config
        return {"newer_runner": config.use_v2_model_runner, "dtype": str(config.model_config.dtype)}

    def write_ahead(self, on: bool) -> None:
        """Switches writing ahead. Calls are timed when it is off, too."""
        self._ahead.setting = self._auto if on else 0.0

    async def counters(self) -> Mapping[str, int]:
        stats = self.engines.generator.stats()
        return {name: stats[name] for name in COUNTERS}

    async def leftovers(self) -> list[str]:
        """What its engines hold although they are idle."""
        scorer = self.engines.scorer
        return await self.engines.generator.check_integrity() + await scorer.check_integrity()


@asynccontextmanager
async def banyan(setup: Setup, models: ModelPair) -> AsyncIterator[Banyan]:
    async with engines_of(setup.app_config(models)) as engines:
        yield Banyan(engines)


class LockStep:
    """Lock step on offline engines: one process with many problems at a time, or several with one problem each."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self.name = "lock_step" if len(workers) == 1 else f"lock_step in {len(workers)} processes"

    async def solve(self, tasks: Sequence[Task], in_flight: int) -> list[Found]:
        if len(self._workers) == 1:
            batch = Batch(tuple(task.question for task in tasks), in_flight)
            solved = await asyncio.to_thread(self._workers[0].solve_batch, batch)
        else:
            pool = WorkerPool(self._workers)
            solved, _ = await solve_all(lambda task, _: pool.solve(*task), tasks, in_flight, 0)
        return [Found(each["answer"], each["steps"], each["tokens"]) for each in solved]

    async def counters(self) -> Mapping[str, int]:
        return {}


@contextmanager
def lock_step_workers(setup: Setup, models: ModelPair, processes: int, log: Path) -> Iterator[list[Worker]]:
    """Starts processes with both engines each, all at once."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    # One thread on a CPU: several would wait for each other wherever the machine has something else to do.
    environment = worker_environment(os.environ, 1 if setup.cpu else THREADS)
    if not setup.cpu:  # vLLM's default: an engine has a process of its own, which schedules while the GPU computes
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    context_tokens = setup.app_config(models).search_context
    start = Start(cores, models.generator, models.prm, BEAMS, context_tokens, setup.lock_step_arguments())
    with ThreadPoolExecutor() as threads, ExitStack() as stack:
        starting = [threads.submit(Worker, start, environment, log) for _ in range(processes)]
        yield [stack.enter_context(closing(each.result())) for each in starting]


class Served:
    """The served application, with Ray Serve, HTTP and LMCache."""

    name = "served"

    def __init__(self, url: str) -> None:
        self._url = url

    async def solve(self, tasks: Sequence[Task], in_flight: int) -> list[Found]:
        from benchmarks.served_overhead import served

        async with served(self._url, SEARCH) as solve:
            found, _ = await solve_all(lambda task, _: solve(*task), tasks, in_flight, 0)
        return [Found(*each) for each in found]

    async def counters(self) -> Mapping[str, int]:
        async with httpx.AsyncClient(base_url=self._url, timeout=60.0) as http:
            replicas = (await http.get("/v1/status")).raise_for_status().json()["generator"]
        return {name: sum(replica.get(name, 0) for replica in replicas) for name in COUNTERS}
