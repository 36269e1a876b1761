"""Whether a pool of replicas follows a load that rises, falls and rises again, and whether clients notice.

    python -m benchmarks.autoscaling
    python -m benchmarks.autoscaling --pool prm
    python -m benchmarks.autoscaling --pool controller

For generators, KV memory is what is short: a second one adds memory here, not cores. Searches take longer than a
replica that shuts down waits for them (``drain_s``), so their unfinished branches are written elsewhere, under the same
seeds. The reward model is made heavy, since beside the embedded one the generator is the bottleneck. A controller has
few places, and one that shuts down has time to finish its searches. A plot is written beside the figures if matplotlib
is installed.
"""

import asyncio
import importlib.util
import itertools
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import httpx
import typer
import uvloop
from rich.console import Console

from benchmarks.idle_layers import with_idle_layers
from benchmarks.kv_clamp import BLOCK_BYTES
from benchmarks.overload import percentiles
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import application
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.embedded.problems import Split, draw_problems
from deployments.engines.settings import EMBEDDED_PRM
from deployments.startup.environment import set_environment

LOADS = {"low": 1, "high": 8, "low again": 1, "high again": 8}
"""Clients in each step of the load."""
SEARCH = {"strategy": "beam_search", "n": 64, "m": 4}
NARROW = {"strategy": "beam_search", "n": 16, "m": 4}
"""The search that makes the reward model the bottleneck."""
BLOCKS = 256
"""KV blocks of a generator: enough for two such searches, not for eight."""
PRM_NEURONS = 32_768
"""Neurons in each layer of the heavy reward model: 64 times those of the embedded one."""
DRAIN_S = 0.5
MAX_TURNS = 2
SEED = 21
SAMPLE_S = 1.0
console = Console(stderr=True)


class Pool(StrEnum):
    """The pool that grows and shrinks."""

    GENERATOR = "generator"
    PRM = "prm"
    CONTROLLER = "controller"


DEPLOYMENTS = {Pool.GENERATOR: "Generator", Pool.PRM: "ProcessRewardModel", Pool.CONTROLLER: "SearchController"}
SHORT: dict[Pool, dict[str, Any]] = {
    Pool.GENERATOR: {"kv_cache_memory_bytes": BLOCKS * BLOCK_BYTES, "max_num_seqs": 256},
    Pool.PRM: {"scoring_delay_s": 1.0, "reward_cache_size": 0},
    Pool.CONTROLLER: {"searches": 8},
}
"""What is short in each pool: enough for one client, not for eight. The searches repeat, so a reward model that cached
rewards would have nothing to do."""


def search_for(pool: Pool) -> dict[str, Any]:
    """The search of every client."""
    return NARROW if pool is Pool.PRM else SEARCH


def settings(pool: Pool) -> dict[str, Any]:
    """Settings of the pool's deployment, without the heavy reward model: its path is a temporary directory."""
    replicas: dict[str, Any] = {"min_replicas": 1, "max_replicas": 2, "upscale_delay_s": 5, "downscale_delay_s": 20}
    if pool is not Pool.CONTROLLER:
        replicas["drain_s"] = DRAIN_S
    return {**SHORT[pool], "replicas": replicas}


def config(pool: Pool, directory: Path) -> AppConfig:
    """``directory``: of the heavy reward model, if its pool is measured."""
    own = settings(pool)
    if pool is Pool.PRM:
        own["model"] = str(with_idle_layers(directory, neurons=PRM_NEURONS, of=EMBEDDED_PRM))
    return AppConfig.model_validate({pool.value: own, "http": {"canary_every_s": 0}})


def replicas_of(pool: Pool) -> int:
    """Number of replicas that serve."""
    from ray import serve
    from ray.serve._private.common import ReplicaState

    states = serve.status().applications["default"].deployments[DEPLOYMENTS[pool]].replica_states
    return states.get(ReplicaState.RUNNING, 0)


@dataclass
class Samples:
    """Samples of the pool, one per second."""

    minutes: list[float] = field(default_factory=list)
    step: list[str] = field(default_factory=list)
    replicas: list[int] = field(default_factory=list)
    reserved: list[float] = field(default_factory=list)
    """Promised KV blocks of the generators, as a share of all blocks."""
    waiting: list[int] = field(default_factory=list)
    """Branches that wait for blocks."""

    def turns(self, step: str) -> int:
        """How often the pool changed its direction within a step."""
        counts = [count for count, at in zip(self.replicas, self.step, strict=True) if at == step]
        moves = [after - before for before, after in itertools.pairwise(counts) if after != before]
        return sum((one > 0) != (other > 0) for one, other in itertools.pairwise(moves))

    def last(self, step: str) -> int:
        return [count for count, at in zip(self.replicas, self.step, strict=True) if at == step][-1]


