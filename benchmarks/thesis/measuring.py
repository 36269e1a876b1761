"""Runs searches on a pair of engines and reads what the engines count."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from benchmarks.engines import Engines, engines_of, solve_all
from benchmarks.overload import percentiles
from benchmarks.thesis.points import Point
from cluster.evaluation.problem_files import EvalProblem
from deployments.config import AppConfig
from deployments.engines.rewards.no_rewards import NoRewardSettings
from deployments.telemetry.engine_telemetry import GAUGES
from search.run.report import SearchOutcome
from search.run.runner import run_search
from search.settings import parse_search

SAMPLE_S = 0.1
"""Time between two samples of KV use."""
MAX_SAMPLES = 600
KV_USE = "engine_step_kv_use_ratio"
NOW = {*GAUGES, "withheld_blocks", "calls", "branches_alive", "items_alive"}
"""Figures of an engine that are no counters."""
SEED = 17


class Counted(NamedTuple):
    """Counters and histograms of one engine at one time."""

    stats: dict[str, int]
    histograms: dict[str, dict[str, Any]]

    @classmethod
    def of(cls, engine: Any) -> "Counted":
        return cls(engine.stats(), {name: each.figures for name, each in engine.histograms.items()})


def growth(before: Counted, after: Counted) -> dict[str, Any]:
    """What one engine counted between two times: every counter, and of each histogram the values in each bucket."""
    histograms = {}
    for name, now in after.histograms.items():
        then = before.histograms[name]
        up_to = [now["buckets"][bucket] - then["buckets"][bucket] for bucket in now["buckets"]]
        histograms[name] = {
            "boundaries": [bucket for bucket in now["buckets"] if bucket != "+Inf"],
            "counts": [here - below for here, below in zip(up_to, [0, *up_to], strict=False)],
            "mean": round((now["sum"] - then["sum"]) / max(now["count"] - then["count"], 1), 4),
        }
    counters = {name: number - before.stats.get(name, 0) for name, number in after.stats.items() if name not in NOW}
    return {"counters": counters, "histograms": histograms, "total_blocks": after.stats["total_blocks"]}


def figures(grown: Mapping[str, Any], seconds: float, batch: int) -> dict[str, Any]:
    """Rates and shares of one engine."""
    counters: Mapping[str, int] = grown["counters"]
    histograms = grown["histograms"]
    computed = counters["prompt_tokens"] + counters["generated_tokens"]
    prompts = max(counters["prompt_tokens"], 1)
    return {
        "tokens_per_s": round(counters["generated_tokens"] / seconds, 1),
        "batch_fill": round(counters["engine_step_requests"] / max(counters["engine_steps"], 1) / batch, 4),
        "mean_kv_use": histograms[KV_USE]["mean"],
        "hit_rate": round(counters["prefix_hits"] / max(counters["prefix_queries"], 1), 4),
        "lmcache_hit_rate": round(counters["external_hits"] / prompts, 4),
        "recomputed_tokens": counters["recomputed_tokens"],
        "recomputed_share": round(counters["recomputed_tokens"] / max(computed, 1), 4),
        "preemptions": counters["preemptions"],
        "held_back": counters.get("branches_held_back", counters.get("items_held_back", 0)),
        **grown,
    }


class KVUse:
    """Samples of both engines' KV use during a run."""

    def __init__(self, engines: Engines) -> None:
        self._histograms = [engine.histograms[KV_USE] for engine in (engines.generator, engines.scorer)]
        self._told = [(0, 0.0)] * 2
        self.samples: list[list[float]] = []
        """Seconds from the start, then for generator and reward model the mean over the steps since the last sample; 0
        without a step."""

    @asynccontextmanager
    async def sampled(self) -> AsyncIterator[None]:
        self._read()
        started = time.perf_counter()

        async def sample() -> None:
            while len(self.samples) < MAX_SAMPLES:
                await asyncio.sleep(SAMPLE_S)
                self.samples.append([round(time.perf_counter() - started, 2), *self._read()])

        task = asyncio.create_task(sample())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _read(self) -> list[float]:
        now = [(each.figures["count"], each.figures["sum"]) for each in self._histograms]
        told, self._told = self._told, now
        return [
            round((total - before) / (count - counted), 4) if count > counted else 0.0
            for (count, total), (counted, before) in zip(now, told, strict=True)
        ]


async def measure(
    config: AppConfig, points: Sequence[Point], problems: Sequence[EvalProblem], search: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """A row for each of the points, which share one application. Every point gets the same problems and seeds."""
    async with engines_of(config) as engines:
        rows: list[dict[str, Any]] = []
        for number, point in enumerate(points):
            await _run(engines, problems[: point.clients], point.clients, search, f"warm-up {number}")
            before = Counted.of(engines.generator), Counted.of(engines.scorer)
            kv_use = KVUse(engines)
            async with kv_use.sampled():
                outcomes, took, seconds = await _run(engines, problems, point.clients, search, f"point {number}")
            after = Counted.of(engines.generator), Counted.of(engines.scorer)
            assert not isinstance(config.prm, NoRewardSettings)
            batches = config.generator_engine.max_num_seqs, config.prm.max_num_seqs
            of = [
                figures(growth(here, there), seconds, batch)
                for here, there, batch in zip(before, after, batches, strict=True)
            ]
            rows.append(
                {
                    **point.application._asdict(),
                    "clients": point.clients,
                    "searches": len(outcomes),
                    "searches_per_s": round(len(outcomes) / seconds, 3),
                    "seconds": percentiles(took),
                    "generated_tokens": sum(each.cost.generated_tokens for each in outcomes),
                    "generator": of[0],
                    "prm": of[1],
                    "kv_use": kv_use.samples,
                }
            )
        return rows


async def _run(
    engines: Engines, problems: Sequence[EvalProblem], clients: int, search: Mapping[str, Any], name: str
) -> tuple[list[SearchOutcome], list[float], float]:
    """All problems once: the outcomes, the seconds of each, and of all together. Runs of different names share no
    prefix: the name is their cache salt."""

    salt = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()

    async def solve(problem: EvalProblem, seed: int) -> tuple[SearchOutcome, float]:
        began = time.perf_counter()
        settings = parse_search({**search, "seed": seed})
        prompt, search_id = engines.prompt(problem.problem), f"{name} {problem.unique_id}"
        outcome = await run_search(
            problem.problem, prompt, settings, engines.environment, search_id=search_id, cache_salt=salt
        )
        return outcome, time.perf_counter() - began

    done, seconds = await solve_all(solve, problems, clients, SEED)
    return [outcome for outcome, _ in done], [took for _, took in done], seconds
