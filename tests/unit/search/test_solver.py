"""Problems are solved off the event loop, and a solver that hangs, dies or fails costs a search only the solution."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest
import solver_functions
from search_fakes import Bench
from solver_functions import (
    as_many_kinds_as_texts,
    clustered,
    dies,
    doubled,
    fails,
    hangs,
    in_which_process,
    one_kind,
    one_too_few,
    pid,
)

from search.problem import Problem, StepClusters
from search.run import solver as solver_module
from search.run.solver import ProcessSolver, Solver, SolverError
from search.strategies.levels.retention import Retention, kept_leaves

HERE = f"{solver_functions.__name__}:"
RETENTION = Retention(
    values=(0.3, 0.35, 0.35),
    texts=("So 12 + 7 = 19 apples.", "We get 12 + 7 = 19 apples.", "So 12 + 7 = 18 apples."),
    costs=(1, 1, 1, 1),
    parents=(3, 3, 3, -1),
    node_weight=1.5,
    diversity_weight=1.5,
)


@pytest.fixture
async def solver() -> AsyncIterator[ProcessSolver]:
    solver = ProcessSolver()
    yield solver
    await asyncio.to_thread(solver.close)


async def test_both_solvers_give_the_same_solution(solver: ProcessSolver) -> None:
    problem = Problem(kept_leaves, RETENTION, fallback=(0, 1, 2))
    assert await Solver().solve(problem) == await solver.solve(problem) == [1, 2]
    assert await Solver().solve(Problem(pid, None, None)) == os.getpid()
    assert await solver.solve(Problem(pid, None, None)) != os.getpid()


async def test_unsolved_problems_get_their_fallback_and_a_log_line(
    solver: ProcessSolver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await solver.start()
    for function in (fails, dies, hangs):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "banyan.solver"):
            with monkeypatch.context() as patch:
                if function is hangs:
                    patch.setattr(solver_module, "SOLVE_S", 0.5)
                assert await solver.solve(Problem(function, None, fallback="as it was")) == "as it was"
            assert function.__name__ in caplog.text
            assert await solver.solve(Problem(doubled, 4, fallback=0)) == 8


async def test_a_stopped_worker_times_out(solver: ProcessSolver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even while it is sent a problem that does not fit into a pipe."""
    child = psutil.Process(await solver.solve(Problem(pid, None, None)))
    child.suspend()
    monkeypatch.setattr(solver_module, "SOLVE_S", 0.5)
    started = time.monotonic()
    assert await solver.solve(Problem(doubled, "x" * (1 << 20), fallback="late")) == "late"
    assert time.monotonic() - started < 20.0
    assert not child.is_running()


