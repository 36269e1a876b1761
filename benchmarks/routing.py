"""Which replica should get a call: Serve's ready-made routers and ours, on even and on skewed load.

    python -m benchmarks.routing                                  four arms, two turns
    python -m benchmarks.routing --arms "power of two,home" --turns 1

Four generators and two reward models of the embedded pair. Every arm is an application of its own, in turns, over HTTP;
the same problems under the same seeds everywhere. ``even``: every client searches with a beam of 16; ``skewed``: one
search in eight has a beam of 128, the others of 4.
"""

import random
import statistics
import time
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

import httpx
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.engines import solve_all
from benchmarks.overload import told
from benchmarks.processes import CpuClock
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import Searched, application, served
from cluster.launch.environment import ensure_token, set_environment
from deployments.config import AppConfig, merged
from deployments.embedded.problems import Problem, Split, draw_problems

ARMS: dict[str, str] = {
    "power of two": "ray.serve._private.request_router:PowerOfTwoChoicesRequestRouter",
    "consistent hash": "benchmarks.routers:BySession",
    "prefix": "benchmarks.routers:ByPrefix",
    "home": "benchmarks.home_router:HomeRouter",
}
DEFAULT, OURS = "power of two", "home"
LOADS: dict[str, tuple[int, int]] = {"even": (16, 16), "skewed": (128, 4)}
"""The beam of one search in eight, and of the others."""
COUNTERS = ("prefix_queries", "prefix_hits", "external_hits", "prompt_tokens", "generated_tokens", "recomputed_tokens")
ROLES = ("generator", "prm")
SEED = 17
console = Console(stderr=True)


class Run(NamedTuple):
    """All problems once."""

    seconds: float
    each: list[float]
    found: list[Searched]
    counted: dict[str, dict[str, int]]
    """By role, what its replicas counted together."""
    cpu_s: float
    """Of all processes."""

    @property
    def rate(self) -> float:
        """Searches a second."""
        return len(self.each) / self.seconds

    def cached(self, role: str) -> float:
        """The share of a role's prompt tokens that some cache gave."""
        of = self.counted[role]
        asked = max(1, of["prefix_queries"])
        return (of["prefix_hits"] + of["external_hits"]) / asked

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "searches_per_s": round(self.rate, 3),
            "cpu_s_per_search": round(self.cpu_s / len(self.each), 4),
            "cached": {role: round(self.cached(role), 4) for role in ROLES},
            "seconds": told(self.each),
            **self.counted,
        }


Turn: TypeAlias = dict[str, Run]
"""By load."""


def config_of(arm: str, cache: bool) -> AppConfig:
    given: dict[str, Any] = {
        "generator": {"replicas": {"min_replicas": 4, "max_replicas": 4, "router": ARMS[arm]}},
        "prm": {"replicas": {"min_replicas": 2, "max_replicas": 2, "router": ARMS[arm]}},
        "cache": {"enabled": cache},
    }
    return AppConfig.model_validate(merged(given, {}))


async def counters(http: httpx.AsyncClient) -> dict[str, dict[str, int]]:
    status = (await http.get("/v1/status")).raise_for_status().json()
    return {role: {name: sum(each.get(name, 0) for each in status[role]) for name in COUNTERS} for role in ROLES}


async def run(url: str, beams: tuple[int, int], problems: Sequence[Problem], clients: int) -> Run:
    def search(n: int) -> dict[str, Any]:
        return {"strategy": "beam_search", "n": n, "m": 4}

    large, small = map(search, beams)
    async with (
        httpx.AsyncClient(base_url=url, timeout=60.0) as http,
        served(url, large) as solve_large,
        served(url, small) as solve_small,
    ):
        wide = {problem.unique_id for problem in problems[::8]}

        async def timed(problem: Problem, seed: int) -> tuple[Searched, float]:
            began = time.perf_counter()
            solve = solve_large if problem.unique_id in wide else solve_small
            return await solve(problem, seed), time.perf_counter() - began

        before, clock = await counters(http), CpuClock()
        done, seconds = await solve_all(timed, problems, clients, SEED)
        spent, after = clock.spent(), await counters(http)
    counted = {role: {name: after[role][name] - before[role][name] for name in COUNTERS} for role in ROLES}
    return Run(seconds, [took for _, took in done], [found for found, _ in done], counted, sum(spent.values()))


