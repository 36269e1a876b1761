"""Simulated scenarios: the limit of one controller, the application on this machine, and clusters of many replicas."""

import math
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from benchmarks.cluster_sim.calls import LIMIT_GROUP, LIMIT_IN_FLIGHT, LIMIT_SHAPE, REPEATED
from benchmarks.cluster_sim.cluster import (
    DEFAULT_ROUTERS,
    AtHome,
    BySearch,
    Cluster,
    ClusterSize,
    ControllerSize,
    PoolSize,
    PowerOfTwoChoices,
    Routers,
    closed_loop,
    figures,
    means,
    open_loop,
)
from benchmarks.cluster_sim.costs import CallCosts, Costs
from benchmarks.cluster_sim.engines import SimulatedGenerator, SimulatedScorer
from benchmarks.cluster_sim.flows import Flows, Means, rounds_of
from benchmarks.cluster_sim.pace import EQUAL, Pace
from benchmarks.cluster_sim.processors import OwnCores, Processor, SharedCores
from benchmarks.cluster_sim.quick_replicas import QuickGeneratorReplica, QuickScorerReplica
from benchmarks.cluster_sim.virtual_time import run
from benchmarks.cluster_sim.workload import Language
from deployments.engines.settings import WriteAheadSetting
from deployments.engines.write_ahead import CPU, Device
from deployments.scaling.homes import BALANCE
from deployments.scaling.pressure import FULL
from search.ports import StopCondition
from search.settings import parse_search

ONE = PoolSize(1, 1)
APPLICATION = ClusterSize(ONE, ONE, ONE)
POWER_OF_TWO, HOME = "power of two", "home"
BALANCES = (1.5, 2.0, 3.0)
"""How many times its fair share a replica may take; the served value was chosen among these."""
ROUTERS = {
    POWER_OF_TWO: Routers(PowerOfTwoChoices, PowerOfTwoChoices),
    "by search": Routers(BySearch, BySearch),
    "scores by search": Routers(PowerOfTwoChoices, BySearch),
    **{f"{HOME}, {balance}": Routers(*[partial(AtHome, balance=balance)] * 2) for balance in BALANCES},
}
SERVED = f"{HOME}, {BALANCE}"
CLIENTS = 16
"""Clients per generator."""
SPARE = 1.3
"""Capacity of reward models and controllers, relative to what the busy generators need."""
GENERATORS_OF_A_NODE = 8
"""Accelerators of a common machine; each machine has one HTTP proxy."""
SEED = 11


class Numbers(NamedTuple):
    """Replicas of each kind, and nodes."""

    generators: int
    scorers: int
    controllers: int
    nodes: int = 1

    @property
    def size(self) -> ClusterSize:
        generators, scorers, controllers = (PoolSize(number, number) for number in self[:3])
        return ClusterSize(generators, scorers, controllers, nodes=self.nodes)


def beam(width: int, children: int, levels: int | None = None) -> dict[str, Any]:
    depth = {} if levels is None else {"max_depth": levels}
    return {"strategy": "beam_search", "n": width, "m": children, **depth}


class ControllerLimit(NamedTuple):
    """Maximum throughput of one controller in front of engines that cost nothing."""

    searches_per_s: float
    controller_s: float
    """CPU seconds of the controller per search."""


def shared_by_all(cores: float | None, pace: Pace) -> Processor:
    """Processor of all programs: ``cores`` cores that they share, or a core for each program if None."""
    return OwnCores() if cores is None else SharedCores(cores, pace)


def controller_limit(calls: CallCosts, cores: float | None, searches: int, pace: Pace = EQUAL) -> ControllerLimit:
    """Simulates one controller on ``cores`` cores. None: every program has its own core, so only the controller limits
    the throughput."""

    async def simulated() -> ControllerLimit:
        shared = shared_by_all(cores, pace)
        cluster = Cluster(
            APPLICATION,
            calls,
            SEED,
            lambda: shared,
            lambda processor: QuickGeneratorReplica(processor, calls, REPEATED, LIMIT_GROUP),
            lambda processor: QuickScorerReplica(processor, calls),
        )

        async def solve(number: int) -> float:
            return await cluster.solve(number, (number, 1, 2, 3), parse_search({**beam(*LIMIT_SHAPE), "seed": number}))

        async with cluster.running():
            rate = figures(await closed_loop(solve, searches, LIMIT_IN_FLIGHT))["searches_per_s"]
        [controller] = cluster.controllers.made
        return ControllerLimit(rate, controller.program.cpu_s / searches)

    return run(simulated())


