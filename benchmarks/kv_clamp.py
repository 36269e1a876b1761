"""Gain from the KV clamp where memory is short: ours beside plain vLLM and beside the best static setting.

    python -m benchmarks.kv_clamp                                   beside the default, loads of 0.5 to 4
    python -m benchmarks.kv_clamp --loads 1,4 --arms "16 sequences,32 sequences,64 branches"
    python -m benchmarks.kv_clamp --heavy --strategies beam --loads 1,4      a model of 16 kB of KV a token
    python -m benchmarks.kv_clamp --long --strategies beam --loads 1,4,8     each problem after 650 tokens of its own

The generator gets KV memory for a number of searches (`Memory`), and the load is the number of clients relative to it:
at 4, four times as many search at once as fit. Ours and an arm take turns of a few seconds over HTTP, on the same
problems under the same seeds, so that the trees can be compared. Two applications, started one after the other, can
differ by more than the clamp costs. So the default arm, which is ours without the clamp, shares one application with
ours: the engines' clamp is switched on and off, and each side has an API key of its own, so that it finds no prefix
that the other computed. Any other arm is a second application.
"""

import random
import secrets
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import httpx
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.engines import solve_all
from benchmarks.idle_layers import with_idle_layers
from benchmarks.overload import percentiles, quantile
from benchmarks.processes import CpuClock
from benchmarks.record import claim, show_claims, write_result
from benchmarks.replicas import in_replicas
from benchmarks.served_overhead import Searched, application, applications, http_for, served
from cluster.launch.token import ensure_token
from deployments.config import AppConfig, merged
from deployments.embedded.problems import Problem, Split, draw_problems
from deployments.startup.environment import set_environment
from scripts.embedded.conversations import system_text

SEARCHES: dict[str, dict[str, Any]] = {
    "beam": {"strategy": "beam_search", "n": 16, "m": 4},
    "mcts": {"strategy": "mcts"},
}


class Memory(NamedTuple):
    """KV memory of the generator."""

    searches: int
    """Searches that fit."""
    blocks: int
    """Blocks for each search."""

    @property
    def all_blocks(self) -> int:
        return self.searches * self.blocks

    def clients(self, load: float) -> int:
        return max(1, round(load * self.searches))


SHORT = Memory(searches=8, blocks=12)
"""A beam search of 16 alone holds 40 blocks at its peak. But with 40 for each of eight searches, the engine never ran
short at any load: it works on 64 branches at a time, and most have only a block or two of their own."""
LONG = Memory(searches=3, blocks=46 + SHORT.blocks)
"""A prompt takes 46 blocks, so it is the prompts that do not fit."""
SYSTEM_CHARS = 800
"""Characters of random text before a long problem: 650 tokens or more; the longest leaves space for a solution."""
LAYER_BLOCK_BYTES = 16_384
"""Bytes of a block in each layer of the embedded generator, heavy or not."""
BLOCK_BYTES = 4 * LAYER_BLOCK_BYTES
IDLE_LAYERS = 32
"""Layers of the heavy generator: eight times the KV of the embedded one."""
OURS = "ours"
DEFAULT = "default"
STATIC: dict[str, dict[str, Any]] = {
    "16 sequences": {"generator": {"clamp": "off", "max_num_seqs": 16}},
    "32 sequences": {"generator": {"clamp": "off", "max_num_seqs": 32}},
    "watermark 0.05": {"generator": {"clamp": "off", "engine_args": {"watermark": 0.05}}},
    "watermark 0.2": {"generator": {"clamp": "off", "engine_args": {"watermark": 0.2}}},
}
KEEPS_ALL = "short paths kept"
SEARCHES_PER_CLIENT = 2
"""Fewest searches per client in a run: at the end of a run the load drops."""
AMPLE_MEMORY = 64
"""Factor of the memory for trees that nothing held back."""
ARMS: dict[str, dict[str, Any]] = {
    DEFAULT: {"generator": {"clamp": "off"}},
    **STATIC,
    "without limit": {"generator": {"clamp": "off"}},
    KEEPS_ALL: {"cache": {"least_tokens": 16}},
}
RATIOS = {"throughput": "ours_over_it", "p95": "its_p95_over_ours"}
COUNTERS = (
    "preemptions",
    "recomputed_tokens",
    "branches_held_back",
    "branches_given_back",
    "external_hits",
    "generated_tokens",
    "engine_steps",
    "engine_step_requests",
)
SEED = 5
console = Console(stderr=True)


