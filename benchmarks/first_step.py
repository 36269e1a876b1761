"""Time to a search's first step from a generator that has not seen its prompt, with LMCache and without.

    python -m benchmarks.first_step
    python -m benchmarks.first_step --turns 1 --parts replicas

The generator is heavy in compute and KV (idle layers, 16 kB a token); prompts have 800 tokens or more; 16 searches run
at a time over HTTP. Each side is an application of its own, in turns, with the same prompts under the same seeds.

``replicas``: the prompts are sent to a new generator, then again, after it was killed and replaced, after two more were
added, and after the application was deleted and deployed again, where LMCache has a second tier in files. Once two were
added, some searches still go to the first generator, which already has their prompts; searches that began on an added
generator are also reported separately.

``returns``: MCTS with KV memory for only some of the searches, timed from one expansion to the next. When a search
comes back to a path, others have evicted it. Expansions that waited while prompts were computed for the first time,
which no cache can avoid, are reported separately (``first prompts``) and without a claim.
"""

import asyncio
import itertools
import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import httpx
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.hangs import is_whole, replicas, until
from benchmarks.idle_layers import with_idle_layers
from benchmarks.kv_clamp import counters
from benchmarks.overload import percentiles, quantile
from benchmarks.record import claim, show_claims, write_result
from benchmarks.replicas import in_replicas
from benchmarks.served_overhead import application
from cluster.client import Client, Question, StepScored
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.embedded.problems import Split, draw_problems
from deployments.startup.environment import set_environment
from scripts.embedded.conversations import system_text
from search.ports import branch_seed

SIDES = ("without", "with")
LAYERS = 32
NEURONS = 4096
TOKEN_BYTES = 512 * LAYERS
CONTEXT_TOKENS = 1024
"""Context of the embedded models in tokens: the longest path."""
SYSTEM_CHARS = 960
"""Characters of random text before the problem: prompts of 800 to 950 tokens."""
CLIENTS = 16
FIRST = {"strategy": "beam_search", "n": 4, "m": 4, "max_step_tokens": 16}
PRESSING = {"strategy": "beam_search", "n": 64, "m": 4, "max_step_tokens": 16}
"""Sixteen of these at once make a pool grow."""
RETURNING = {"strategy": "mcts", "iterations": 6, "max_step_tokens": 16, "max_path_tokens": 32}
RETURNING_CLIENTS = 8
POOL = 3
GROWS_AFTER_S = 40
"""Longer than the first computation of all prompts takes, so that the pool does not grow before `press` loads it."""
FIT = 3
"""Longest paths that fit into KV memory in the part ``returns``."""
ADDED = "scaled up, begun on an added replica"
RETURNS, FIRST_PROMPTS = "returns", "first prompts"
STATES = ("cold", "replaced", "scaled up", ADDED, RETURNS)
"""States with a claim."""
MAX_RATIO = 1 / 3
SEED = 41
console = Console(stderr=True)


class Prompt(NamedTuple):
    """A problem after a long system message."""

    text: str
    system: str
    seed: int

    def question(self, search: dict[str, Any]) -> Question:
        history = ({"role": "system", "content": self.system},) if self.system else ()
        return Question(self.text, search, seed=self.seed, history=history)


def prompts(seed: int, chars: int = SYSTEM_CHARS) -> Iterator[Prompt]:
    rng = random.Random(seed)
    for number, problem in enumerate(draw_problems(Split.VALIDATION, seed)):
        yield Prompt(problem.text, system_text(rng, chars) if chars else "", number)


async def first_steps(url: str, asked: Sequence[Prompt], search: dict[str, Any] = FIRST) -> list[float]:
    """Seconds to the first scored step of each prompt. All are sent at once; no search is finished."""
    async with Client(url, connections=len(asked)) as client:

        async def ask(prompt: Prompt) -> float:
            began = time.perf_counter()
            async with aclosing(client.stream(prompt.question(search))) as events:
                async for event in events:
                    if isinstance(event, StepScored):
                        return time.perf_counter() - began
            raise RuntimeError("a search without a step")

        return await asyncio.gather(*map(ask, asked))


