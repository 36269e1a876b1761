"""What the application on this machine serves, for the simulation to be held against: over HTTP, at several loads."""

import statistics
from typing import Any

import psutil
import uvloop
from rich.console import Console

from benchmarks.cluster_sim.pace import measured as measured_pace
from benchmarks.kv_clamp import run
from benchmarks.processes import CpuClock
from benchmarks.served_overhead import application
from deployments.config import AppConfig
from deployments.embedded.problems import Split, draw_problems

SEARCHES: dict[str, dict[str, Any]] = {
    "beam 16": {"strategy": "beam_search", "n": 16, "m": 4},
    "beam 64": {"strategy": "beam_search", "n": 64, "m": 4},
    "self_consistency 16": {"strategy": "self_consistency", "n": 16},
}
POINTS = (("beam 16", 1), ("beam 16", 4), ("beam 16", 16), ("beam 16", 48), ("beam 64", 8), ("self_consistency 16", 16))
"""Searches, and how many at once."""
SEED = 83
console = Console(stderr=True)


def measured(problems: int, turns: int) -> dict[str, Any]:
    """All points, every turn in another order, on one application without LMCache."""
    config = AppConfig.model_validate({"cache": {"enabled": False}})
    pace = measured_pace(1.0)
    drawn = draw_problems(Split.VALIDATION, SEED)
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {point: [] for point in POINTS}
    with application(config) as url:
        uvloop.run(run(url, SEARCHES["beam 16"], [next(drawn) for _ in range(32)], 8))
        for turn in range(turns):
            for name, clients in POINTS[:: 1 if turn % 2 == 0 else -1]:
                asked = [next(drawn) for _ in range(problems if clients > 1 else problems // 2)]
                fast, clock = pace.now(), CpuClock()
                done = uvloop.run(run(url, SEARCHES[name], asked, clients))
                cores = (psutil.cpu_count() or 1) - clock.elsewhere() / done.seconds
                spent, fast = clock.spent(), statistics.mean((fast, pace.now()))
                figures = {
                    "speed": round(fast * pace.speed),
                    "cores": round(cores, 3),  # that were left by others
                    "cpu_s": spent,
                    **done.figures,
                    "searches": len(asked),
                    "nodes": sum(found.steps for found in done.found) / len(asked),
                    "tokens": sum(found.tokens for found in done.found) / len(asked),
                }
                runs[name, clients].append(figures)
                console.print(f"{name}, {clients} clients: {done.rate:.2f} searches/s on {cores:.2f} cores")
    return {"points": [{"search": name, "clients": clients, "runs": of} for (name, clients), of in runs.items()]}