class Run(NamedTuple):
    """Searches of one run at one load."""

    seconds: float
    each: list[float]
    """Seconds of each search."""
    found: list[Searched]
    """Result of each search."""
    counted: dict[str, int]
    """Growth of the generator's counters."""
    right: int = 0
    """Number of right answers."""
    cpu_s: dict[str, float] | None = None
    """CPU seconds by role."""

    @property
    def rate(self) -> float:
        """Searches a second."""
        return len(self.each) / self.seconds

    @property
    def figures(self) -> dict[str, Any]:
        cpu_ms = {role: round(1000 * spent / len(self.each), 1) for role, spent in (self.cpu_s or {}).items()}
        figures = {"searches_per_s": round(self.rate, 3), "seconds": percentiles(self.each), "right": self.right}
        return {**figures, "cpu_ms_per_search": cpu_ms, **self.counted}


def system_of(problem: Problem) -> str:
    """Text of `SYSTEM_CHARS` that stands before a problem, different for each problem."""
    return system_text(random.Random(problem.unique_id), SYSTEM_CHARS)


def config_of(
    own: dict[str, Any], cache: bool, heavy: Path | None = None, times: int = 1, memory: Memory = SHORT
) -> AppConfig:
    """``own``: the arm's settings. ``heavy``: directory of a generator with `IDLE_LAYERS`, which replaces the embedded
    one. ``times``: factor of the memory."""
    block = IDLE_LAYERS * LAYER_BLOCK_BYTES if heavy else BLOCK_BYTES
    model = {"model": str(heavy), "served_name": "banyan-arithmetic", "max_model_len": 1024} if heavy else {}
    given = {
        "generator": {"kv_cache_memory_bytes": times * memory.all_blocks * block, **model},
        "cache": {"enabled": cache},
        "controller": {"searches": 128},
    }
    return AppConfig.model_validate(merged(given, own))


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
    system: Callable[[Problem], str] | None = None,
    key: str | None = None,
) -> Run:
    """Solves every problem once, ``clients`` at a time. ``system``: returns the text before a problem."""
    headers = {"Authorization": f"Bearer {key}"} if key else None
    async with (
        httpx.AsyncClient(base_url=url, timeout=60.0, headers=headers) as http,
        served(url, search, key, system) as solve,
    ):

        async def timed(problem: Problem, seed: int) -> tuple[Searched, float]:
            began = time.perf_counter()
            return await solve(problem, seed), time.perf_counter() - began

        before, clock = await count(http), CpuClock()
        done, seconds = await solve_all(timed, problems, clients, seed)
        cpu_s, after = clock.spent(), await count(http)
    counted = {name: after[name] - before[name] for name in after}
    right = sum(found.answer == problem.answer for problem, (found, _) in zip(problems, done, strict=True))
    return Run(seconds, [took for _, took in done], [found for found, _ in done], counted, right, cpu_s)


class Side:
    """One arm, and its runs by strategy and load."""

    def __init__(
        self,
        url: str,
        memory: Memory,
        system: Callable[[Problem], str] | None,
        key: str | None = None,
        begins: Callable[[], object] = lambda: None,
    ) -> None:
        """``begins``: called before each turn; switches the application to this arm."""
        self._url = url
        self._memory = memory
        self._system = system
        self._key = key
        self._begins = begins
        self.runs: dict[tuple[str, float], list[Run]] = defaultdict(list)

    def ask(self, strategy: str, load: float, problems: Sequence[Problem]) -> Run:
        self._begins()
        clients = self._memory.clients(load)
        return uvloop.run(run(self._url, SEARCHES[strategy], problems, clients, system=self._system, key=self._key))

    def turn(self, strategy: str, load: float, problems: Sequence[Problem]) -> None:
        self.runs[strategy, load].append(self.ask(strategy, load, problems))


