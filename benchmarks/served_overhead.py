"""Cost of serving: searches over HTTP and Ray Serve compared with the same runner in one process.

Both sides use the same models, settings, seeds and search code, and the engines as vLLM starts them. They run side by
side and take turns, so that a busy machine is busy for both.

    python -m benchmarks.served_overhead
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import httpx
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.engines import engines_of, solve_all
from benchmarks.processes import CpuClock
from benchmarks.record import claim, write_result
from cluster.launch.application import free_port
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.embedded.problems import Problem, Split, draw_problems
from deployments.startup.environment import set_environment
from search.settings import parse_search

SEED = 1
WARM_UP = 8
MIN_RATIO = {True: 0.84, False: 0.75}
"""Bounds of the ratio with LMCache on both sides, and without: then engines are faster, so serving weighs more."""
console = Console(stderr=True)


class Searched(NamedTuple):
    """Answer and cost of one search."""

    answer: str | None
    steps: int
    tokens: int


class Round(NamedTuple):
    """All problems once, on one side."""

    searches: list[Searched]
    seconds: float
    cpu: dict[str, float]
    """CPU seconds by process role."""

    @property
    def problems_per_second(self) -> float:
        return len(self.searches) / self.seconds

    @property
    def cpu_ms_per_step(self) -> dict[str, float]:
        steps = sum(search.steps for search in self.searches)
        return {role: round(1000 * seconds / steps, 3) for role, seconds in self.cpu.items()}


Solve = Callable[[Problem, int], Awaitable[Searched]]


@asynccontextmanager
async def in_process(config: AppConfig, search: dict[str, Any]) -> AsyncIterator[Solve]:
    """Yields a function that searches on two engines of this process."""
    async with engines_of(config) as engines:

        async def solve(problem: Problem, seed: int) -> Searched:
            settings = parse_search(search | {"seed": seed})
            search_id = f"{problem.unique_id}:{seed}:{time.monotonic_ns()}"
            outcome = await engines.search(problem.text, settings, search_id)
            return Searched(outcome.selection.answer, outcome.cost.nodes, outcome.cost.generated_tokens)

        yield solve


@contextmanager
def application(config: AppConfig) -> Iterator[str]:
    """Runs the application on a Ray of its own; yields its address."""
    with applications({"": config}) as [url]:
        yield url


@contextmanager
def applications(configs: Mapping[str, AppConfig]) -> Iterator[list[str]]:
    """Runs several applications on a Ray of their own, each below a path of its name; yields their addresses."""
    import ray
    from ray import serve

    from deployments.app import build

    ray.init(address="local", num_cpus=8 * len(configs), include_dashboard=False, log_to_driver=False)
    port = free_port()  # once Ray has taken its own
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        for name, config in configs.items():
            serve.run(build(config), name=name or "default", route_prefix=f"/{name}")
        yield [f"http://127.0.0.1:{port}/{name}".rstrip("/") for name in configs]
    finally:
        serve.shutdown()
        ray.shutdown()


def http_for(keys: Iterable[str], file: Path) -> dict[str, Any]:
    """The ``http`` settings of an application whose clients have keys, each its own, so that none finds what was
    computed for another; and nobody else searches there. ``file`` is written."""
    file.write_text("".join(f"{key} operator\n" for key in keys), encoding="utf-8")
    return {"api_keys_file": str(file), "canary_every_s": 0}


@asynccontextmanager
async def served(
    url: str, search: dict[str, Any], key: str | None = None, system: Callable[[Problem], str] | None = None
) -> AsyncIterator[Solve]:
    """Yields a function that sends one HTTP request per search. ``system``: returns the text before a problem."""
    headers = {"Authorization": f"Bearer {key}"} if key else None
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600.0, limits=limits, headers=headers) as http:

        async def solve(problem: Problem, seed: int) -> Searched:
            before = [{"role": "system", "content": system(problem)}] if system else []
            messages = [*before, {"role": "user", "content": problem.text}]
            body = {"model": "banyan-arithmetic", "messages": messages, "seed": seed, "search": search}
            reply = (await http.post("/v1/chat/completions", json=body)).raise_for_status().json()["search"]
            return Searched(reply["answer"], reply["nodes"], reply["generated_tokens"])

        yield solve


async def run_round(solve: Solve, problems: Sequence[Problem], in_flight: int) -> Round:
    clock = CpuClock()
    searches, seconds = await solve_all(solve, problems, in_flight, SEED)
    return Round(searches, seconds, clock.spent())


async def compare(
    config: AppConfig, url: str, search: dict[str, Any], count: int, in_flight: int, repeats: int
) -> dict[str, list[Round]]:
    """Both sides in turn, on new problems in every repeat; the side that goes first alternates."""
    stream = draw_problems(Split.TEST, SEED)
    rounds: dict[str, list[Round]] = {"in_process": [], "served": []}
    async with in_process(config, search) as local, served(url, search) as remote:
        sides: list[tuple[str, Solve]] = [("in_process", local), ("served", remote)]
        warm_up = list(islice(stream, WARM_UP))
        for _, solve in sides:
            await run_round(solve, warm_up, in_flight)
        for repeat in range(repeats):
            problems = list(islice(stream, count))
            for name, solve in sides if repeat % 2 == 0 else sides[::-1]:
                done = await run_round(solve, problems, in_flight)
                rounds[name].append(done)
                console.print(f"repeat {repeat + 1}/{repeats}  {name:10}  {done.problems_per_second:.2f} problems/s")
    return rounds


def main(
    problems: Annotated[int, typer.Option(min=1, max=1000)] = 32,
    in_flight: Annotated[int, typer.Option(min=1, max=256)] = 16,
    n: Annotated[int, typer.Option(min=1, max=256)] = 16,
    m: Annotated[int, typer.Option(min=1, max=64)] = 4,
    repeats: Annotated[int, typer.Option(min=1, max=50)] = 5,
    cache: Annotated[bool, typer.Option(help="LMCache on both sides, or on neither.")] = True,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    config = AppConfig.model_validate({"cache": {"enabled": cache}})
    search = {"strategy": "beam_search", "n": n, "m": m}
    with application(config) as url:
        rounds = asyncio.run(compare(config, url, search, problems, in_flight, repeats))
    ratios = [
        there.problems_per_second / here.problems_per_second
        for here, there in zip(rounds["in_process"], rounds["served"], strict=True)
    ]
    same = all(
        here.searches == there.searches for here, there in zip(rounds["in_process"], rounds["served"], strict=True)
    )
    ratio, least = statistics.median(ratios), MIN_RATIO[cache]
    path = write_result(
        "served_overhead" if cache else "served_overhead_uncached",
        {
            "search": search,
            "problems": problems,
            "in_flight": in_flight,
            "lmcache": cache,
            "served_over_in_process": {
                "median": round(ratio, 3),
                "each": [round(ratio, 3) for ratio in ratios],
            },
            "same_answers_steps_and_tokens": same,
            "claims": [
                claim("served gives the answers, steps and tokens of in-process", same, True, same),
                claim("served over in process, median", round(ratio, 3), f">= {least}", ratio >= least),
            ],
            "sides": {name: [_as_json(done) for done in done_rounds] for name, done_rounds in rounds.items()},
        },
    )
    _show(rounds, ratios, same)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


def _as_json(done: Round) -> dict[str, Any]:
    return {
        "problems_per_second": round(done.problems_per_second, 3),
        "seconds": round(done.seconds, 2),
        "steps": sum(search.steps for search in done.searches),
        "tokens": sum(search.tokens for search in done.searches),
        "cpu_ms_per_step": done.cpu_ms_per_step,
    }


def _show(rounds: dict[str, list[Round]], ratios: list[float], same: bool) -> None:
    for name, done_rounds in rounds.items():
        speed = statistics.median(done.problems_per_second for done in done_rounds)
        table = Table("process", "CPU ms per step", title=f"{name}: {speed:.2f} problems/s (median)")
        for role, cost in done_rounds[-1].cpu_ms_per_step.items():
            table.add_row(role, f"{cost:.2f}")
        console.print(table)
    console.print(
        f"served / in process: median {statistics.median(ratios):.2f} "
        f"(each {', '.join(f'{ratio:.2f}' for ratio in ratios)}); "
        f"same answers, steps and tokens: {'yes' if same else 'NO'}"
    )


if __name__ == "__main__":
    typer.run(main)
