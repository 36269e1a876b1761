"""Cost of metrics and of the search log, in one application whose replicas switch them off and on.

    python -m benchmarks.telemetry_toggled

Two starts of an application differ by more than the expected few per cent, and so do two minutes on a shared machine.
So the two sides take turns of a few seconds here, in pairs, and the side that goes first alternates. The engines'
processes have no telemetry, so their CPU time shows how fast the machine was: the CPU time of all other processes is
taken relative to it. What Ray's agent spends on known series is on both sides.
"""

import asyncio
import statistics
from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from scipy.stats import bootstrap

from benchmarks.record import claim, show_claims, write_result
from benchmarks.replicas import in_replicas
from benchmarks.served_overhead import SEED, WARM_UP, Round, application, run_round, served
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.embedded.problems import Split, draw_problems
from deployments.startup.environment import set_environment

DEPLOYMENTS = ("Generator", "ProcessRewardModel", "SearchController")
SEARCH = {"strategy": "beam_search", "n": 16, "m": 4}
MAX_COST = 0.02
"""Largest share of a step's CPU time that telemetry may cost."""
console = Console(stderr=True)


def cpu_ms_per_step(done: Round) -> float:
    """CPU time per step of all processes, ms."""
    return sum(done.cpu_ms_per_step.values())


def switch_telemetry(on: bool) -> Callable[[Any], None]:
    """Returns a function for replicas that switches counting, publishing and logging on or off."""

    def switch(_: Any) -> None:
        from deployments.telemetry.metrics import Metrics
        from deployments.telemetry.search_log import SearchLog

        parts = ((Metrics, ("add", "total", "set", "observe", "publish")), (SearchLog, ("write",)))
        for kind, names in parts:
            for name in names:
                real = getattr(kind, f"real_{name}", None) or getattr(kind, name)
                setattr(kind, f"real_{name}", real)
                setattr(kind, name, real if on else lambda *_, **__: None)

    return switch


async def measure(url: str, problems: int, pairs: int, in_flight: int) -> dict[str, list[Round]]:
    stream = draw_problems(Split.TEST, SEED)
    rounds: dict[str, list[Round]] = {"off": [], "on": []}
    async with served(url, SEARCH) as solve:
        for _ in range(3):
            await run_round(solve, list(islice(stream, WARM_UP)), in_flight)
        for pair in range(pairs):
            for side in ("off", "on") if pair % 2 == 0 else ("on", "off"):
                for deployment in DEPLOYMENTS:
                    in_replicas(deployment, switch_telemetry(side == "on"))
                rounds[side].append(await run_round(solve, list(islice(stream, problems)), in_flight))
            console.print(f"pair {pair + 1}/{pairs}: {[round(cpu_ms_per_step(of[-1]), 3) for of in rounds.values()]}")
    return rounds


def seconds_per_step(done: Round) -> float:
    return done.seconds / sum(search.steps for search in done.searches)


def outside_engines(done: Round) -> float:
    """CPU time of a step outside of the engines, relative to that inside."""
    of = done.cpu_ms_per_step
    engines = sum(ms for role, ms in of.items() if role.startswith("engine"))
    return (cpu_ms_per_step(done) - of.get("benchmark", 0.0) - engines) / engines


def compared(off: list[float], on: list[float], share: float = 1.0) -> dict[str, Any]:
    """Relative increase of ``on`` over ``off``, times ``share``: mean and median of the pairs, and the mean's 95%
    interval (bootstrap)."""
    shares = share * (np.array(on) / np.array(off) - 1)
    interval = bootstrap((shares,), np.mean, rng=np.random.default_rng(SEED)).confidence_interval
    return {
        "mean": round(float(shares.mean()), 4),
        "median": round(float(np.median(shares)), 4),
        "interval": [round(float(interval.low), 4), round(float(interval.high), 4)],
    }


def main(
    problems: Annotated[int, typer.Option(min=4, max=1000, help="Problems per turn.")] = 24,
    pairs: Annotated[int, typer.Option(min=5, max=1000)] = 40,
    in_flight: Annotated[int, typer.Option(min=1, max=256)] = 16,
    cache: Annotated[bool, typer.Option(help="With LMCache.")] = False,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    telemetry = {"metrics": True, "search_log": True}
    config = AppConfig.model_validate({"cache": {"enabled": cache}, "telemetry": telemetry})
    with application(config) as url:
        rounds = asyncio.run(measure(url, problems, pairs, in_flight))
    outside = {side: [outside_engines(each) for each in rounds[side]] for side in ("off", "on")}
    # Share of a step's CPU time that is spent outside of the engines.
    share = statistics.median(ratio / (1 + ratio) for ratio in outside["off"])
    cpu = compared(outside["off"], outside["on"], share)
    off, on = ([seconds_per_step(each) for each in rounds[side]] for side in ("off", "on"))
    slower = compared(off, on)
    upper = cpu["interval"][1]
    name = "metrics cost at most 2% of a step's CPU time: the upper end of the 95% interval"
    claims = [claim(name, upper, MAX_COST, upper <= MAX_COST)]
    medians = {
        side: {
            "problems_per_second": round(statistics.median(each.problems_per_second for each in of), 3),
            "cpu_ms_per_step": round(statistics.median(map(cpu_ms_per_step, of)), 4),
        }
        for side, of in rounds.items()
    }
    kept = {side: [each.cpu_ms_per_step for each in of] for side, of in rounds.items()}
    asked = {"search": SEARCH, "problems": problems, "pairs": pairs, "in_flight": in_flight, "lmcache": cache}
    found = {"cost_in_cpu_time": cpu, "cost_in_time": slower, "medians": medians}
    path = write_result("telemetry_toggled", {"asked": asked, **found, "cpu_ms_per_step": kept, "claims": claims})
    console.print(found)
    show_claims(console, claims)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
