"""Cost of telemetry: the same searches over HTTP with metrics off, with metrics on, and with vLLM's own beside them.

One application after the other, in turns, each newly started, since settings of engines cannot change while they run.
The figure is the CPU time of a step over all processes: on a shared machine, wall-clock time says little.

    python -m benchmarks.telemetry_cost
"""

import asyncio
import statistics
import time
from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.record import claim, write_result
from benchmarks.served_overhead import SEED, WARM_UP, Round, application, run_round, served
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.embedded.problems import Problem, Split, draw_problems
from deployments.startup.environment import set_environment

ARMS: dict[str, dict[str, Any]] = {
    "off": {"metrics": False, "search_log": False},
    "metrics": {"metrics": True, "search_log": True},
    "engine_metrics": {"metrics": True, "search_log": True, "engine_metrics": True},
}
MAX_COST = 0.02
"""Largest allowed cost, as a share of a step's CPU time."""
CALLS = 20_000
console = Console(stderr=True)


async def rounds_of(
    url: str, search: dict[str, Any], warm_up: list[Problem], problems: list[Problem], rounds: int
) -> list[Round]:
    async with served(url, search) as solve:
        await run_round(solve, warm_up, len(warm_up))
        return [await run_round(solve, problems, 16) for _ in range(rounds)]


def cpu_ms_per_step(done: Round) -> float:
    return sum(done.cpu_ms_per_step.values())


def call_costs() -> dict[str, float]:
    """Microseconds to count, to observe and to publish a controller's series. Ray must be running."""
    import ray

    @ray.remote
    def measured() -> dict[str, float]:
        from deployments.telemetry import catalog
        from deployments.telemetry.metrics import Metrics
        from deployments.telemetry.ray_instruments import RayInstrument

        metrics = Metrics()

        def mean_us(work: Callable[[], None], calls: int) -> float:
            started = time.perf_counter()
            for _ in range(calls):
                work()
            return (time.perf_counter() - started) / calls * 1e6

        count = mean_us(lambda: metrics.add(catalog.GENERATED_TOKENS, 17, "12345678"), CALLS)
        observe = mean_us(lambda: metrics.observe(catalog.SCORE_SECONDS, 0.1), CALLS)
        started = time.perf_counter()
        metrics.publish(RayInstrument)
        publish_observation = (time.perf_counter() - started) / CALLS * 1e6
        for metric in catalog.METRICS.values():
            if not metric.boundaries:
                metrics.set(metric, 1.0, *("x" for _ in metric.labels))
        publish = mean_us(lambda: metrics.publish(RayInstrument), 1000)
        costs = {"count": count, "observe": observe, "tell_ray_an_observation": publish_observation, "publish": publish}
        return {name: round(us, 2) for name, us in costs.items()}

    costs: dict[str, float] = ray.get(measured.remote(), timeout=60)
    return costs


def main(
    problems: Annotated[int, typer.Option(min=1, max=1000)] = 48,
    rounds: Annotated[int, typer.Option(min=1, max=50, help="Rounds per start of an application.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, max=50, help="Repeats of all arms.")] = 3,
    arm: Annotated[list[str], typer.Option(help="Arms: off, metrics, engine_metrics; first: base.")] = [  # noqa: B006  # typer's way
        "off",
        "metrics",
    ],
    cache: Annotated[bool, typer.Option(help="With LMCache.")] = False,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    search = {"strategy": "beam_search", "n": 16, "m": 4}
    stream = draw_problems(Split.TEST, SEED)
    warm_up, asked = list(islice(stream, WARM_UP)), list(islice(stream, problems))
    found: dict[str, list[Round]] = {name: [] for name in arm}
    costs: dict[str, float] = {}
    for repeat in range(repeats):
        for name in arm if repeat % 2 == 0 else arm[::-1]:
            config = AppConfig.model_validate({"cache": {"enabled": cache}, "telemetry": ARMS[name]})
            with application(config) as url:
                done = asyncio.run(rounds_of(url, search, warm_up, asked, rounds))
                costs = costs or call_costs()
            found[name] += done
            for each in done:
                console.print(
                    f"{repeat + 1}/{repeats}  {name:14}  {each.problems_per_second:.2f} problems/s  "
                    f"{cpu_ms_per_step(each):.3f} CPU ms a step"
                )
    base = statistics.median(map(cpu_ms_per_step, found[arm[0]]))
    cost = {name: statistics.median(map(cpu_ms_per_step, done)) / base - 1 for name, done in found.items()}
    claims = (
        [
            claim(
                "metrics cost at most 2% of a step's CPU time",
                round(cost["metrics"], 4),
                MAX_COST,
                cost["metrics"] <= MAX_COST,
            )
        ]
        if "metrics" in cost and arm[0] == "off"
        else []
    )
    path = write_result(
        "telemetry_cost",
        {
            "search": search,
            "problems": problems,
            "lmcache": cache,
            "microseconds": costs,
            "cost_in_cpu_time": {name: round(share, 4) for name, share in cost.items()},
            "claims": claims,
            "arms": {
                name: [
                    {
                        "problems_per_second": round(each.problems_per_second, 3),
                        "cpu_ms_per_step": {"all": round(cpu_ms_per_step(each), 3), **each.cpu_ms_per_step},
                    }
                    for each in done
                ]
                for name, done in found.items()
            },
        },
    )
    table = Table("", "problems/s", "CPU ms a step", "over the first", title="medians")
    for name, done in found.items():
        speed = statistics.median(each.problems_per_second for each in done)
        table.add_row(
            name, f"{speed:.2f}", f"{statistics.median(map(cpu_ms_per_step, done)):.3f}", f"{cost[name]:+.1%}"
        )
    console.print(table)
    console.print(f"microseconds: {costs}")
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
