"""Growth of memory, descriptors and KV in every process under constant searches.

Sixteen clients search; one request in ten is abandoned at a random moment. After a warm-up, in which the reward cache
and the cache server's memory fill, every process is sampled; a line fitted to its samples gives its growth per minute.
The config makes both caches small, so that they fill early, and stores the prompt of every problem: by default a lone
generator stores only what it is about to evict, which here is nothing.

    python -m benchmarks.soak                          35 minutes
    python -m benchmarks.soak --minutes 4 --warm-up 1
"""

import asyncio
import importlib.util
import itertools
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import httpx
import numpy as np
import psutil
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.processes import role_of, this_and_below
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import application
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.embedded.problems import Split, draw_problems
from deployments.startup.environment import set_environment

SEED = 11
SEARCH = {"strategy": "beam_search", "n": 16, "m": 4}
REWARD_CACHE = 2_000
L1_GIB = 0.0625
CONFIG = AppConfig.model_validate(
    {
        "prm": {"reward_cache_size": REWARD_CACHE},
        "cache": {"l1_size_gb": L1_GIB, "store": "prefilled", "least_tokens": 16},
        "http": {"canary_every_s": 0},
    }
)
PATIENCE_S = 2.0
"""A client that hangs up does so within this time: sometimes before any output, sometimes just before the end."""
SAMPLE_S = 10.0
IDLE_S = 60.0
MAX_MB = 1.0
"""Most MB that a process may gain per minute."""
MAX_SERVER_MB = L1_GIB * 1073.741824 + 600
"""Most MB of LMCache's server: its store and its own memory. The KV of an engine on a CPU, which the server also maps,
counts for the engine."""
MAX_DESCRIPTORS = 4
"""Most descriptors that a process may gain, from the median of the first quarter to that of the last: connections of
clients come and go."""
KEPT_POINTS = 120
console = Console(stderr=True)


class Sample(NamedTuple):
    """One process at one moment."""

    minute: float
    rss_mb: float
    pss_mb: float
    descriptors: int
    own_mb: float
    """Resident memory that no other process has mapped."""


class Samples:
    """Samples of every process since the application started."""

    def __init__(self) -> None:
        self.roles: dict[psutil.Process, str] = {}
        self.of: dict[psutil.Process, list[Sample]] = {}

    def take(self, minute: float) -> None:
        _, *others = this_and_below()
        for process in others:
            try:
                role = self.roles.setdefault(process, role_of(process))
                memory = process.memory_full_info()
                sample = Sample(minute, memory.rss / 1e6, memory.pss / 1e6, process.num_fds(), memory.uss / 1e6)
            except psutil.Error:
                continue
            if role != "benchmark":
                self.of.setdefault(process, []).append(sample)