def switch_clamp(on: bool) -> Callable[[Any], None]:
    """Returns a function that switches the clamp of an idle generator replica on or off."""

    def switch(replica: Any) -> None:
        from dataclasses import replace

        engine = replica._engine
        started = engine._started
        engine.real_clamp = clamp = getattr(engine, "real_clamp", started.clamp)
        engine._started = replace(started, clamp=clamp if on else None)
        started.counters.on_step = started.queue.stepped if on else lambda *_: None

    return switch


@contextmanager
def switched(config: AppConfig, memory: Memory, system: Callable[[Problem], str] | None) -> Iterator[list[Side]]:
    """One application, with its clamp switched on and off."""
    keys = [secrets.token_urlsafe() for _ in range(2)]

    def side(url: str, key: str, on: bool) -> Side:
        return Side(url, memory, system, key, lambda: in_replicas("Generator", switch_clamp(on)))

    with TemporaryDirectory() as folder:
        own = {"http": http_for(keys, Path(folder, "keys"))}
        with application(AppConfig.model_validate(merged(config.model_dump(), own))) as url:
            yield [side(url, key, on) for key, on in zip(keys, (True, False), strict=True)]


@contextmanager
def beside(
    configs: dict[str, AppConfig], memory: Memory, system: Callable[[Problem], str] | None
) -> Iterator[list[Side]]:
    """Two applications beside each other."""
    with applications(configs) as urls:
        yield [Side(url, memory, system) for url in urls]


def other_trees(runs: Sequence[Run], others: Sequence[Run]) -> int:
    """Number of searches with different results, of runs with the same problems and seeds."""
    return sum(
        one != other
        for here, there in zip(runs, others, strict=True)
        for one, other in zip(here.found, there.found, strict=True)
    )


def row_of(strategy: str, load: float, arm: str, ours: Sequence[Run], theirs: Sequence[Run]) -> dict[str, Any]:
    """Figures of one arm beside ours, pair by pair."""
    rates = [here.rate / there.rate for here, there in zip(ours, theirs, strict=True)]
    p95s = [p95(there) / p95(here) for here, there in zip(ours, theirs, strict=True)]
    sides = {OURS: ours, arm: theirs}
    return {
        "strategy": strategy,
        "load": load,
        "arm": arm,
        "ours_over_it": round(statistics.median(rates), 3),
        "ours_over_it_each": [round(rate, 3) for rate in rates],
        "its_p95_over_ours": round(statistics.median(p95s), 3),
        "right": {name: sum(each.right for each in runs) for name, runs in sides.items()},
        "searches": sum(len(each.each) for each in ours),
        "other_trees": other_trees(ours, theirs),
        "counted": {
            name: {what: sum(r.counted[what] for r in runs) for what in COUNTERS} for name, runs in sides.items()
        },
        "runs": {name: [each.figures for each in runs] for name, runs in sides.items()},
    }


def p95(run: Run) -> float:
    return quantile(sorted(run.each), 0.95)