Simulated: TypeAlias = Cluster[SimulatedGenerator, SimulatedScorer]


def cluster_of(
    size: ClusterSize,
    costs: Costs,
    language: Language,
    processor: Callable[[], Processor],
    routers: Routers = DEFAULT_ROUTERS,
    write_ahead: WriteAheadSetting = "auto",
    least_score_s: float = 0.0,
    device: Device = CPU,
) -> Simulated:
    """``least_score_s``: shortest time of a call of a reward model, seconds."""
    return Cluster(
        size,
        costs.calls,
        SEED,
        processor,
        lambda one: SimulatedGenerator(one, language, costs.generator, costs.calls, write_ahead, device),
        lambda one: SimulatedScorer(one, language, costs.prm, costs.calls, least_score_s),
        routers,
    )


def solver_of(cluster: Simulated, language: Language, search: dict[str, Any]) -> Callable[[int], Awaitable[float]]:
    """Returns a function that runs the search of a number, with the number as its seed."""

    async def solve(number: int) -> float:
        return await cluster.solve(number, language.prompt(str(number)), parse_search({**search, "seed": number}))

    return solve


def costs_of(cluster: Simulated) -> dict[str, Any]:
    """CPU seconds per search of each kind of program, and mean costs of a search."""
    searches = len(cluster.costs)
    ahead = [replica.write_ahead for replica in cluster.generators.made]
    cpu_s = {
        "generator engines": sum(replica.engine.program.cpu_s for replica in cluster.generators.made),
        "generator replicas": sum(replica.program.cpu_s for replica in cluster.generators.made),
        "prm engines": sum(replica.engine.program.cpu_s for replica in cluster.scorers.made),
        "prm replicas": sum(replica.program.cpu_s for replica in cluster.scorers.made),
        "controllers": sum(controller.program.cpu_s for controller in cluster.controllers.made),
    }
    return {
        "cpu_s_per_search": {role: round(seconds / searches, 5) for role, seconds in cpu_s.items()},
        "per_search": means(cluster.costs),
        "ahead": {name: sum(each.counts[name] for each in ahead) for name in ahead[0].counts},
        "engine_tokens": sum(replica.engine.generated_tokens for replica in cluster.generators.made),
        "level_s": round(max(each.call_s for each in ahead), 4),
        "turn_s": round(max(each._turn_s[StopCondition.STEP] for each in ahead), 4),
        "refused": cluster.refused,
        "left_over": [left for replica in cluster.generators.made for left in replica.check_integrity()],
    }


def served(
    costs: Costs,
    language: Language,
    search: dict[str, Any],
    clients: int,
    searches: int,
    cores: float | None,
    size: ClusterSize = APPLICATION,
    routers: Routers = DEFAULT_ROUTERS,
    write_ahead: WriteAheadSetting = "auto",
    least_score_s: float = 0.0,
    device: Device = CPU,
) -> dict[str, Any]:
    """Simulates the application, whose programs share ``cores`` cores; None: each has its own core."""

    async def simulated() -> dict[str, Any]:
        shared = shared_by_all(cores, costs.pace)
        cluster = cluster_of(size, costs, language, lambda: shared, routers, write_ahead, least_score_s, device)
        async with cluster.running():
            ended = await closed_loop(solver_of(cluster, language, search), searches, clients)
        return {**figures(ended), **costs_of(cluster)}

    return run(simulated())


