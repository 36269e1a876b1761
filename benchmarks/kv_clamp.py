"""What holding branches back is worth where KV memory presses: ours beside vLLM as it is and the best static setting.

    python -m benchmarks.kv_clamp                                   five arms, three turns, loads of 0.5 to 4
    python -m benchmarks.kv_clamp --arms default,ours --loads 1,4 --turns 1
    python -m benchmarks.kv_clamp --heavy --strategies beam --loads 1,4      a model of 16 kB of KV a token

The generator gets KV memory for so many searches (``FIT``) and as many clients as a load says: at 4, four times as many
search at once as fit. Every arm is an application of its own, in turns, over HTTP. The same problems under the same
seeds everywhere, so the trees can be compared.
"""

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple, TypeAlias

import httpx
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.engines import solve_all
from benchmarks.idle_layers import LAYERS, with_idle_layers
from benchmarks.overload import quantile, told
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import Searched, application, served
from cluster.launch.environment import ensure_token, set_environment
from deployments.config import AppConfig, merged
from deployments.embedded.problems import Problem, Split, draw_problems

SEARCHES: dict[str, dict[str, Any]] = {
    "beam": {"strategy": "beam_search", "n": 16, "m": 4},
    "mcts": {"strategy": "mcts"},
}
FIT = 8
"""Searches for which there is KV memory."""
BLOCKS = 12
"""For each of them. Alone a beam search of 16 holds 40 at its peak, but with 40 for each of eight the engine never ran
short, however many searched: it works on 64 branches at a time, and most have a block or two of their own."""
BLOCK_BYTES = 65_536
IDLE_LAYERS = 32
"""Of the heavy generator, in all: eight times the KV of the embedded one."""
ARMS: dict[str, dict[str, Any]] = {
    "default": {"generator": {"clamp": "off"}},
    "ours": {"generator": {"clamp": "wait"}},
    "shrink": {"generator": {"clamp": "shrink"}},
    "16 sequences": {"generator": {"clamp": "off", "max_num_seqs": 16}},
    "32 sequences": {"generator": {"clamp": "off", "max_num_seqs": 32}},
    "64 branches": {"generator": {"clamp": "off"}, "controller": {"branches": 64}},
    "128 branches": {"generator": {"clamp": "off"}, "controller": {"branches": 128}},
    "watermark 0.05": {"generator": {"clamp": "off", "engine_args": {"watermark": 0.05}}},
    "watermark 0.2": {"generator": {"clamp": "off", "engine_args": {"watermark": 0.2}}},
}
OWN = ("default", "ours", "shrink")
COUNTERS = (
    "preemptions",
    "recomputed_tokens",
    "branches_held_back",
    "branches_given_back",
    "external_hits",
    "generated_tokens",
)
SEED = 5
console = Console(stderr=True)


class Run(NamedTuple):
    """Some searches at one load."""

    seconds: float
    each: list[float]
    """How long every search took."""
    found: list[Searched]
    """What each came to."""
    counted: dict[str, int]
    """What the generator's counters gained."""
    right: int = 0
    """Answers that are right."""

    @property
    def rate(self) -> float:
        """Searches a second."""
        return len(self.each) / self.seconds

    @property
    def figures(self) -> dict[str, Any]:
        return {"searches_per_s": round(self.rate, 3), "seconds": told(self.each), "right": self.right, **self.counted}


Turn: TypeAlias = dict[tuple[str, float], Run]
"""By strategy and load."""


def config_of(arm: str, cache: bool, heavy: Path | None = None) -> AppConfig:
    """``heavy``: a generator with `IDLE_LAYERS`, in place of the embedded one."""
    block = BLOCK_BYTES // LAYERS * IDLE_LAYERS if heavy else BLOCK_BYTES
    model = {"model": str(heavy), "served_name": "banyan-arithmetic", "max_model_len": 1024} if heavy else {}
    given = {
        "generator": {"kv_cache_memory_bytes": FIT * BLOCKS * block, **model},
        "cache": {"enabled": cache},
        "controller": {"searches": 128},
    }
    return AppConfig.model_validate(merged(given, ARMS[arm]))


async def counters(http: httpx.AsyncClient) -> dict[str, int]:
    replicas = (await http.get("/v1/status")).raise_for_status().json()["generator"]
    return {name: sum(replica.get(name, 0) for replica in replicas) for name in COUNTERS}


async def run(
    url: str,
    search: dict[str, Any],
    problems: Sequence[Problem],
    clients: int,
    seed: int = SEED,
    count: Callable[[httpx.AsyncClient], Awaitable[dict[str, int]]] = counters,
) -> Run:
    """Every problem once, so many at a time."""
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as http, served(url, search) as solve:

        async def timed(problem: Problem, seed: int) -> tuple[Searched, float]:
            began = time.perf_counter()
            return await solve(problem, seed), time.perf_counter() - began

        before = await count(http)
        done, seconds = await solve_all(timed, problems, clients, seed)
        after = await count(http)
    counted = {name: after[name] - before[name] for name in after}
    right = sum(found.answer == problem.answer for problem, (found, _) in zip(problems, done, strict=True))
    return Run(seconds, [took for _, took in done], [found for found, _ in done], counted, right)