def claims(rows: Sequence[dict[str, Any]], shrinks: bool = False) -> list[dict[str, Any]]:
    """Claims about ours beside the arms that ran. If ours shrinks searches, their trees differ."""
    found = []
    by_place: dict[tuple[str, float], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        by_place[row["strategy"], row["load"]][row["arm"]] = row
    best = best_static(rows)
    for (strategy, load), of in by_place.items():
        where = f"{strategy} at {load:g}"
        for arm, named, least in (
            (DEFAULT, "the default", 1.3 if load >= 2 else 0.98),
            (best, f"{best}, the best static one", 0.97),
        ):
            if arm is None or arm not in of:
                continue
            for what, name in RATIOS.items():
                ratio = of[arm][name]
                found.append(claim(f"{where}: {what} over {named}", ratio, f">= {least}", ratio >= least))
        if KEEPS_ALL in of:
            ratio = of[KEEPS_ALL]["ours_over_it"]
            found.append(claim(f"{where}: throughput over LMCache with {KEEPS_ALL}", ratio, ">= 1", ratio >= 1))
        if "without limit" in of and not shrinks:
            other = of["without limit"]["other_trees"]
            found.append(claim(f"{where}: trees other than with memory for all", other, 0, not other))
    return found


def best_static(rows: Sequence[dict[str, Any]]) -> str | None:
    """The static setting that did best beside ours, over all loads that ran."""
    over: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row["arm"] in STATIC:
            over[row["arm"]].append(row["ours_over_it"])
    return min(over, key=lambda arm: statistics.geometric_mean(over[arm])) if over else None


def main(
    arms: Annotated[str, typer.Option(help=f"Arms to compare with ours; of {', '.join(ARMS)}.")] = DEFAULT,
    ours: Annotated[str, typer.Option(help="Clamp of ours: wait or shrink.")] = "wait",
    strategies: Annotated[str, typer.Option()] = "beam,mcts",
    loads: Annotated[str, typer.Option(help="Clients, relative to the searches that fit.")] = "0.5,1,2,4",
    problems: Annotated[int, typer.Option(min=8, max=10_000, help="Fewest problems per run.")] = 64,
    pairs: Annotated[int, typer.Option(min=1, max=50, help="Pairs of runs at each load of a strategy.")] = 3,
    cache: Annotated[bool, typer.Option(help="With LMCache, or without.")] = True,
    long: Annotated[bool, typer.Option(help="Each problem after 650 tokens of its own.")] = False,
    heavy: Annotated[bool, typer.Option(help="Generator with 16 kB of KV a token (idle layers).")] = False,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    wanted = [(strategy, float(load)) for strategy in strategies.split(",") for load in loads.split(",")]
    drawn = draw_problems(Split.VALIDATION, SEED)
    rows: list[dict[str, Any]] = []
    memory, system = (LONG, system_of) if long else (SHORT, None)
    with TemporaryDirectory() as directory:
        model = with_idle_layers(Path(directory), IDLE_LAYERS) if heavy else None
        for arm in arms.split(","):
            settings = {OURS: {"generator": {"clamp": ours}}, arm: ARMS[arm]}
            configs = {
                name.replace(" ", "-"): config_of(
                    own, cache, model, AMPLE_MEMORY if name == "without limit" else 1, memory
                )
                for name, own in settings.items()
            }
            one = arm == DEFAULT
            with switched(configs[OURS], memory, system) if one else beside(configs, memory, system) as sides:
                warm_up = list(islice(drawn, 32))
                for side in sides:
                    side.ask(wanted[0][0], 1.0, warm_up)
                for pair, (strategy, load) in product(range(pairs), wanted):
                    asked = list(islice(drawn, max(problems, SEARCHES_PER_CLIENT * memory.clients(load))))
                    for side in sides[:: 1 if pair % 2 == 0 else -1]:
                        side.turn(strategy, load, asked)
                    here, there = (round(side.runs[strategy, load][-1].rate, 2) for side in sides)
                    console.print(f"{strategy} at {load:g}, pair {pair + 1}: ours {here} searches/s, {arm} {there}")
            rows += [row_of(*place, arm, *(side.runs[place] for side in sides)) for place in wanted]
    checked = claims(rows, shrinks=ours == "shrink")
    fits = {"searches": memory.searches, "blocks": memory.all_blocks}
    path = write_result(
        "kv_clamp" + ("_long" if long else "") + ("_heavy" if heavy else ""),
        {"fits": fits, "ours": ours, "lmcache": cache, "problems": problems, "rows": rows, "claims": checked},
    )
    columns = ("preemptions", "recomputed_tokens")
    table = Table(
        "strategy", "load", "arm", *RATIOS, *columns, "right", title="ours over the arm; then ours and the arm's"
    )
    for row in rows:
        counted = [", ".join(str(of[name]) for of in row["counted"].values()) for name in columns]
        right = ", ".join(map(str, row["right"].values()))
        ratios = (str(row[name]) for name in RATIOS.values())
        table.add_row(row["strategy"], f"{row['load']:g}", row["arm"], *ratios, *counted, right)
    console.print(table)
    show_claims(console, checked)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
