"""What LMCache costs where nothing can be shared: the served application with it and without, in turns.

    python -m benchmarks.cache_cost
    python -m benchmarks.cache_cost --replicas 2

Beam searches of problems that are never asked twice. An application of its own for every arm and turn; the first
problems of each warm it up.
"""

import itertools
import statistics
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console

from benchmarks.kv_clamp import SEARCHES, run
from benchmarks.processes import CpuClock
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import application
from cluster.launch.environment import ensure_token, set_environment
from deployments.config import AppConfig
from deployments.embedded.problems import Split, draw_problems

ARMS: dict[str, dict[str, Any]] = {
    "without": {"enabled": False},
    "with": {},
    "always stored": {"store": "always"},
}
CLIENTS = 16
SEED = 31
MOST = 0.05
console = Console(stderr=True)


def main(
    replicas: Annotated[int, typer.Option(min=1, max=4, help="Generators.")] = 1,
    problems: Annotated[int, typer.Option(min=16, max=10_000, help="In each turn of an arm.")] = 160,
    turns: Annotated[int, typer.Option(min=1, max=50)] = 3,
    arms: Annotated[str, typer.Option(help=f"Of {', '.join(ARMS)}.")] = "without,with",
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    names = arms.split(",")
    rates: dict[str, list[float]] = {arm: [] for arm in names}
    found: dict[str, list[Any]] = {arm: [] for arm in names}
    cpu: dict[str, list[dict[str, float]]] = {arm: [] for arm in names}
    for turn in range(turns):
        for arm in names[:: 1 if turn % 2 == 0 else -1]:
            pool = {"min_replicas": replicas, "max_replicas": replicas}
            config = AppConfig.model_validate({"cache": ARMS[arm], "generator": {"replicas": pool}})
            drawn = draw_problems(Split.TEST, SEED + turn)
            with application(config) as url:
                warm_up, asked = (list(itertools.islice(drawn, count)) for count in (64, problems))
                uvloop.run(run(url, SEARCHES["beam"], warm_up, CLIENTS))
                clock = CpuClock()
                done = uvloop.run(run(url, SEARCHES["beam"], asked, CLIENTS))
                spent, steps = clock.spent(), sum(each.steps for each in done.found)
                cpu[arm].append({role: round(1000 * seconds / steps, 4) for role, seconds in spent.items()})
            rates[arm].append(round(len(done.each) / done.seconds, 3))
            found[arm].append(done.found)
            console.print(f"turn {turn + 1}, {arm}: {rates[arm][-1]} searches/s, CPU ms a step {cpu[arm][-1]}")
    held = []
    for arm in names:
        if arm != "without" and "without" in names:
            cost = 1 - statistics.median(a / b for a, b in zip(rates[arm], rates["without"], strict=True))
            held.append(claim(f"cost of {arm}", round(cost, 3), f"<= {MOST}", cost <= MOST))
            same = found[arm] == found["without"]
            held.append(claim(f"answers, steps and tokens {arm}", same, True, same))
    asked_for = {"replicas": replicas, "problems": problems, "clients": CLIENTS, "turns": turns}
    measured = {"searches_per_s": rates, "cpu_ms_per_step": cpu}
    path = write_result(f"cache_cost_{replicas}", {"asked": asked_for, **measured, "claims": held})
    show_claims(console, held)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
