"""Both sides in turn on the same problems: never at the same time, and the side that goes first alternates."""

from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.engines import solve_all
from benchmarks.lock_step.beam_search import is_right
from benchmarks.lock_step.figures import Answered, Bounds, Figures, Round, Turn
from benchmarks.lock_step.worker_pool import WorkerPool
from benchmarks.served_overhead import SEED, served
from deployments.embedded.problems import Problem, Split, draw_problems

IN_FLIGHT = 16
"""Requests at a time on the served side, in the throughput phase."""
console = Console(stderr=True)


class Workload(NamedTuple):
    """How many problems a round has on one pair of models, and what is claimed of it."""

    batch: int
    """Problems of the throughput phase."""
    alone: int
    """Problems of the phase with one problem at a time."""
    warm_up: int
    """Problems per worker before the first round."""
    bounds: Bounds


class Side(NamedTuple):
    """One way of solving problems."""

    solve: Callable[[Problem, int], Awaitable[Answered]]
    solve_alone: Callable[[Problem, int], Awaitable[Answered]]
    in_flight: int
    """Problems at a time in the throughput phase."""


async def measure(url: str, search: dict[str, Any], pool: WorkerPool, workload: Workload, rounds: int) -> Figures:
    """All rounds of one pair of models; every phase of every round has problems of its own."""

    def answered(problem: Problem, found: dict[str, Any]) -> Answered:
        right = is_right(found.pop("answer"), problem.answer)
        return Answered(right, **found)

    async def solve_in_lock_step(problem: Problem, seed: int) -> Answered:
        return answered(problem, await pool.solve(problem, seed))

    async def solve_alone_in_lock_step(problem: Problem, seed: int) -> Answered:
        return answered(problem, await pool.solve_alone(problem, seed))

    stream = draw_problems(Split.TEST, SEED)
    figures = Figures([], [])
    async with served(url, search) as request:

        async def solve_served(problem: Problem, seed: int) -> Answered:
            found = await request(problem, seed)
            return Answered(is_right(found.answer, problem.answer), found.steps, found.tokens)

        lock_step = Side(solve_in_lock_step, solve_alone_in_lock_step, pool.size)
        remote = Side(solve_served, solve_served, IN_FLIGHT)
        warm_up = list(islice(stream, workload.warm_up * pool.size))
        for side in (lock_step, remote):
            await run_turn(side.solve, warm_up, side.in_flight)
        for index in range(rounds):
            served_first = index % 2 == 1
            problems = list(islice(stream, workload.batch))
            figures.throughput.append(await run_round(lock_step, remote, problems, False, served_first))
            show_round(f"round {index + 1}/{rounds}, throughput", figures.throughput[-1])
            problems = list(islice(stream, workload.alone))
            async with pool.for_problems_alone():
                for side in (lock_step, remote):
                    await run_turn(side.solve_alone, warm_up[:1], 1)
                figures.alone.append(await run_round(lock_step, remote, problems, True, served_first))
            show_round(f"round {index + 1}/{rounds}, alone", figures.alone[-1])
    return figures


async def run_round(
    lock_step: Side, remote: Side, problems: Sequence[Problem], alone: bool, served_first: bool
) -> Round:
    """The same problems on one side, then on the other."""
    turns: dict[Side, Turn] = {}
    for side in (remote, lock_step) if served_first else (lock_step, remote):
        solve = side.solve_alone if alone else side.solve
        turns[side] = await run_turn(solve, problems, 1 if alone else side.in_flight)
    return Round(turns[lock_step], turns[remote])


async def run_turn(
    solve: Callable[[Problem, int], Awaitable[Answered]], problems: Sequence[Problem], in_flight: int
) -> Turn:
    answered, seconds = await solve_all(solve, problems, in_flight, SEED)
    return Turn(answered, seconds)


def show_round(title: str, done: Round) -> None:
    figures = ", ".join(f"{name} {turn.problems_per_second:.3f}" for name, turn in done._asdict().items())
    console.print(f"{title}: {figures} problems/s")