class Trend(NamedTuple):
    """Trend of one process."""

    role: str
    pid: int
    mb_per_minute: float
    """Growth of resident memory, by least squares. The proportional set size, kept beside it, also changes when any
    process on the machine that maps the same libraries starts or ends."""
    first_mb: float
    last_mb: float
    descriptors_gained: float
    samples: list[Sample]

    @classmethod
    def of(cls, role: str, pid: int, samples: list[Sample]) -> "Trend":
        minutes, sizes = [each.minute for each in samples], [each.rss_mb for each in samples]
        slope = float(np.polyfit(minutes, sizes, 1)[0])
        quarter = max(1, len(samples) // 4)
        first, last = samples[:quarter], samples[-quarter:]
        gained = _median(each.descriptors for each in last) - _median(each.descriptors for each in first)
        return cls(
            role,
            pid,
            slope,
            _median(each.rss_mb for each in first),
            _median(each.rss_mb for each in last),
            gained,
            samples,
        )

    @property
    def json(self) -> dict[str, Any]:
        kept = self.samples[:: max(1, len(self.samples) // KEPT_POINTS)]
        return {
            "role": self.role,
            "mb_per_minute": round(self.mb_per_minute, 3),
            "rss_mb": [round(self.first_mb, 1), round(self.last_mb, 1)],
            "descriptors_gained": self.descriptors_gained,
            "minutes": [round(each.minute, 2) for each in kept],
            "own_mb_by_minute": [round(each.own_mb, 1) for each in kept],
            "pss_mb_by_minute": [round(each.pss_mb, 1) for each in kept],
            "rss_mb_by_minute": [round(each.rss_mb, 1) for each in kept],
            "descriptors_by_minute": [each.descriptors for each in kept],
        }


class Load:
    """Clients that search; some of them hang up."""

    def __init__(self, http: httpx.AsyncClient, hang_up_share: float) -> None:
        self._http = http
        self._hang_up_share = hang_up_share
        self._problems = draw_problems(Split.TEST, SEED)
        self._seeds = itertools.count(SEED)
        self._rng = random.Random(SEED)
        self.ends: Counter[str] = Counter()

    async def client(self) -> None:
        while True:
            problem, seed = next(self._problems), next(self._seeds)
            messages = [{"role": "user", "content": problem.text}]
            stream = self._rng.random() < 0.5
            body = {
                "model": "banyan-arithmetic",
                "messages": messages,
                "seed": seed,
                "search": SEARCH,
                "stream": stream,
            }
            hangs_up = self._rng.random() < self._hang_up_share
            try:
                async with asyncio.timeout(self._rng.uniform(0, PATIENCE_S) if hangs_up else None):
                    reply = await self._http.post("/v1/chat/completions", json=body | {"stream": stream})
                self.ends[end_of(reply)] += 1
            except TimeoutError:
                self.ends["hung up"] += 1
            except httpx.HTTPError as error:
                self.ends[type(error).__name__] += 1


def end_of(reply: httpx.Response) -> str:
    """Outcome of a search, with the reason if it was refused. Numbers are masked, so that equal reasons count
    together."""
    end = f"status {reply.status_code}"
    if not reply.is_error:
        return end
    try:
        reason = str(reply.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        reason = reply.text[:80]
    return f"{end}: {re.sub(r'[0-9.]+', '#', reason)}"


async def soak(url: str, clients: int, hang_up_share: float, warm_up: float, minutes: float) -> dict[str, Any]:
    """Runs the load and returns its figures; ``warm_up`` and ``minutes`` in minutes."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600.0, limits=limits) as http:
        load = Load(http, hang_up_share)
        samples = Samples()
        working = [asyncio.create_task(load.client()) for _ in range(clients)]
        await asyncio.sleep(60 * warm_up)
        full = await status(http)
        began = time.monotonic()
        while (minute := (time.monotonic() - began) / 60) < minutes:
            await asyncio.to_thread(samples.take, minute)
            await asyncio.sleep(SAMPLE_S)
        for each in working:
            each.cancel()
        await asyncio.wait(working)
        idle = await settled(http)
    seen = max(len(of) for of in samples.of.values())
    trends = [
        Trend.of(samples.roles[process], process.pid, of)
        for process, of in samples.of.items()
        if len(of) > max(2, seen // 2)
    ]
    return {
        "clients": clients,
        "leaving": hang_up_share,
        "warm_up_minutes": warm_up,
        "minutes": minutes,
        "searches": dict(load.ends),
        "rewards_kept_when_it_began": [each["reward_cache_entries"] for each in full["prm"]],
        "chunks_evicted_when_it_began": [each.get("lmcache_evicted_chunks", 0) for each in full["generator"]],
        "kv_blocks_in_use_when_idle": [each["total_blocks"] - each["free_blocks"] for each in engines(idle)],
        "integrity_when_idle": idle["integrity"],
        "processes_that_came_or_went": Counter(
            samples.roles[process] for process, of in samples.of.items() if len(of) < seen - 1
        ),
        "trends": trends,
    }


async def status(http: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get("/v1/status")).raise_for_status().json()
    return found


async def settled(http: httpx.AsyncClient) -> dict[str, Any]:
    """The status once nothing runs, or after a minute."""
    deadline = time.monotonic() + IDLE_S
    while True:
        now = await status(http)
        is_idle = now["searches"] == 0 and not any(each["running"] or each["waiting"] for each in engines(now))
        if (is_idle and not now["integrity"]) or time.monotonic() > deadline:
            return now
        await asyncio.sleep(1.0)


def engines(status: dict[str, Any]) -> list[dict[str, Any]]:
    return [*status["generator"], *status["prm"]]


def claims(figures: dict[str, Any]) -> list[dict[str, Any]]:
    trends: list[Trend] = figures["trends"]
    steepest = max(trend.mb_per_minute for trend in trends)
    gained = max(trend.descriptors_gained for trend in trends)
    blocks = sum(figures["kv_blocks_in_use_when_idle"])
    kept, evicted = min(figures["rewards_kept_when_it_began"]), min(figures["chunks_evicted_when_it_began"])
    unknown = {end: count for end, count in figures["searches"].items() if end not in ("status 200", "hung up")}
    server = [trend.samples[-1].own_mb for trend in trends if trend.role == "lmcache server"]
    server_claims = [
        claim("MB of LMCache's server", round(size), f"<= {MAX_SERVER_MB:.0f}", size <= MAX_SERVER_MB)
        for size in server
    ]
    return [
        *server_claims,
        claim("the reward cache was full when it began", kept, REWARD_CACHE, kept >= REWARD_CACHE),
        claim("chunks that LMCache's server had evicted when it began", evicted, ">= 1", evicted >= 1),
        claim("MB a minute, the most of any process", round(steepest, 3), MAX_MB, steepest <= MAX_MB),
        claim(
            "descriptors gained, the most of any process",
            gained,
            MAX_DESCRIPTORS,
            gained <= MAX_DESCRIPTORS,
        ),
        claim("KV blocks in use when idle", blocks, 0, blocks == 0),
        claim("nothing is left when idle", figures["integrity_when_idle"], [], not figures["integrity_when_idle"]),
        claim("every search was answered or left", unknown, {}, not unknown),
    ]


def plot(trends: list[Trend], path: Path) -> bool:
    """Memory and descriptors over time, a line for each process; False where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (memory, descriptors) = plt.subplots(2, 1, figsize=(9, 9), sharex=True)
    for trend in trends:
        minutes = [each.minute for each in trend.samples]
        memory.plot(minutes, [each.rss_mb - trend.samples[0].rss_mb for each in trend.samples], label=trend.role)
        descriptors.plot(minutes, [each.descriptors for each in trend.samples])
    memory.set_ylabel("MB gained (resident)")
    memory.legend(fontsize="small", ncols=2)
    descriptors.set_ylabel("descriptors")
    descriptors.set_xlabel("minutes")
    figure.savefig(path, bbox_inches="tight")
    return True


def main(
    minutes: Annotated[float, typer.Option(min=0.5)] = 30.0,
    warm_up: Annotated[float, typer.Option(min=0.1, help="Minutes before anything is sampled.")] = 5.0,
    clients: Annotated[int, typer.Option(min=1, max=64)] = 16,
    hang_up_share: Annotated[float, typer.Option(min=0, max=1, help="Share of requests whose client hangs up.")] = 0.1,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    with application(CONFIG) as url:
        figures = asyncio.run(soak(url, clients, hang_up_share, warm_up, minutes))
    trends = sorted(figures.pop("trends"), key=lambda trend: -trend.mb_per_minute)
    server_claims = claims(figures | {"trends": trends})
    path = write_result("soak", {**figures, "claims": server_claims, "processes": [trend.json for trend in trends]})
    plotted = plot(trends, path.with_suffix(".png"))
    table = Table("process", "MB a minute", "resident MB, first and last quarter", "descriptors gained")
    for trend in trends:
        gained = f"{trend.descriptors_gained:+.0f}"
        table.add_row(trend.role, f"{trend.mb_per_minute:+.2f}", f"{trend.first_mb:.0f}, {trend.last_mb:.0f}", gained)
    console.print(table)
    show_claims(console, server_claims)
    console.print(f"kept in {path.relative_to(path.parents[2])}{'' if plotted else '; no plot without matplotlib'}")


def _median(values: Iterator[float]) -> float:
    return float(statistics.median(values))


if __name__ == "__main__":
    typer.run(main)
