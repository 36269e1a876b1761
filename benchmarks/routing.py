"""Which replica should get a call: Serve's ready-made routers and our served one compared on even and skewed load.

    python -m benchmarks.routing
    python -m benchmarks.routing --arms "consistent hash" --pairs 16
    python -m benchmarks.routing --long         each problem after 650 tokens of its own

Four generators and two reward models of the embedded pair run in one application over HTTP. Two starts of an
application, and two minutes on a shared machine, differ by more than routers do, and one application per router would
not fit into a small machine. So all routers take turns of a few seconds on the same engines
(`benchmarks.routers.Switched`). In a round all get the same new problems under the same seeds, each with an API key of
its own, so that none finds a prefix that another has computed. ``even``: every client searches with a beam of 16;
``skewed``: one search in eight has a beam of 128, the others of 4.
"""

import itertools
import logging
import os
import random
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import httpx
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.engines import solve_all
from benchmarks.kv_clamp import system_of
from benchmarks.overload import quantile
from benchmarks.processes import CpuClock
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import Searched, application, http_for, served
from benchmarks.telemetry_toggled import compared
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.embedded.problems import Problem, Split, draw_problems
from deployments.startup.environment import set_environment

READY_MADE = ("power of two", "consistent hash", "scores by hash", "prefix")
ARMS = (*READY_MADE, "home at 1.5", "home")
"""The names of `benchmarks.routers.ROUTERS`."""
DEFAULT, OURS = "power of two", "home"
"""Serve's default, and `deployments.scaling.router.HomeRouter`, which is served."""
ROUTER_FILE = "BANYAN_BENCHMARK_ROUTER_FILE"
"""Environment variable with the path of the file that names the active router."""
MIN_OF_FASTEST, MIN_GAIN = 0.97, 1.1
"""What our router must reach: under every load at least this share of the fastest router's throughput, and under one
load at least this multiple of every ready-made router's. Otherwise a router of our own is not worth its code."""
LOADS: dict[str, tuple[int, int]] = {"even": (16, 16), "skewed": (128, 4)}
"""Beam width of one search in eight, and of the others."""
COUNTERS = ("prefix_queries", "prefix_hits", "external_hits", "prompt_tokens", "generated_tokens", "recomputed_tokens")
ROLES = ("generator", "prm")
CLIENTS = 16
SEED = 17
console = Console(stderr=True)


class Run(NamedTuple):
    """All problems of one turn."""

    seconds: float
    found: list[Searched]
    each: list[float]
    """Seconds of each search."""
    counted: dict[str, dict[str, int]]
    """Growth of the counters by role, summed over its replicas."""
    cpu_s: float
    """CPU seconds of all processes."""

    def cached(self, role: str) -> float:
        """Share of a role's prompt tokens that came from a cache."""
        of = self.counted[role]
        return (of["prefix_hits"] + of["external_hits"]) / max(1, of["prefix_queries"])

    @property
    def p95(self) -> float:
        return quantile(sorted(self.each), 0.95)

    @property
    def figures(self) -> dict[str, Any]:
        cached = {role: round(self.cached(role), 4) for role in ROLES}
        return {
            "seconds": round(self.seconds, 3),
            "p95_s": round(self.p95, 3),
            "cpu_s": round(self.cpu_s, 3),
            "cached": cached,
            **self.counted,
        }


def config_of(cache: bool, http: dict[str, Any]) -> AppConfig:
    switched = "benchmarks.routers:Switched"
    return AppConfig.model_validate(
        {
            "generator": {"replicas": {"min_replicas": 4, "max_replicas": 4, "router": switched}},
            "prm": {"replicas": {"min_replicas": 2, "max_replicas": 2, "router": switched}},
            "cache": {"enabled": cache},
            "http": http,
        }
    )


async def counters(http: httpx.AsyncClient) -> dict[str, dict[str, int]]:
    status = (await http.get("/v1/status")).raise_for_status().json()
    return {role: {name: sum(each.get(name, 0) for each in status[role]) for name in COUNTERS} for role in ROLES}