async def turn(url: str, strategies: Sequence[str], loads: Sequence[float], number: int) -> Turn:
    """All loads of all strategies against one application."""
    runs: Turn = {}
    drawn = draw_problems(Split.VALIDATION, SEED)
    warm = [next(drawn) for _ in range(32)]
    await run(url, SEARCHES[strategies[0]], warm, FIT)
    problems = [next(drawn) for _ in range(number)]
    for strategy in strategies:
        for load in loads:
            runs[strategy, load] = await run(url, SEARCHES[strategy], problems, max(1, round(load * FIT)))
            # What one run left in caches would serve the next.
            problems = [next(drawn) for _ in range(number)]
    return runs


def other_trees(runs: Sequence[Run], others: Sequence[Run]) -> int:
    """Searches that came to something else, of runs with the same problems and seeds."""
    return sum(
        one != other
        for here, there in zip(runs, others, strict=True)
        for one, other in zip(here.found, there.found, strict=True)
    )


def summary(arms: Sequence[str], turns: dict[str, list[Turn]]) -> list[dict[str, Any]]:
    rows = []
    for strategy, load in turns[arms[0]][0]:
        default = [each[strategy, load] for each in turns.get("default", [])]
        for arm in arms:
            runs = [each[strategy, load] for each in turns[arm]]
            row: dict[str, Any] = {"strategy": strategy, "load": load, "arm": arm, "runs": [r.figures for r in runs]}
            row["searches_per_s"] = round(statistics.median(r.rate for r in runs), 3)
            row["p95_s"] = round(statistics.median(quantile(sorted(r.each), 0.95) for r in runs), 3)
            if default:
                row["over_default"] = round(row["searches_per_s"] / statistics.median(r.rate for r in default), 3)
                row["other_trees"] = other_trees(runs, default)
            rows.append(row)
    return rows


def claims(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What issue and docs promise of ours, where the arms for it ran."""
    found = []
    rates: dict[tuple[str, float], dict[str, float]] = defaultdict(dict)
    for row in rows:
        rates[row["strategy"], row["load"]][row["arm"]] = row["searches_per_s"]
    for (strategy, load), of in rates.items():
        where = f"{strategy} at {load:g}"
        if "ours" not in of:
            continue
        if "default" in of:
            least = 1.3 if load >= 2 else 0.98
            ratio = round(of["ours"] / of["default"], 3)
            found.append(claim(f"{where}: over the default", ratio, f">= {least}", ratio >= least))
        if static := {arm: rate for arm, rate in of.items() if arm not in OWN}:
            best = max(static, key=lambda arm: static[arm])
            ratio = round(of["ours"] / static[best], 3)
            found.append(claim(f"{where}: over {best}, the best static one", ratio, ">= 0.97", ratio >= 0.97))
    return found


def main(
    arms: Annotated[str, typer.Option(help=f"Of {', '.join(ARMS)}.")] = "default,ours,16 sequences,64 branches",
    strategies: Annotated[str, typer.Option()] = "beam,mcts",
    loads: Annotated[str, typer.Option(help="Clients over the searches that fit.")] = "0.5,1,2,4",
    problems: Annotated[int, typer.Option(min=8, max=10_000, help="In each run.")] = 96,
    turns: Annotated[int, typer.Option(min=1, max=50)] = 3,
    cache: Annotated[bool, typer.Option(help="With LMCache, or without.")] = True,
    heavy: Annotated[bool, typer.Option(help="A generator of 16 kB of KV a token, of idle layers.")] = False,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    names, wanted = arms.split(","), [float(load) for load in loads.split(",")]
    ran: dict[str, list[Turn]] = {arm: [] for arm in names}
    luck = random.Random(SEED)
    with TemporaryDirectory() as directory:
        model = with_idle_layers(Path(directory), IDLE_LAYERS) if heavy else None
        for number in range(turns):
            for arm in luck.sample(names, len(names)):
                with application(config_of(arm, cache, model)) as url:
                    ran[arm].append(uvloop.run(turn(url, strategies.split(","), wanted, problems)))
                told_now = {f"{s} {load:g}": f"{len(r.each) / r.seconds:.2f}" for (s, load), r in ran[arm][-1].items()}
                console.print(f"turn {number + 1}, {arm}: {told_now} searches/s")
    rows = summary(names, ran)
    held = claims(rows)
    fits = {"searches": FIT, "blocks": FIT * BLOCKS}
    path = write_result(
        "kv_clamp_heavy" if heavy else "kv_clamp",
        {"fits": fits, "lmcache": cache, "problems": problems, "rows": rows, "claims": held},
    )
    table = Table("strategy", "load", "arm", "searches/s", "over default", "p95 s", "preemptions", "recomputed")
    for row in rows:
        last = row["runs"][-1]
        counted = str(last["preemptions"]), str(last["recomputed_tokens"])
        shown = str(row["searches_per_s"]), str(row.get("over_default", "")), str(row["p95_s"])
        table.add_row(row["strategy"], f"{row['load']:g}", row["arm"], *shown, *counted)
    console.print(table)
    show_claims(console, held)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
