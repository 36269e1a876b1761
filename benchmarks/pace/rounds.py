"""Rounds of searches: in each one, every application solves the same problems, one application after the other."""

import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from typing import NamedTuple

import httpx

from benchmarks.engines import solve_all
from benchmarks.pace.applications import Application
from benchmarks.processes import CpuClock
from benchmarks.served_overhead import Searched
from deployments.embedded.problems import Problem, Split, draw_problems

SEED = 1
SEARCH = {"strategy": "beam_search", "n": 16, "m": 4}
IN_FLIGHT = 16
WARM_UP_PROBLEMS = 8
WARM_UP_LEVEL = 1
"""The easiest problems: the same batch sizes, which engines compile for, in less time."""
MIN_ROUNDS = 2
"""Both orders of the applications, and the fewest ratios that have an interval."""
REQUEST_S = 600.0


class Load(NamedTuple):
    """The searches of one round."""

    problems: int
    """Solved with ``IN_FLIGHT`` requests at once."""
    alone: int
    """Solved one at a time, after the others."""
    level: int | None = None
    """The level of all problems; every level in turn if None."""


class Batch(NamedTuple):
    """Some problems, solved once by one application."""

    searches: list[Searched]
    latencies_s: list[float]
    """By problem, from the request to its response."""
    seconds: float
    cpu: dict[str, float]
    """CPU seconds by process role."""

    @property
    def problems_per_second(self) -> float:
        return len(self.searches) / self.seconds


class Turn(NamedTuple):
    """One application's part of a round."""

    in_flight: Batch
    alone: Batch


Round = Mapping[str, Turn]
"""Turns by checkout."""
Solve = Callable[[Problem, int], Awaitable[Searched]]
OnRound = Callable[[Round], None]


class Client(NamedTuple):
    """Requests to one application."""

    application: Application
    solve: Solve

    async def solve_batch(self, problems: Sequence[Problem], in_flight: int) -> Batch:
        async def timed(problem: Problem, seed: int) -> tuple[Searched, float]:
            began = time.perf_counter()
            searched = await self.solve(problem, seed)
            return searched, time.perf_counter() - began

        clock = CpuClock(self.application.processes)
        solved, seconds = await solve_all(timed, problems, in_flight, SEED)
        cpu = clock.spent()
        return Batch([searched for searched, _ in solved], [latency for _, latency in solved], seconds, cpu)

    async def take_turn(self, problems: Sequence[Problem], alone: Sequence[Problem]) -> Turn:
        return Turn(await self.solve_batch(problems, IN_FLIGHT), await self.solve_batch(alone, 1))


@asynccontextmanager
async def client_of(application: Application) -> AsyncIterator[Client]:
    """A client that sends one HTTP request for each search."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=application.url, timeout=REQUEST_S, limits=limits, trust_env=False) as http:

        async def solve(problem: Problem, seed: int) -> Searched:
            messages = [{"role": "user", "content": problem.text}]
            body = {"model": application.model, "messages": messages, "seed": seed, "search": SEARCH}
            reply = (await http.post("/v1/chat/completions", json=body)).raise_for_status().json()["search"]
            return Searched(reply["answer"], reply["nodes"], reply["generated_tokens"])

        yield Client(application, solve)


async def measure(
    applications: Mapping[str, Application], load: Load, rounds: int, deadline: float, on_round: OnRound
) -> list[Round]:
    """Warms both applications up, then measures at most ``rounds`` rounds, on new problems in each one.

    After the first two, a round starts only if it would end before ``deadline`` (monotonic time), were it as long as
    the last one.
    """
    measured: list[Round] = []
    stream = draw_problems(Split.VALIDATION, SEED, load.level)
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(client_of(application)) for name, application in applications.items()
        }
        warm_up = list(islice(draw_problems(Split.VALIDATION, SEED + 1, WARM_UP_LEVEL), WARM_UP_PROBLEMS))
        for client in clients.values():
            await client.solve_batch(warm_up, IN_FLIGHT)
        took = 0.0
        while round_fits(len(measured), rounds, took, deadline - time.monotonic()):
            began = time.monotonic()
            problems, alone = list(islice(stream, load.problems)), list(islice(stream, load.alone))
            turns = {name: await clients[name].take_turn(problems, alone) for name in order(clients, len(measured))}
            measured.append(turns)
            took = time.monotonic() - began
            on_round(turns)
    return measured


def order(names: Mapping[str, object], index: int) -> list[str]:
    """The order of the applications in a round: A B, then B A, and so on."""
    ordered = list(names)
    return ordered if index % 2 == 0 else ordered[::-1]


def round_fits(done: int, wanted: int, last_s: float, left_s: float) -> bool:
    """Whether another round is to be measured."""
    return done < wanted and (done < MIN_ROUNDS or last_s <= left_s)


def median_latency_s(batches: Sequence[Batch]) -> float:
    return statistics.median(latency for batch in batches for latency in batch.latencies_s)