def numbers_for(generators: int, cpu_s: dict[str, float]) -> Numbers:
    """Numbers of reward models, controllers and nodes for ``generators`` busy generators, from the CPU seconds of a
    search in each kind of program. Controllers have slots for all clients, and are no fuller than a pool lets them
    become."""
    busy = generators / max(cpu_s["generator engines"], cpu_s["generator replicas"])
    scorers = SPARE * busy * max(cpu_s["prm engines"], cpu_s["prm replicas"])
    slots = CLIENTS * generators / FULL
    controllers = max(SPARE * busy * cpu_s["controllers"], slots / ControllerSize().searches)
    nodes = math.ceil(generators / GENERATORS_OF_A_NODE)
    return Numbers(generators, 1 + int(scorers), 1 + int(controllers), nodes)


class Trees(NamedTuple):
    """Results of a cluster whose searches have trees."""

    figures: dict[str, Any]
    means: Means
    """Mean costs, for the same cluster without trees."""


def with_trees(costs: Costs, language: Language, search: dict[str, Any], of: Numbers, searches: int) -> Trees:
    """Simulates a cluster in which every program has its own core."""

    async def simulated() -> Trees:
        cluster = cluster_of(of.size, costs, language, OwnCores)
        async with cluster.running():
            solve = solver_of(cluster, language, search)
            ended = await closed_loop(solve, searches, CLIENTS * of.generators)
        engines = [replica.engine for replica in cluster.generators.made]
        scorers = [replica.engine for replica in cluster.scorers.made]
        spent = Means(
            controller_s=sum(one.program.cpu_s for one in cluster.controllers.made) / searches,
            token_s=sum(one.joining_s for one in engines) / sum(one.generated_tokens for one in engines),
            item_s=sum(one.joining_s for one in scorers) / sum(one.joined for one in scorers),
        )
        return Trees({**of._asdict(), **figures(ended), **costs_of(cluster)}, spent)

    return run(simulated())


def without_trees(costs: Costs, language: Language, spent: Means, of: Numbers, searches: int) -> dict[str, Any]:
    """Simulates the same cluster with searches that are only rounds."""
    rounds = [rounds_of(problem) for problem in language.problems]

    async def simulated() -> dict[str, Any]:
        flows = Flows(of.size, (costs.generator, costs.prm), spent, SEED)

        async def solve(number: int) -> float:
            return await flows.solve(str(number), rounds[number % len(rounds)])

        ended = await closed_loop(solve, searches, CLIENTS * of.generators)
        return {**of._asdict(), **figures(ended), "refused": flows.refused}

    return run(simulated())


class Surge(NamedTuple):
    """A load that rises, falls and rises again: searches per second, each rate for ``seconds``."""

    rates: tuple[float, ...]
    seconds: float

    def rate(self, at: float) -> float:
        return self.rates[min(int(at / self.seconds), len(self.rates) - 1)]


SURGE = Surge((0.25, 2.5, 0.25, 2.5), 600.0)
SURGING = ClusterSize(PoolSize(1, 30), PoolSize(1, 10), PoolSize(1, 10))


def autoscaled(
    costs: Costs, language: Language, search: dict[str, Any], size: ClusterSize, surge: Surge
) -> dict[str, Any]:
    """Simulates pools that follow a load."""

    async def simulated() -> dict[str, Any]:
        cluster = cluster_of(size, costs, language, OwnCores)
        async with cluster.running():
            solve = solver_of(cluster, language, search)
            ended = await open_loop(solve, surge.rate, surge.seconds * len(surge.rates), SEED)
        moved = {
            "generators": cluster.generators.history,
            "scorers": cluster.scorers.history,
            "controllers": cluster.controllers.history,
        }
        history = {name: [(round(at, 1), number) for at, number in of] for name, of in moved.items()}
        turns = {name: _turns(of, surge) for name, of in moved.items()}
        return {**figures(ended), "history": history, "turns_in_a_step": turns, **costs_of(cluster)}

    return run(simulated())


def _turns(history: list[tuple[float, int]], surge: Surge) -> int:
    """Largest number of changes of direction within one step of the load."""
    steps: dict[int, list[int]] = {}
    before = 0
    for at, number in history:
        steps.setdefault(min(int(at / surge.seconds), len(surge.rates) - 1), []).append(number - before)
        before = number
    return max(
        (sum((one > 0) != (other > 0) for one, other in pairwise(of)) for of in steps.values()),
        default=0,
    )
