"""The parts of the benchmark: what each of them measures, in the order of what matters."""

import asyncio
import itertools
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from benchmarks.lock_step.beam_search import is_right
from benchmarks.model_pairs import EMBEDDED, ModelPair, large_pair
from benchmarks.on_gpu.setups import Mode, Setup
from benchmarks.on_gpu.sides import Banyan, Found, LockStep, Served, Side, Task, banyan, lock_step_workers
from deployments.embedded.problems import Split, draw_problems

SEED = 13
IN_FLIGHT = 16
"""The load that is claimed about, and that of the warm-up."""
LOADS = (IN_FLIGHT, 1, 64)
PROCESSES = (2, 4)
MOST_TASKS = 128
"""Tasks of one turn."""
COMPARED = 20
"""Number of problems whose results are compared: the last ones that lock step solved, some of them one at a time."""


FINISHED = {"finished": True}
"""The last row of a part whose engines need no orderly end: it is ended at once, which saves it ten seconds."""


class Measurement:
    """The turns of one part. Each has new problems, the same ones for both sides."""

    def __init__(self, part: "Part", setup: Setup, log: Path, report: TextIO) -> None:
        """
        Args:
            log: of processes that are started.
            report: gets a line of JSON for each turn.
        """
        self.setup, self.log = setup, log
        self.models: ModelPair = large_pair() if part.heavy and not setup.cpu else EMBEDDED
        self._report = report
        self._began = time.perf_counter()
        self._tasks = map(Task, draw_problems(Split.TEST, SEED), itertools.count(1))
        self.found: dict[tuple[str, Task], Found] = {}
        """What became of each task, by side."""

    def report(self, row: Mapping[str, Any]) -> None:
        print(json.dumps({"at_s": round(time.perf_counter() - self._began, 1), **row}), file=self._report, flush=True)

    def finished(self) -> None:
        print(json.dumps(FINISHED), file=self._report, flush=True)

    def tasks(self, in_flight: int) -> list[Task]:
        """Tasks for one turn: seconds of them, few on a CPU."""
        count = max(2, in_flight // 8) if self.setup.cpu else min(max(8, 4 * in_flight), MOST_TASKS)
        return list(islice(self._tasks, count))

    async def turn(self, side: Side, tasks: Sequence[Task], in_flight: int, **labels: Any) -> None:
        """Solves tasks on one side and reports the figures."""
        before, began = await side.counters(), time.perf_counter()
        found = await side.solve(tasks, in_flight)
        seconds, after = time.perf_counter() - began, await side.counters()
        self.found |= {(side.name, task): each for task, each in zip(tasks, found, strict=True)}
        tokens = sum(each.tokens for each in found)
        self.report(
            {
                "side": side.name,
                "in_flight": in_flight,
                **labels,
                "problems": len(tasks),
                "seconds": round(seconds, 3),
                "problems_per_s": round(len(tasks) / seconds, 3),
                "tokens_per_s": round(tokens / seconds),
                "right": sum(
                    is_right(each.answer, task.problem.answer) for task, each in zip(tasks, found, strict=True)
                ),
                "steps": sum(each.steps for each in found),
                "tokens": tokens,
                **{name: after[name] - before[name] for name in after},
            }
        )

    async def warm_up(self, *sides: Side) -> None:
        tasks = self.tasks(IN_FLIGHT)
        for side in sides:
            await self.turn(side, tasks, IN_FLIGHT, warm_up=True)

    async def compare(self, side: Side, solving: Awaitable[Sequence[Found]], tasks: Sequence[Task], what: str) -> None:
        """Reports how many tasks were found as before on a side: answer, steps and tokens."""
        same = sum(self.found[side.name, task] == found for task, found in zip(tasks, await solving, strict=True))
        self.report({"compared": what, "same": same, "of": len(tasks)})


async def banyan_alone(measurement: Measurement, loads: Sequence[int]) -> None:
    async with banyan(measurement.setup, measurement.models) as side:
        measurement.report({"started": side.name, **side.engine_facts})
        await measurement.warm_up(side)
        for in_flight in loads:
            await measurement.turn(side, measurement.tasks(in_flight), in_flight)
        measurement.report({"left_over": await side.leftovers()})
        measurement.finished()


async def beside_lock_step(measurement: Measurement, rounds: Sequence[Sequence[int]], further: bool) -> None:
    """Banyan and lock step in turn, the other idle meanwhile.

    Args:
        rounds: the loads of each round.
        further: whether to switch writing ahead and to compare results, too.
    """
    async with AsyncExitStack() as stack:
        with ExitStack() as threads:
            workers = lock_step_workers(measurement.setup, measurement.models, 1, measurement.log)
            starting = asyncio.to_thread(threads.enter_context, workers)
            ours, started = await asyncio.gather(
                stack.enter_async_context(banyan(measurement.setup, measurement.models)), starting
            )
            theirs = LockStep(started)
            measurement.report({"started": [ours.name, theirs.name], **ours.engine_facts})
            await measurement.warm_up(theirs, ours)
            sides = deque[Side]([theirs, ours])
            for number, loads in enumerate(rounds):
                for in_flight in loads:
                    tasks = measurement.tasks(in_flight)
                    for side in sides:
                        await measurement.turn(side, tasks, in_flight, round=number)
                sides.rotate()
            if further:
                await _write_ahead(measurement, ours)
                await _compare(measurement, ours, theirs)
            measurement.report({"left_over": await ours.leftovers()})
            measurement.finished()


async def _write_ahead(measurement: Measurement, side: Banyan) -> None:
    """Off and on, in turn, on the same tasks."""
    for in_flight in (1, IN_FLIGHT):
        for number, order in enumerate(((False, True), (True, False))):
            tasks = measurement.tasks(in_flight)
            for on in order:
                side.write_ahead(on)
                await measurement.turn(side, tasks, in_flight, ahead="on" if on else "off", pair=number)
    side.write_ahead(True)


async def _compare(measurement: Measurement, ours: Banyan, theirs: LockStep) -> None:
    """Whether lock step finds the same with many problems at a time as with one, and Banyan the same as lock step where
    it does the same: without merging siblings. In float32 all are the same; in other types an engine's batch changes
    the last digits, and so some tokens."""
    tasks = [task for side, task in measurement.found if side == theirs.name][-COMPARED:]
    await measurement.compare(theirs, theirs.solve(tasks, IN_FLIGHT), tasks, "lock step, in another batch")
    await measurement.compare(
        theirs, ours.solve(tasks, IN_FLIGHT, merge_siblings=False), tasks, "Banyan without merging, with lock step"
    )


async def one_problem_per_process(measurement: Measurement) -> None:
    """Lock step in several processes with one problem each."""
    processes = PROCESSES[:1] if measurement.setup.cpu else PROCESSES
    with ExitStack() as threads:
        workers = lock_step_workers(measurement.setup, measurement.models, max(processes), measurement.log)
        started = await asyncio.to_thread(threads.enter_context, workers)
        measurement.report({"started": LockStep(started).name})
        everyone = max(processes)
        await measurement.turn(LockStep(started), measurement.tasks(everyone), everyone, warm_up=True)
        for count in processes:
            await measurement.turn(LockStep(started[:count]), measurement.tasks(4 * count), count)
        measurement.finished()


async def served(measurement: Measurement, loads: Sequence[int]) -> None:
    from benchmarks.served_overhead import application
    from cluster.launch.token import ensure_token

    ensure_token()
    with ExitStack() as stack:
        running = application(measurement.setup.app_config(measurement.models, cache=True))
        side = Served(stack.enter_context(running))
        measurement.report({"started": side.name})
        await measurement.warm_up(side)
        for in_flight in loads:
            await measurement.turn(side, measurement.tasks(in_flight), in_flight)


class Part(NamedTuple):
    """Something that is measured in processes of its own."""

    setup: Setup
    measure: Callable[[Measurement], Awaitable[None]]
    expected_s: int
    """Seconds that it takes on an H100, as estimated in docs/gpu.md."""
    limit_s: int
    """Seconds after which it is ended. What it has reported by then is kept."""
    heavy: bool = True
    """Whether its models have half a billion parameters each; they are the embedded ones otherwise, and on a CPU."""
    needs: str = ""
    """A package that it needs beside vLLM, and which is then what failed."""


GRAPHS = Setup(Mode.GRAPHS, "bfloat16")
PARTS: Mapping[str, Part] = {
    "first_float32": Part(
        Setup(Mode.EAGER, "float32"), lambda run: banyan_alone(run, LOADS), expected_s=90, limit_s=120, heavy=False
    ),
    "first_bfloat16": Part(GRAPHS, lambda run: banyan_alone(run, LOADS), expected_s=85, limit_s=120, heavy=False),
    "heavy": Part(
        GRAPHS,
        lambda run: beside_lock_step(run, (LOADS, LOADS[:2], LOADS[:2]), further=True),
        expected_s=200,
        limit_s=280,
    ),
    "processes": Part(GRAPHS, one_problem_per_process, expected_s=85, limit_s=120),
    "compiled": Part(
        GRAPHS._replace(mode=Mode.COMPILED),
        lambda run: beside_lock_step(run, (LOADS[:2],), further=False),
        expected_s=150,
        limit_s=200,
    ),
    "serve": Part(GRAPHS, lambda run: served(run, LOADS[:2]), expected_s=120, limit_s=180, needs="ray"),
    "exact": Part(
        GRAPHS._replace(batch_invariant=True, attention="TRITON_ATTN"),
        lambda run: banyan_alone(run, LOADS[:2]),
        expected_s=80,
        limit_s=110,
    ),
}
"""By name, in the order of what matters most."""
