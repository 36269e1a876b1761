"""Compares the served application with what people run today, at its best, in one run.

What people run today is beam search in lock step (search-and-learn): generator and process reward model on compiled
vLLM engines in one process, one such process on each core, one problem at a time in each; the reward model reads whole
paths. The served side is the application as it ships, with 16 requests in flight. Both sides get the same problems in
turns; the other side is idle meanwhile.

    python -m benchmarks.lock_step
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.lock_step.beam_search import BeamSettings
from benchmarks.lock_step.figures import Bounds, Figures
from benchmarks.lock_step.rounds import IN_FLIGHT, Workload, measure
from benchmarks.lock_step.worker_pool import worker_pool
from benchmarks.model_pairs import PairName
from benchmarks.record import show_claims, write_result
from benchmarks.served_overhead import application
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.startup.environment import set_environment

SEARCH = BeamSettings()
console = Console(stderr=True)
WORKLOADS = {
    PairName.EMBEDDED: Workload(batch=48, alone=8, warm_up=2, bounds=Bounds(1.15, 0.8)),
    PairName.HEAVY: Workload(batch=16, alone=2, warm_up=1, bounds=Bounds(5.0, 0.17)),
}


def main(
    pair: Annotated[list[PairName] | None, typer.Option(help="May be repeated; both if unset.")] = None,
    rounds: Annotated[int, typer.Option(min=2, max=50)] = 3,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    pairs = list(dict.fromkeys(pair or WORKLOADS))
    with tempfile.TemporaryDirectory() as logs:
        figures = {name: measured(name, rounds, Path(logs)) for name in pairs}
    claims = [each for name, of in figures.items() for each in of.claims(name, WORKLOADS[name].bounds)]
    path = write_result(
        "lock_step",
        {
            "search": SEARCH._asdict(),
            "rounds": rounds,
            "served_in_flight": IN_FLIGHT,
            "pairs": {name: _as_json(name, of) for name, of in figures.items()},
            "claims": claims,
        },
    )
    for name, of in figures.items():
        console.print(table(name, of))
    show_claims(console, claims)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


def measured(name: PairName, rounds: int, logs: Path) -> Figures:
    """All rounds on one pair of models; ``logs``: directory of the workers' logs."""
    models = name.models
    config = AppConfig.model_validate(
        {"generator": {"model": models.generator}, "prm": {"model": models.prm}, "http": {"canary_every_s": 0}}
    )
    search = {"strategy": "beam_search", "n": SEARCH.n, "m": SEARCH.m}
    console.print(f"{name}: starting workers")
    with worker_pool(models, SEARCH, config.search_context, logs) as pool:
        console.print(f"{name}: starting the application")
        with application(config) as url:
            return asyncio.run(measure(url, search, pool, WORKLOADS[name], rounds))


def table(name: PairName, figures: Figures) -> Table:
    """Both sides by round, and their ratios."""
    shown = Table("", "lock step", "served", "served / lock step (95% interval)", title=name)
    throughput, alone, difference = figures.throughput_ratio, figures.alone_ratio, figures.accuracy_difference
    for index, each in enumerate(figures.throughput, 1):
        lock_step, served = each.lock_step.problems_per_second, each.served.problems_per_second
        shown.add_row(f"problems/s, round {index}", f"{lock_step:.3f}", f"{served:.3f}", f"{served / lock_step:.2f}")
    shown.add_row("geometric mean", "", "", f"{throughput.ratio:.2f} ({throughput.low:.2f} to {throughput.high:.2f})")
    for index, each in enumerate(figures.alone, 1):
        lock_step, served = each.lock_step.seconds_per_problem, each.served.seconds_per_problem
        shown.add_row(f"seconds alone, round {index}", f"{lock_step:.2f}", f"{served:.2f}", f"{served / lock_step:.2f}")
    shown.add_row("geometric mean", "", "", f"{alone.ratio:.2f} ({alone.low:.2f} to {alone.high:.2f})")
    right = [sum(each.right for each in side) / len(side) for side in (figures.lock_step, figures.served)]
    interval = f"{difference.difference:+.1%} ({difference.low:+.1%} to {difference.high:+.1%})"
    shown.add_row("accuracy", *(f"{share:.1%}" for share in right), interval)
    return shown


def _as_json(name: PairName, figures: Figures) -> dict[str, Any]:
    workload = WORKLOADS[name]
    return {"batch": workload.batch, "alone_problems": workload.alone, **figures.as_json}


if __name__ == "__main__":
    typer.run(main)
