"""A pool of replicas under a load that rises, falls and rises again: does it follow, and does anybody notice?

    python -m benchmarks.autoscaling
    python -m benchmarks.autoscaling --pool prm
    python -m benchmarks.autoscaling --pool controller

Of generators KV memory is what is short: a second one adds memory here, not cores. Searches are longer than a replica
that ends may take to finish (``drain_s``), so what they had there is written elsewhere, under the same seeds. A reward
model is made heavy: beside the embedded one it is the generator that is busy. A controller's places are few, and one
that is to end has the time to finish its searches. Beside the figures a plot is kept where matplotlib is installed.
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
from benchmarks.overload import told
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import application
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.embedded.problems import Split, draw_problems
from deployments.engines.settings import EMBEDDED_PRM
from deployments.startup.environment import set_environment

LOADS = {"low": 1, "high": 8, "low again": 1, "high again": 8}
"""Clients in each step."""
SEARCH = {"strategy": "beam_search", "n": 64, "m": 4}
NARROW = {"strategy": "beam_search", "n": 16, "m": 4}
"""Where the reward model is to be what is busy."""
BLOCKS = 256
"""KV blocks of a generator: two such searches have room, eight have not."""
PRM_NEURONS = 32_768
"""Of each layer of the reward model where its pool is measured: 64 times those of the embedded one."""
DRAIN_S = 0.5
MOST_TURNS = 2
SEED = 21
SAMPLE_S = 1.0
console = Console(stderr=True)


class Pool(StrEnum):
    """What is to grow and shrink."""

    GENERATOR = "generator"
    PRM = "prm"
    CONTROLLER = "controller"


DEPLOYMENTS = {Pool.GENERATOR: "Generator", Pool.PRM: "ProcessRewardModel", Pool.CONTROLLER: "SearchController"}
SHORT: dict[Pool, dict[str, Any]] = {
    Pool.GENERATOR: {"kv_cache_memory_bytes": BLOCKS * BLOCK_BYTES, "max_num_seqs": 256},
    Pool.PRM: {"scoring_delay_s": 1.0, "reward_cache_size": 0},
    Pool.CONTROLLER: {"searches": 8},
}
"""What each has little of: enough for one client, not for eight. The searches are the same again and again: a reward
model that remembered them would have nothing to do."""


def search_for(pool: Pool) -> dict[str, Any]:
    """What every client searches with."""
    return NARROW if pool is Pool.PRM else SEARCH


def settings(pool: Pool) -> dict[str, Any]:
    """Of its deployment; the heavy reward model is not among them, which is wherever it was made."""
    replicas: dict[str, Any] = {"min_replicas": 1, "max_replicas": 2, "upscale_delay_s": 5, "downscale_delay_s": 20}
    if pool is not Pool.CONTROLLER:
        replicas["drain_s"] = DRAIN_S
    return {**SHORT[pool], "replicas": replicas}


def config(pool: Pool, directory: Path) -> AppConfig:
    """``directory``: for a heavy reward model, where its pool is measured."""
    own = settings(pool)
    if pool is Pool.PRM:
        own["model"] = str(with_idle_layers(directory, neurons=PRM_NEURONS, of=EMBEDDED_PRM))
    return AppConfig.model_validate({pool.value: own, "http": {"canary_every_s": 0}})


def replicas_of(pool: Pool) -> int:
    """Those that serve."""
    from ray import serve
    from ray.serve._private.common import ReplicaState

    states = serve.status().applications["default"].deployments[DEPLOYMENTS[pool]].replica_states
    return states.get(ReplicaState.RUNNING, 0)


@dataclass
class Seen:
    """What was seen of the pool, once a second."""

    minutes: list[float] = field(default_factory=list)
    step: list[str] = field(default_factory=list)
    replicas: list[int] = field(default_factory=list)
    reserved: list[float] = field(default_factory=list)
    """Blocks of generators that are promised, over those there are."""
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
    seen, ended, took = Seen(), Counter[str](), list[float]()
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

        async def client(place: int) -> None:
            """Searches one after the other while there are to be so many clients; what it has begun it finishes."""
            while place < wanted:
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
            for place in range(wanted):
                if place not in clients or clients[place].done():
                    clients[place] = asyncio.create_task(client(place))
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                generators = (await http.get("/v1/status")).json()["generator"]
                whole = [each for each in generators if "total_blocks" in each]
                blocks = sum(each["total_blocks"] for each in whole)
                seen.minutes.append(round((time.monotonic() - started) / 60, 3))
                seen.step.append(step)
                seen.replicas.append(await asyncio.to_thread(replicas_of, pool))
                seen.reserved.append(round(sum(each["reserved_blocks"] for each in whole) / max(1, blocks), 3))
                seen.waiting.append(sum(each["waiting"] for each in whole))
                await asyncio.sleep(SAMPLE_S)
            console.print(f"{step}: {seen.last(step)} replicas, {ended.total()} searches so far")
        wanted = 0
        await asyncio.gather(*clients.values())
    return {"seen": seen, "ended": ended, "took": took}


def claims(seen: Seen, ended: Counter[str]) -> list[dict[str, Any]]:
    others = {end: count for end, count in ended.items() if end != "as undisturbed"}
    turns = max(seen.turns(step) for step in LOADS)
    last = [seen.last(step) for step in LOADS]
    return [
        claim("replicas at the end of each step", last, [1, 2, 1, 2], last == [1, 2, 1, 2]),
        claim("changes of direction within a step, at most", turns, f"<= {MOST_TURNS}", turns <= MOST_TURNS),
        claim("searches that did not come to what they come to undisturbed", others, {}, not others),
    ]


def plot(seen: Seen, pool: Pool, path: Path) -> bool:
    """False where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (size, memory, queue) = plt.subplots(3, 1, figsize=(9, 7), sharex=True)
    size.step(seen.minutes, seen.replicas, where="post")
    size.set_ylabel(f"replicas: {pool}")
    size.set_yticks([0, 1, 2])
    memory.plot(seen.minutes, seen.reserved)
    memory.set_ylabel("KV blocks promised\nover those there are")
    queue.plot(seen.minutes, seen.waiting)
    queue.set_ylabel("branches that wait\nfor blocks")
    queue.set_xlabel("minutes")
    for axes in (size, memory, queue):
        for begin in (seen.minutes[seen.step.index(step)] for step in LOADS):
            axes.axvline(begin, color="grey", linewidth=0.5)
    for step, clients in LOADS.items():
        label = f"{clients} client{'s' * (clients > 1)}"
        size.annotate(label, (seen.minutes[seen.step.index(step)], 0.1), xytext=(4, 0), textcoords="offset points")
    figure.savefig(path, bbox_inches="tight")
    return True


def main(
    pool: Annotated[Pool, typer.Option()] = Pool.GENERATOR,
    seconds: Annotated[float, typer.Option(min=30, help="Of each of the four steps.")] = 150.0,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    with TemporaryDirectory() as directory, application(config(pool, Path(directory))) as url:
        figures = uvloop.run(measure(url, pool, seconds))
    seen, ended = figures["seen"], figures["ended"]
    held = claims(seen, ended)
    asked = {
        "pool": pool,
        "settings": settings(pool),
        "clients": LOADS,
        "seconds": seconds,
        "search": search_for(pool),
    }
    kept = {"asked": asked, "ended": dict(ended), "seconds": told(figures["took"]), "claims": held, **vars(seen)}
    path = write_result("autoscaling" if pool is Pool.GENERATOR else f"autoscaling_{pool}", kept)
    plotted = plot(seen, pool, path.with_suffix(".png"))
    show_claims(console, held)
    console.print(f"kept in {path.relative_to(path.parents[2])}{'' if plotted else '; no plot without matplotlib'}")


if __name__ == "__main__":
    typer.run(main)