async def turn(url: str, number: int, clients: int) -> Turn:
    """Both loads against one application."""
    drawn = draw_problems(Split.VALIDATION, SEED)
    await run(url, LOADS["even"], [next(drawn) for _ in range(32)], clients)
    return {load: await run(url, beams, [next(drawn) for _ in range(number)], clients) for load, beams in LOADS.items()}


def summary(turns: dict[str, list[Turn]]) -> list[dict[str, Any]]:
    rows = []
    for load in LOADS:
        default = [each[load] for each in turns.get(DEFAULT, [])]
        for arm, of in turns.items():
            runs = [each[load] for each in of]
            row: dict[str, Any] = {"load": load, "arm": arm, "runs": [each.figures for each in runs]}
            row["searches_per_s"] = round(statistics.median(each.rate for each in runs), 3)
            row["cpu_s_per_search"] = round(statistics.median(each.cpu_s / len(each.each) for each in runs), 4)
            for role in ROLES:
                row[f"{role}_cached"] = round(statistics.median(each.cached(role) for each in runs), 4)
            if default:
                row["over_default"] = round(row["searches_per_s"] / statistics.median(r.rate for r in default), 3)
                row["other_answers"] = sum(
                    one != other
                    for here, there in zip(runs, default, strict=True)
                    for one, other in zip(here.found, there.found, strict=True)
                )
            rows.append(row)
    return rows


def claims(rows: Sequence[dict[str, Any]], chosen: str) -> list[dict[str, Any]]:
    """What is asked of the router that is configured, and of one of our own."""
    found = []
    rates = {(row["load"], row["arm"]): row["searches_per_s"] for row in rows}
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    over_default, over_ready_made = [], []
    for load in LOADS:
        best = max(arms, key=lambda arm: rates[load, arm])
        ratio = round(rates[load, chosen] / rates[load, best], 3)
        found.append(claim(f"{load}: {chosen} over the best ({best})", ratio, ">= 0.97", ratio >= 0.97))
        over_default.append(rates[load, chosen] / rates[load, DEFAULT])
        over_ready_made += [rates[load, OURS] / max(rates[load, arm] for arm in arms if arm != OURS)]
    above = round(max(over_default), 3)
    found.append(claim(f"{chosen} over the default, where it is most", above, "> 1", above > 1))
    ours = round(max(over_ready_made), 3)
    found.append(claim("ours over the best ready-made one, where it is most", ours, ">= 1.1", ours >= 1.1))
    return found


def main(
    arms: Annotated[str, typer.Option(help=f"Of {', '.join(ARMS)}.")] = ",".join(ARMS),
    problems: Annotated[int, typer.Option(min=8, max=10_000, help="In each run.")] = 96,
    clients: Annotated[int, typer.Option(min=1, max=64)] = 16,
    turns: Annotated[int, typer.Option(min=1, max=50)] = 2,
    cache: Annotated[bool, typer.Option(help="With LMCache, or without.")] = True,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    names = arms.split(",")
    ran: dict[str, list[Turn]] = {arm: [] for arm in names}
    luck = random.Random(SEED)
    for number in range(turns):
        for arm in luck.sample(names, len(names)):
            with application(config_of(arm, cache)) as url:
                ran[arm].append(uvloop.run(turn(url, problems, clients)))
            last = {load: {**each.figures, "seconds": None} for load, each in ran[arm][-1].items()}
            console.print(f"turn {number + 1}, {arm}: {last}")
    rows = summary(ran)
    held = claims(rows, OURS) if set(names) == set(ARMS) else []
    path = write_result("routing", {"lmcache": cache, "problems": problems, "rows": rows, "claims": held})
    columns = ("searches_per_s", "over_default", "cpu_s_per_search", "generator_cached", "prm_cached")
    table = Table("load", "arm", *columns)
    for row in rows:
        table.add_row(row["load"], row["arm"], *(str(row.get(name, "")) for name in columns))
    console.print(table)
    show_claims(console, held)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
