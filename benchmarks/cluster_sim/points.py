"""What is simulated: the limit of one controller, the application on this machine, and clusters of many."""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.cluster_sim.calls import ASKED, ASKED_GROUP, ASKED_IN_FLIGHT, REPEATED
from benchmarks.cluster_sim.cluster import (
    Cluster,
    ClusterSize,
    ControllerSize,
    Load,
    PoolSize,
    closed_loop,
    totals,
)
from benchmarks.cluster_sim.costs import CallCosts, Costs
from benchmarks.cluster_sim.engines import SimulatedGenerator, SimulatedScorer
from benchmarks.cluster_sim.processors import OwnCores, Processor, SharedCores
from benchmarks.cluster_sim.quick_replicas import QuickGeneratorReplica, QuickScorerReplica
from benchmarks.cluster_sim.virtual_time import run
from benchmarks.cluster_sim.workload import Language
from search.settings import SearchSettings, parse_search

ONE = PoolSize(1, 1)
SEED = 11


def beam(width: int, children: int, levels: int | None = None) -> dict[str, Any]:
    depth = {} if levels is None else {"max_depth": levels}
    return {"strategy": "beam_search", "n": width, "m": children, **depth}


def seeded(search: dict[str, Any]) -> Callable[[int], SearchSettings]:
    """The settings of each search: its number is its seed."""
    return lambda number: parse_search({**search, "seed": SEED + number})


def controller_limit(calls: CallCosts, cores: int | None, searches: int = 600) -> float:
    """Searches a second that one controller serves at most, before engines that cost nothing, on so many cores; where
    every program has its own (None), nothing but the controller itself can be the limit."""

    async def simulated() -> float:
        shared = SharedCores(cores) if cores else OwnCores()
        cluster = Cluster(
            ClusterSize(ONE, ONE, ONE, ControllerSize(searches=64)),
            calls,
            SEED,
            lambda: shared,
            lambda processor: QuickGeneratorReplica(processor, calls, REPEATED, ASKED_GROUP),
            lambda processor: QuickScorerReplica(processor, calls),
        )
        load = Load(searches, seeded(beam(*ASKED)), lambda number: (number, 1, 2, 3))
        async with cluster.running():
            _, seconds = await closed_loop(cluster, load, ASKED_IN_FLIGHT)
        return searches / seconds

    return run(simulated())


def simulated_cluster(
    size: ClusterSize, costs: Costs, language: Language, processor: Callable[[], Processor]
) -> Cluster:
    return Cluster(
        size,
        costs.calls,
        SEED,
        processor,
        lambda one: SimulatedGenerator(one, language, costs.generator, costs.calls),
        lambda one: SimulatedScorer(one, language, costs.prm, costs.calls),
    )


def load_of(language: Language, searches: int, search: dict[str, Any]) -> Load:
    return Load(searches, seeded(search), lambda number: language.prompt(str(number)))


def served(
    costs: Costs, language: Language, search: dict[str, Any], clients: int, searches: int, cores: int
) -> dict[str, Any]:
    """The application on one machine, of whose cores all programs have to make do with."""

    async def simulated() -> dict[str, Any]:
        shared = SharedCores(cores)
        cluster = simulated_cluster(ClusterSize(ONE, ONE, ONE), costs, language, lambda: shared)
        async with cluster.running():
            took, seconds = await closed_loop(cluster, load_of(language, searches, search), clients)
        return figures(cluster, took, seconds)

    return run(simulated())


def figures(cluster: Cluster, took: Sequence[float], seconds: float) -> dict[str, Any]:
    ordered = sorted(took)
    return {
        "searches": len(took),
        "seconds": round(seconds, 3),
        "searches_per_s": round(len(took) / seconds, 3),
        "median_s": round(ordered[len(ordered) // 2], 4),
        "p95_s": round(ordered[int(0.95 * (len(ordered) - 1))], 4),
        "refused": cluster.refused,
        "per_search": totals(cluster.costs),
    }