async def run(
    url: str,
    key: str,
    beams: tuple[int, int],
    problems: Sequence[Problem],
    system: Callable[[Problem], str] | None = None,
) -> Run:
    """Solves all problems under one API key. ``system``: returns the text before a problem."""
    large, small = ({"strategy": "beam_search", "n": n, "m": 4} for n in beams)
    async with (
        httpx.AsyncClient(base_url=url, timeout=60.0, headers={"Authorization": f"Bearer {key}"}) as http,
        served(url, large, key, system) as solve_large,
        served(url, small, key, system) as solve_small,
    ):
        wide = {problem.unique_id for problem in problems[::8]}

        async def solve(problem: Problem, seed: int) -> tuple[Searched, float]:
            began = time.perf_counter()
            found = await (solve_large if problem.unique_id in wide else solve_small)(problem, seed)
            return found, time.perf_counter() - began

        before, clock = await counters(http), CpuClock()
        done, seconds = await solve_all(solve, problems, CLIENTS, SEED)
        spent, after = clock.spent(), await counters(http)
    counted = {role: {name: after[role][name] - before[role][name] for name in COUNTERS} for role in ROLES}
    return Run(seconds, [found for found, _ in done], [took for _, took in done], counted, sum(spent.values()))


def measure(
    url: str,
    switch: Path,
    keys: dict[str, str],
    problems: int,
    pairs: int,
    system: Callable[[Problem], str] | None = None,
) -> dict[str, dict[str, list[Run]]]:
    """Runs by load and arm."""
    drawn = draw_problems(Split.VALIDATION, SEED)
    ran: dict[str, dict[str, list[Run]]] = {load: {arm: [] for arm in keys} for load in LOADS}
    rng = random.Random(SEED)

    def turn(arm: str, load: str, asked: Sequence[Problem]) -> Run:
        switch.write_text(arm, encoding="utf-8")
        return uvloop.run(run(url, keys[arm], LOADS[load], asked, system))

    warm_up = list(itertools.islice(drawn, 32))
    for arm in keys:
        turn(arm, "even", warm_up)
    for pair in range(pairs):
        for load in LOADS:
            asked = list(itertools.islice(drawn, problems))
            for arm in rng.sample(list(keys), len(keys)):
                ran[load][arm].append(turn(arm, load, asked))
            seconds_by_arm = {arm: round(runs[-1].seconds, 2) for arm, runs in ran[load].items()}
            console.print(f"pair {pair + 1}, {load}: seconds {seconds_by_arm}")
    return ran


def summary(ran: dict[str, dict[str, list[Run]]]) -> list[dict[str, Any]]:
    rows = []
    for load, arms in ran.items():
        default = arms[DEFAULT]
        for arm, runs in arms.items():
            row: dict[str, Any] = {"load": load, "arm": arm}
            searches = sum(len(each.found) for each in runs)
            row["searches_per_s"] = round(searches / sum(each.seconds for each in runs), 3)
            row["p95_s"] = round(statistics.median(each.p95 for each in runs), 3)
            row["cpu_s_per_search"] = round(sum(each.cpu_s for each in runs) / searches, 4)
            for role in ROLES:
                row[f"{role}_cached"] = round(statistics.median(each.cached(role) for each in runs), 4)
            if arm != DEFAULT:
                row["time_over_default"] = compared([each.seconds for each in default], [each.seconds for each in runs])
            others = [
                {"round": number, "search": place, "found": one._asdict(), "found_by_default": other._asdict()}
                for number, (here, there) in enumerate(zip(runs, default, strict=True))
                for place, (one, other) in enumerate(zip(here.found, there.found, strict=True))
                if one != other
            ]
            row["other_answers"], row["others"] = len(others), others
            row["runs"] = [each.figures for each in runs]
            rows.append(row)
    return rows


def over(ran: dict[str, list[Run]], one: str, other: str, figure: str = "seconds") -> float:
    """Speed of one arm relative to another: the median ratio of the pairs. ``figure``: ``seconds`` of a run, or ``p95``
    of its searches."""
    pairs = zip(ran[one], ran[other], strict=True)
    ratios: list[float] = [getattr(there, figure) / getattr(here, figure) for here, there in pairs]
    return round(statistics.median(ratios), 3)