async def test_cancelled_problems_do_not_hold_up_the_next(
    solver: ProcessSolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await solver.start()
    exchange = solver._worker.exchange
    sent: list[bytes] = []
    cancelled = threading.Event()

    def exchanged(line: bytes, timeout_s: float) -> bytes:
        """Gives up early what hangs, and is not ready for the next before all are cancelled."""
        sent.append(line)
        try:
            return exchange(line, 0.5 if b"hangs" in line else timeout_s)
        finally:
            cancelled.wait()

    monkeypatch.setattr(solver._worker, "exchange", exchanged)
    waiting = [asyncio.create_task(solver.solve(Problem(hangs, None, None))) for _ in range(20)]
    while not sent:
        await asyncio.sleep(0.001)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    cancelled.set()
    assert await solver.solve(Problem(doubled, 3, fallback=0)) == 6
    assert [b"hangs" in line for line in sent] == [True, False]


async def test_closing_ends_the_worker_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    solver = ProcessSolver()
    child = psutil.Process(await solver.solve(Problem(pid, None, None)))
    exchange, sent = solver._worker.exchange, threading.Event()
    monkeypatch.setattr(solver._worker, "exchange", lambda *asked: sent.set() or exchange(*asked))
    hanging = asyncio.create_task(solver.solve(Problem(hangs, None, fallback="closed")))
    while not sent.is_set():
        await asyncio.sleep(0.001)
    started = time.monotonic()
    await asyncio.to_thread(solver.close)
    assert await hanging == "closed"
    assert time.monotonic() - started < 20.0
    assert not child.is_running()
    assert not any(thread.name.startswith("solver") for thread in threading.enumerate())


@asynccontextmanager
async def started(step_clusters: str) -> AsyncIterator[ProcessSolver]:
    solver = ProcessSolver(step_clusters)
    try:
        await solver.start()
        yield solver
    finally:
        await asyncio.to_thread(solver.close)


async def test_the_configured_function_runs_in_the_worker() -> None:
    async with started(HERE + in_which_process.__name__) as solver:
        worker = await solver.solve(Problem(pid, None, None))
        assert await solver.solve(Problem(clustered, ["a", "b"], None)) == [worker, worker]
        assert worker != os.getpid()


@pytest.mark.parametrize(
    ("step_clusters", "kept"),
    [
        ("search.strategies.levels.step_clusters:clusters_by_contents", 2),
        (HERE + as_many_kinds_as_texts.__name__, 3),
        (HERE + one_kind.__name__, 1),
    ],
    ids=["the default's", "each its own kind", "one kind"],
)
async def test_ets_keeps_one_leaf_per_cluster_of_the_configured_function(step_clusters: str, kept: int) -> None:
    async with started(step_clusters) as solver:
        assert len(await solver.solve(Problem(kept_leaves, RETENTION, fallback=()))) == kept


async def test_invalid_clusters_give_the_fallback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with started(HERE + one_too_few.__name__) as solver:
        with caplog.at_level(logging.WARNING, "banyan.solver"):
            assert await solver.solve(Problem(kept_leaves, RETENTION, fallback="as it was")) == "as it was"
    assert "kept_leaves failed in the solver process, its fallback is used: ValueError" in caplog.text


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:clusters", "cannot be imported: ModuleNotFoundError"),
        (HERE + "no_such_function", "cannot be imported: AttributeError"),
        (HERE + "NO_FUNCTION", "is not a function"),
    ],
)
async def test_a_function_that_cannot_be_imported_is_an_error_at_start(path: str, message: str) -> None:
    with pytest.raises(SolverError, match=message):
        async with started(path):
            pass


async def test_a_large_problem_does_not_hold_the_event_loop(solver: ProcessSolver) -> None:
    """Measured in the CPU time of the loop's thread, which does not depend on the machine's load."""
    texts = [f"Then we add the {n} apples of basket {n % 7}: {n} + {n % 7} = {n + n % 7}." for n in range(256)]
    leaves = len(texts)
    problem = RETENTION._replace(
        values=[1 / leaves] * leaves, texts=texts, costs=[1] * (leaves + 1), parents=[leaves] * leaves + [-1]
    )
    await solver.start()
    spent = time.thread_time()
    kept = await solver.solve(Problem(kept_leaves, problem, fallback=None))
    assert time.thread_time() - spent < 0.005
    assert kept == await Solver().solve(Problem(kept_leaves, problem, fallback=None))


class Watching(Solver):
    """Records the problems, and returns the given answer."""

    def __init__(self, answer: list[int] | None = None) -> None:
        self.problems: list[Problem] = []
        self._answer = answer

    async def solve(self, problem: Problem) -> Any:
        self.problems.append(problem)
        return problem.fallback if self._answer is not None else await super().solve(problem)


@pytest.mark.parametrize("lookahead", [0, 1])
async def test_each_level_is_solved_once_and_off_the_event_loop(
    lookahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, solver = Bench(), Watching()
    loop = threading.get_ident()
    solved_by: list[int] = []

    def watched(argument: Any, clusters: StepClusters | None) -> list[int]:
        solved_by.append(threading.get_ident())
        return kept_leaves(argument, clusters)

    monkeypatch.setattr("search.strategies.levels.ets.kept_leaves", watched)
    outcome = await bench.search({"strategy": "ets", "n": 12, "lookahead": lookahead}, solver=solver)
    assert solver.problems
    assert len(solver.problems) == len(set(solver.problems)) < outcome.tree.deepest
    assert len(solved_by) == len(solver.problems)
    assert loop not in solved_by


async def test_without_solutions_ets_is_rebase() -> None:
    """So a lost solver costs a search its savings, not its answer."""
    trees = {}
    for strategy, solver in (("ets", Watching(answer=[])), ("rebase", Solver())):
        bench = Bench()
        outcome = await bench.search({"strategy": strategy, "n": 12}, solver=solver)
        trees[strategy] = {node.id: node.step for node in outcome.tree.nodes}
    assert trees["ets"] == trees["rebase"]
