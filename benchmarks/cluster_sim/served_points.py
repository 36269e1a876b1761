"""Throughput of the application on this machine over HTTP, at several loads, to compare the simulation with."""

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
"""Search, and number of concurrent clients."""
SEED = 83
console = Console(stderr=True)


def measured(problems: int, turns: int) -> dict[str, Any]:
    """Measures all points on one application without LMCache; the order of the points alternates."""
    config = AppConfig.model_validate({"cache": {"enabled": False}})
    pace = measured_pace(1.0)
    drawn = draw_problems(Split.VALIDATION, SEED)
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {point: [] for point in POINTS}
    with application(config) as url:
        uvloop.run(run(url, SEARCHES["beam 16"], [next(drawn) for _ in range(32)], 8))
        for turn in range(turns):
            for name, clients in POINTS[:: 1 if turn % 2 == 0 else -1]:
                asked = [next(drawn) for _ in range(problems if clients > 1 else problems // 2)]
                speed, clock = pace.now(), CpuClock()
                done = uvloop.run(run(url, SEARCHES[name], asked, clients))
                cores = (psutil.cpu_count() or 1) - clock.elsewhere() / done.seconds
                spent, speed = clock.spent(), statistics.mean((speed, pace.now()))
                figures = {
                    "speed": round(speed * pace.speed),
                    "cores": round(cores, 3),  # left by other programs
                    "cpu_s": spent,
                    **done.figures,
                    "searches": len(asked),
                    "nodes": sum(found.steps for found in done.found) / len(asked),
                    "tokens": sum(found.tokens for found in done.found) / len(asked),
                }
                runs[name, clients].append(figures)
                console.print(f"{name}, {clients} clients: {done.rate:.2f} searches/s on {cores:.2f} cores")
    return {"points": [{"search": name, "clients": clients, "runs": of} for (name, clients), of in runs.items()]}