def began(replica: Any) -> tuple[int, list[int]]:
    """For a generator's replica: its process id, and for each search that began on it since the last call, the seed of
    its first branch."""
    engine = getattr(replica, "_engine", None)
    if engine is None:  # it is still starting
        return os.getpid(), []
    if not hasattr(engine, "began"):
        expand = engine.expand

        def noted(request: Any) -> Any:
            engine.began += [item.branches[0].seed for item in request.expansions if not item.parent]
            return expand(request)

        engine.expand = noted
        engine.began = []
    seeds, engine.began = engine.began, []
    return os.getpid(), seeds


async def between_expansions(url: str, asked: Sequence[Prompt]) -> dict[str, list[float]]:
    """Seconds from one expansion's first scored step to the next one's, over all searches, which run at once."""
    async with Client(url, connections=len(asked)) as client:

        async def ask(prompt: Prompt) -> list[float]:
            came: dict[tuple[int, ...], float] = {}
            async for event in client.stream(prompt.question(RETURNING)):
                if isinstance(event, StepScored):
                    came.setdefault(event.node[:-1], time.perf_counter())
            return list(came.values())

        times = await asyncio.gather(*map(ask, asked))
    all_known = max(came[0] for came in times)
    found: dict[str, list[float]] = {FIRST_PROMPTS: [], RETURNS: []}
    for before, after in itertools.chain.from_iterable(map(itertools.pairwise, times)):
        found[RETURNS if before >= all_known else FIRST_PROMPTS].append(after - before)
    return found


def config_of(side: str, model: Path, fit: int, pool: int, files: Path | None = None) -> AppConfig:
    """``fit``: number of the longest paths that fit into a generator's KV memory. ``files``: directory of LMCache's
    second tier; None for none."""
    grows = {"min_replicas": 1, "max_replicas": pool, "upscale_delay_s": GROWS_AFTER_S, "downscale_delay_s": 3600}
    generator = {
        "model": str(model),
        "served_name": "banyan-arithmetic",
        "max_model_len": CONTEXT_TOKENS,
        "kv_cache_memory_bytes": fit * CONTEXT_TOKENS * TOKEN_BYTES,
        "replicas": grows,
    }
    cache: dict[str, Any] = {"enabled": side == "with", "l1_size_gb": 2}
    if side == "with" and files is not None:
        cache["l2_adapters"] = [{"type": "fs_native", "base_path": str(files)}]
    return AppConfig.model_validate({"generator": generator, "cache": cache, "http": {"canary_every_s": 0}})


async def of_new_replicas(config: AppConfig, url: str, seed: int) -> dict[str, list[float]]:
    """Seconds to the first step, by what happened to the pool before."""
    from ray import serve

    from deployments.app import build

    long, short = (list(itertools.islice(prompts(seed, chars), CLIENTS)) for chars in (SYSTEM_CHARS, 0))
    found: dict[str, list[float]] = {}

    async def ask(state: str) -> dict[int, int]:
        """Process id of the generator that each search began on, by its prompt's seed."""
        # Whatever an engine does only once must not count as the time of a prompt.
        await first_steps(url, short)
        await asyncio.to_thread(in_replicas, "Generator", began)
        found[state] = await first_steps(url, long)
        await settled()
        seeds = {pid: set(first) for pid, first in await asyncio.to_thread(in_replicas, "Generator", began)}
        firsts = {prompt.seed: branch_seed(prompt.seed, (), 0) for prompt in long}
        return {seed: next(pid for pid, of in seeds.items() if first in of) for seed, first in firsts.items()}

    async with httpx.AsyncClient(base_url=url, timeout=60.0) as http:

        async def settled() -> None:
            async def idle() -> bool:
                status = (await http.get("/v1/status")).raise_for_status().json()
                return status["searches"] == 0 and not any(each["running"] for each in status["generator"])

            await until(idle, "all searches have ended")

        async def whole(generators: int) -> None:
            await until(lambda: is_whole(http, "generator", generators), f"{generators} generators")

        await ask("new")
        await ask("known")
        replicas("generator")[0].kill()
        await asyncio.sleep(1.0)  # the status lists it until its death is noticed
        await whole(1)
        (old,) = set((await ask("replaced")).values())
        pressing = asyncio.create_task(press(url, seed + 1))
        await whole(POOL)
        pressing.cancel()
        await asyncio.wait([pressing])
        await settled()
        by = await ask("scaled up")
        found[ADDED] = [
            seconds for prompt, seconds in zip(long, found["scaled up"], strict=True) if by[prompt.seed] != old
        ]
        await asyncio.to_thread(serve.delete, "default")
        await asyncio.to_thread(serve.run, build(config))
        await whole(1)
        await ask("cold")
    return found