def over_best(ran: dict[str, list[Run]], one: str) -> tuple[float, str]:
    """Speed of an arm relative to the fastest other arm, and the name of that arm."""
    return min((over(ran, one, other), other) for other in ran if other != one)


def over_ready_made(ran: dict[str, list[Run]], figure: str = "seconds") -> float:
    """Speed of ours relative to the fastest ready-made router."""
    return min(over(ran, OURS, other, figure) for other in ran if other in READY_MADE)


def claims(ran: dict[str, dict[str, list[Run]]], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Claims about the served router, which is ours: near the fastest on all loads, faster than Serve's default by more
    than noise on at least one, and much faster than every ready-made one on at least one."""
    checked = []
    for load, arms in ran.items():
        least, arm = over_best(arms, OURS)
        checked.append(
            claim(f"{load}: {OURS} over the best other ({arm})", least, f">= {MIN_OF_FASTEST}", least >= MIN_OF_FASTEST)
        )
    faster = [row["load"] for row in rows if row["arm"] == OURS and row["time_over_default"]["interval"][1] < 0]
    checked.append(
        claim(f"loads with {OURS} faster than {DEFAULT} by more than noise", faster, "at least one", bool(faster))
    )
    for figure, name in (("seconds", "throughput"), ("p95", "p95")):
        most = max(over_ready_made(arms, figure) for arms in ran.values())
        where = f"{OURS} over the best ready-made one, where it is most: {name}"
        checked.append(claim(where, most, f">= {MIN_GAIN}", most >= MIN_GAIN))
    others = sum(row["other_answers"] for row in rows)
    checked.append(claim(f"searches that came to something else than with {DEFAULT}", others, 0, not others))
    return checked


def main(
    arms: Annotated[str, typer.Option(help=f"Of {', '.join(ARMS)}; the first and the last always run.")] = ",".join(
        READY_MADE
    ),
    problems: Annotated[int, typer.Option(min=8, max=10_000, help="Problems per turn.")] = 24,
    pairs: Annotated[int, typer.Option(min=5, max=1000, help="Rounds in which each arm has a turn of each load.")] = 10,
    cache: Annotated[bool, typer.Option(help="With LMCache, or without.")] = True,
    long: Annotated[bool, typer.Option(help="Each problem after 650 tokens of its own.")] = False,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    names = list(dict.fromkeys([DEFAULT, *arms.split(","), OURS]))
    if unknown := set(names) - set(ARMS):
        raise typer.BadParameter(f"no such arms: {', '.join(sorted(unknown))}")
    keys = {arm: secrets.token_urlsafe() for arm in names}
    with tempfile.TemporaryDirectory() as folder:
        switch = Path(folder, "router")
        switch.write_text(DEFAULT, encoding="utf-8")
        os.environ[ROUTER_FILE] = str(switch)
        with application(config_of(cache, http_for(keys.values(), Path(folder, "keys")))) as url:
            logging.getLogger("httpx").setLevel(logging.WARNING)  # one of the routers turns all logging on
            ran = measure(url, switch, keys, problems, pairs, system_of if long else None)
    rows = summary(ran)
    checked = claims(ran, rows)
    asked = {"problems": problems, "clients": CLIENTS, "pairs": pairs, "lmcache": cache}
    path = write_result("routing_long" if long else "routing", {"asked": asked, "rows": rows, "claims": checked})
    columns = ("searches_per_s", "p95_s", "cpu_s_per_search", "generator_cached", "prm_cached")
    table = Table("load", "arm", *columns, "time over default")
    for row in rows:
        more = row.get("time_over_default")
        interval = f"{more['median']:+.1%} ({more['interval'][0]:+.1%} to {more['interval'][1]:+.1%})" if more else ""
        table.add_row(row["load"], row["arm"], *(str(row[name]) for name in columns), interval)
    console.print(table)
    show_claims(console, checked)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