async def measure(url: str, pool: Pool, seconds: float) -> dict[str, Any]:
    samples, ended, took = Samples(), Counter[str](), list[float]()
    problems = list(itertools.islice(draw_problems(Split.TEST, SEED), 24))
    numbers = itertools.count()
    async with httpx.AsyncClient(base_url=url, timeout=600.0, limits=httpx.Limits(max_connections=None)) as http:

        async def search(number: int) -> tuple[Any, ...]:
            messages = [{"role": "user", "content": problems[number].text}]
            body = {
                "model": "banyan-arithmetic",
                "messages": messages,
                "seed": SEED + number,
                "search": search_for(pool),
            }
            reply = await http.post("/v1/search", json=body)
            if reply.status_code != 200:
                return (reply.status_code,)
            found = reply.json()
            facts = found["search"]
            return 200, facts["degraded"], facts["stop_reason"], facts["answer"], facts["nodes"]

        undisturbed = {number: await search(number) for number in range(len(problems))}

        async def client(index: int) -> None:
            """Searches one after the other while the load includes this client; finishes what it has begun."""
            while index < wanted:
                number = next(numbers) % len(problems)
                began = time.monotonic()
                try:
                    outcome = await search(number)
                except httpx.HTTPError as error:
                    ended[type(error).__name__] += 1
                    continue
                took.append(time.monotonic() - began)
                ended["as undisturbed" if outcome == undisturbed[number] else f"otherwise: {outcome}"] += 1

        started = time.monotonic()
        clients: dict[int, asyncio.Task[None]] = {}
        for step, wanted in LOADS.items():
            for index in range(wanted):
                if index not in clients or clients[index].done():
                    clients[index] = asyncio.create_task(client(index))
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                generators = (await http.get("/v1/status")).json()["generator"]
                whole = [each for each in generators if "total_blocks" in each]
                blocks = sum(each["total_blocks"] for each in whole)
                samples.minutes.append(round((time.monotonic() - started) / 60, 3))
                samples.step.append(step)
                samples.replicas.append(await asyncio.to_thread(replicas_of, pool))
                samples.reserved.append(round(sum(each["reserved_blocks"] for each in whole) / max(1, blocks), 3))
                samples.waiting.append(sum(each["waiting"] for each in whole))
                await asyncio.sleep(SAMPLE_S)
            console.print(f"{step}: {samples.last(step)} replicas, {ended.total()} searches so far")
        wanted = 0
        await asyncio.gather(*clients.values())
    return {"seen": samples, "ended": ended, "took": took}


def claims(samples: Samples, ended: Counter[str]) -> list[dict[str, Any]]:
    others = {end: count for end, count in ended.items() if end != "as undisturbed"}
    turns = max(samples.turns(step) for step in LOADS)
    last = [samples.last(step) for step in LOADS]
    return [
        claim("replicas at the end of each step", last, [1, 2, 1, 2], last == [1, 2, 1, 2]),
        claim("changes of direction within a step, at most", turns, f"<= {MAX_TURNS}", turns <= MAX_TURNS),
        claim("searches that did not come to what they come to undisturbed", others, {}, not others),
    ]


def plot(samples: Samples, pool: Pool, path: Path) -> bool:
    """Writes a plot; returns False where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (size, memory, queue) = plt.subplots(3, 1, figsize=(9, 7), sharex=True)
    size.step(samples.minutes, samples.replicas, where="post")
    size.set_ylabel(f"replicas: {pool}")
    size.set_yticks([0, 1, 2])
    memory.plot(samples.minutes, samples.reserved)
    memory.set_ylabel("KV blocks promised\nover those there are")
    queue.plot(samples.minutes, samples.waiting)
    queue.set_ylabel("branches that wait\nfor blocks")
    queue.set_xlabel("minutes")
    for axes in (size, memory, queue):
        for begin in (samples.minutes[samples.step.index(step)] for step in LOADS):
            axes.axvline(begin, color="grey", linewidth=0.5)
    for step, clients in LOADS.items():
        label = f"{clients} client{'s' * (clients > 1)}"
        size.annotate(
            label, (samples.minutes[samples.step.index(step)], 0.1), xytext=(4, 0), textcoords="offset points"
        )
    figure.savefig(path, bbox_inches="tight")
    return True


def main(
    pool: Annotated[Pool, typer.Option()] = Pool.GENERATOR,
    seconds: Annotated[float, typer.Option(min=30, help="Seconds of each of the four steps.")] = 150.0,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    with TemporaryDirectory() as directory, application(config(pool, Path(directory))) as url:
        figures = uvloop.run(measure(url, pool, seconds))
    samples, ended = figures["seen"], figures["ended"]
    checked = claims(samples, ended)
    asked = {
        "pool": pool,
        "settings": settings(pool),
        "clients": LOADS,
        "seconds": seconds,
        "search": search_for(pool),
    }
    kept = {
        "asked": asked,
        "ended": dict(ended),
        "seconds": percentiles(figures["took"]),
        "claims": checked,
        **vars(samples),
    }
    path = write_result("autoscaling" if pool is Pool.GENERATOR else f"autoscaling_{pool}", kept)
    plotted = plot(samples, pool, path.with_suffix(".png"))
    show_claims(console, checked)
    console.print(f"kept in {path.relative_to(path.parents[2])}{'' if plotted else '; no plot without matplotlib'}")


if __name__ == "__main__":
    typer.run(main)