async def press(url: str, seed: int) -> None:
    """Keeps searching with short prompts, which makes the pool grow, until cancelled."""
    drawn = prompts(seed, chars=0)
    async with Client(url, connections=CLIENTS) as client:

        async def keep_searching() -> None:
            while True:
                await client.ask(next(drawn).question(PRESSING))

        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(keep_searching())


async def of_returns(url: str, seed: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Seconds between expansions by state, and the growth of the generator's counters."""
    drawn = prompts(seed)
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as http:
        await first_steps(url, list(itertools.islice(prompts(seed + 1, chars=0), RETURNING_CLIENTS)))
        before = await counters(http)
        took = await between_expansions(url, list(itertools.islice(drawn, RETURNING_CLIENTS)))
        after = await counters(http)
    return took, {name: after[name] - before[name] for name in after}


def claims(found: dict[str, dict[str, list[float]]], states: Sequence[str]) -> list[dict[str, Any]]:
    """``found``: seconds by state and side."""
    made = []
    for state in states:
        for name, part in (("p50", 0.5), ("p95", 0.95)):
            there, here = (quantile(sorted(found[state][side]), part) for side in ("with", "without"))
            ratio = there / here
            made.append(claim(f"{state}, {name}: with over without", round(ratio, 3), "<= 1/3", ratio <= MAX_RATIO))
    return made


def main(
    turns: Annotated[int, typer.Option(min=1, max=20)] = 2,
    parts: Annotated[str, typer.Option(help="Parts to run: replicas, returns.")] = "replicas,returns",
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    wanted = parts.split(",")
    found: dict[str, dict[str, list[float]]] = {}
    counted: dict[str, list[dict[str, int]]] = {side: [] for side in SIDES}

    def keep(state: str, side: str, seconds: list[float]) -> None:
        found.setdefault(state, {each: [] for each in SIDES})[side] += seconds
        console.print(f"{state}, {side}: {statistics.median(seconds):.2f} s at the median of {len(seconds)}")

    with TemporaryDirectory() as directory:
        model = with_idle_layers(Path(directory), LAYERS, NEURONS)
        for turn in range(turns):
            for side in SIDES[:: 1 if turn % 2 == 0 else -1]:
                if "replicas" in wanted:
                    (files := Path(directory) / f"kv-{turn}").mkdir(exist_ok=True)
                    config = config_of(side, model, fit=4 * CLIENTS, pool=POOL, files=files)
                    with application(config) as url:
                        for state, seconds in asyncio.run(of_new_replicas(config, url, SEED + turn)).items():
                            keep(state, side, seconds)
                if "returns" in wanted:
                    with application(config_of(side, model, fit=FIT, pool=1)) as url:
                        between, counts = asyncio.run(of_returns(url, SEED + turn))
                    for state, seconds in between.items():
                        if seconds:
                            keep(state, side, seconds)
                    counted[side].append(counts)
    asked = [state for state in STATES if state in found]
    checked = claims(found, asked)
    kept = {state: {side: percentiles(seconds) for side, seconds in of.items()} for state, of in found.items()}
    shape = {"layers": LAYERS, "neurons": NEURONS, "bytes_of_kv_a_token": TOKEN_BYTES, "clients": CLIENTS}
    path = write_result("first_step", {"asked": shape, "seconds": kept, "counted": counted, "claims": checked})
    table = Table("state", *(f"{side}: {name}" for side in SIDES for name in ("p50", "p95")))
    for state, of in kept.items():
        table.add_row(state, *(f"{of[side][name]:.2f}" for side in SIDES for name in ("p50", "p95")))
    console.print(table)
    show_claims(console, checked)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
