"""The simulated cluster: pools of replicas with routers and autoscaling, controllers, and load."""

import asyncio
import math
import random
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from benchmarks.cluster_sim.costs import CallCosts
from benchmarks.cluster_sim.processors import Processor, Program
from deployments.engines.write_ahead import MOST_LINGER_S
from deployments.scaling.homes import BALANCE, Homes
from deployments.scaling.pressure import PRESSURE, by_pressure
from deployments.service.slots import NoSlot, Owner, Slots
from search.answers.equivalence import AnswerMatcher
from search.ports import ChildGroup, ExpandRequest, ScoreRequest, StepScorer
from search.run.disposal import Disposal
from search.run.environment import SearchEnvironment
from search.run.report import SearchCost
from search.run.runner import run_search
from search.settings import SearchSettings
from search.tree import SearchTree

REPORT_S = 10.0
"""Serve: interval at which replicas report their pressure."""
DECIDE_S = 0.1
"""Serve: interval at which its controller asks the autoscaling policy."""
LOOK_BACK_S = 15.0
"""Window over which pressure is averaged; as in `deployments.app`, which is not imported here since it imports Ray."""
BACKGROUND_S = 0.1
"""Interval of the nodes' background work."""
CONTEXT_TOKENS = 1024
ANYBODY = Owner("anybody")


class Replica(Protocol):
    """A replica of any pool."""

    @property
    def ongoing(self) -> int:
        """Open calls."""
        ...

    @property
    def pressure(self) -> float: ...


AnyReplica = TypeVar("AnyReplica", bound=Replica)


class Router(Protocol):
    """Chooses the replica of a call."""

    def choose(self, replicas: Sequence[AnyReplica], search_id: str, calls: Mapping[int, int]) -> AnyReplica:
        """Returns one of ``replicas``, which is not empty. ``calls``: the caller's open calls at each replica, by its
        `id`."""
        ...


class PowerOfTwoChoices:
    """Serve's default: of two replicas drawn at random, the one with fewer open calls from all callers."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def choose(self, replicas: Sequence[AnyReplica], search_id: str, calls: Mapping[int, int]) -> AnyReplica:
        if len(replicas) == 1:
            return replicas[0]
        one, other = self._rng.sample(replicas, 2)
        return one if one.ongoing <= other.ongoing else other


class BySearch:
    """Sends all calls of a search to one replica, by a hash of its id: Serve's `ConsistentHashRouter` with the search
    as the session."""

    def __init__(self, seed: int) -> None:
        """``seed`` is not used: nothing here is random."""
        self._names: dict[int, bytes] = {}

    def choose(self, replicas: Sequence[AnyReplica], search_id: str, calls: Mapping[int, int]) -> AnyReplica:
        def weight(replica: AnyReplica) -> bytes:  # rendezvous hashing: a replica that leaves moves only its searches
            name = self._names.setdefault(id(replica), str(len(self._names)).encode())
            return blake2b(name, digest_size=8, key=search_id.encode()[:64]).digest()

        return min(replicas, key=weight)


class AtHome:
    """Like `deployments.scaling.router.HomeRouter`."""

    def __init__(self, seed: int, balance: float = BALANCE) -> None:
        self._homes: Homes[int] = Homes(balance, random.Random(seed))

    def choose(self, replicas: Sequence[AnyReplica], search_id: str, calls: Mapping[int, int]) -> AnyReplica:
        by_id = {id(each): each for each in replicas}
        return by_id[self._homes.choose(search_id, {name: calls.get(name, 0) for name in by_id})]


class Routers(NamedTuple):
    """Makes the routers of generators and reward models, each from a seed. The defaults are those of the served
    application."""

    generators: Callable[[int], Router] = AtHome
    scorers: Callable[[int], Router] = AtHome


DEFAULT_ROUTERS = Routers()


@dataclass(frozen=True)
class PoolSize:
    """Like ``replicas`` of a deployment's settings."""

    min_replicas: int
    max_replicas: int
    upscale_delay_s: float = 10.0
    downscale_delay_s: float = 300.0
    start_s: float = 30.0
    """Seconds from the decision to the first call."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise ValueError(f"expected 1 <= min_replicas ({self.min_replicas}) <= max_replicas ({self.max_replicas})")


class Pool(Generic[AnyReplica]):
    """The replicas of one deployment, scaled by `deployments.scaling.pressure` with Serve's delays.

    A replica that is removed gets no new calls and finishes its open ones.
    """

    def __init__(
        self, make: Callable[[], AnyReplica], size: PoolSize, router: Callable[[int], Router], seed: int
    ) -> None:
        """``router``: makes a router from a seed, one for each handle."""
        self._make = make
        self._size = size
        self._router = router
        self._seeds = count(seed, 1000)
        self.replicas: list[AnyReplica] = []
        """Replicas that get calls."""
        self._reports: dict[int, deque[tuple[float, float]]] = {}
        """Time and pressure of each report, by the replica's index in ``replicas``."""
        self.made: list[AnyReplica] = []
        """All replicas that ever existed."""
        self.target_num_replicas = size.min_replicas
        self.policy_state: dict[str, Any] = {}
        self.history: list[tuple[float, int]] = []
        """Time of each scaling decision, and the target it set."""
        for _ in range(size.min_replicas):
            self._add()

    @property
    def aggregated_metrics(self) -> dict[str, dict[Any, float]]:
        """As Serve passes it to a policy: for each replica that has reported, its mean pressure over `LOOK_BACK_S`."""
        since = asyncio.get_running_loop().time() - LOOK_BACK_S
        pressures = {}
        for index, reports in self._reports.items():
            while reports and reports[0][0] < since:
                reports.popleft()
            if reports:
                pressures[index] = math.fsum(pressure for _, pressure in reports) / len(reports)
        return {PRESSURE: pressures}

    def handle(self) -> "Handle[AnyReplica]":
        """A handle for one caller."""
        return Handle(self, self._router(next(self._seeds)))

    async def autoscale(self) -> None:
        """Scales the pool as Serve's controller does, until cancelled: what the policy asks for is done once it has
        asked for it throughout the delay."""
        if self._size.min_replicas == self._size.max_replicas:
            return
        loop = asyncio.get_running_loop()
        next_report, since, direction = loop.time() + REPORT_S, loop.time(), 0
        while True:
            await asyncio.sleep(DECIDE_S)
            if loop.time() >= next_report:
                next_report += REPORT_S
                for index, replica in enumerate(self.replicas):
                    self._reports.setdefault(index, deque()).append((loop.time(), replica.pressure))
            wanted, self.policy_state = by_pressure(self)
            wanted = min(max(wanted, self._size.min_replicas), self._size.max_replicas)
            now = self.target_num_replicas
            if (moved := (wanted > now) - (wanted < now)) != direction:
                direction, since = moved, loop.time()
            delay = self._size.upscale_delay_s if direction > 0 else self._size.downscale_delay_s
            if direction and loop.time() - since >= delay:
                self._resize(wanted)
                direction = 0

    def _resize(self, wanted: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(wanted - self.target_num_replicas):
            loop.call_later(self._size.start_s, self._started)
        self.target_num_replicas = wanted
        self.history.append((loop.time(), wanted))
        self._remove_surplus()

    def _started(self) -> None:
        self._add()
        self._remove_surplus()

    def _add(self) -> None:
        replica = self._make()
        self.made.append(replica)
        self.replicas.append(replica)

    def _remove_surplus(self) -> None:
        """Removes replicas above the target, the youngest first."""
        while len(self.replicas) > self.target_num_replicas:
            self.replicas.pop()
            self._reports.pop(len(self.replicas), None)


class Handle(Generic[AnyReplica]):
    """One caller's access to a pool, with its own router, as in each process of Serve."""

    def __init__(self, pool: Pool[AnyReplica], router: Router) -> None:
        self._pool = pool
        self._router = router
        self._calls: Counter[int] = Counter()

    @contextmanager
    def call(self, search_id: str) -> Iterator[AnyReplica]:
        """Yields the replica for one call of a search; the call lasts as long as the block."""
        replica = self._router.choose(self._pool.replicas, search_id, self._calls)
        self._calls[id(replica)] += 1
        try:
            yield replica
        finally:
            self._calls[id(replica)] -= 1


class ControllerSize(NamedTuple):
    """Like `deployments.config.ControllerSettings`."""

    searches: int = 64


class GeneratorReplica(Replica, Protocol):
    def expand(self, request: ExpandRequest) -> AsyncGenerator[ChildGroup, None]: ...


class ScorerReplica(Replica, StepScorer, Protocol): ...


AnyGenerator = TypeVar("AnyGenerator", bound=GeneratorReplica)
AnyScorer = TypeVar("AnyScorer", bound=ScorerReplica)


class SimulatedController(Generic[AnyGenerator, AnyScorer]):
    """One controller replica. It runs real searches; the CPU time of its one thread is charged where a search calls
    another process."""

    def __init__(
        self,
        processor: Processor,
        calls: CallCosts,
        size: ControllerSize,
        generators: Pool[AnyGenerator],
        scorers: Pool[AnyScorer],
    ) -> None:
        self.program = Program(processor, calls.controller["wake"])
        self.slots = Slots(size.searches)
        self.ongoing = 0
        self._costs = calls.controller
        self._generators = generators.handle()
        self._scorers = scorers.handle()
        self._disposal = Disposal()
        self._environment = SearchEnvironment(self, self, CONTEXT_TOKENS, AnswerMatcher())

    @property
    def pressure(self) -> float:
        """As `deployments.controller` reports it."""
        return (self.slots.held + self.slots.waiting) / self.slots.count

    async def search(self, search_id: str, prompt: tuple[int, ...], settings: SearchSettings) -> SearchCost:
        """Runs one search.

        Raises:
            NoSlot: all slots are taken.
        """
        self.ongoing += 1
        try:
            async with self.slots.hold(ANYBODY):
                await self.program.work(self._costs["search"] / 2)
                tree = SearchTree()
                free = self._disposal.watch(tree)
                try:
                    outcome = await run_search("", prompt, settings, self._environment, search_id=search_id, tree=tree)
                finally:
                    free()
                await self.program.work(self._costs["search"] / 2)
                return outcome.cost
        finally:
            self.ongoing -= 1

    async def expand(self, request: ExpandRequest) -> AsyncGenerator[ChildGroup, None]:
        """See ``search.ports.Generator``; the call goes through the pool."""
        await self.program.work(self._costs["expand"])
        with self._generators.call(request.search_id) as replica:
            async with aclosing(replica.expand(request)) as groups:
                async for group in groups:
                    await self.program.work(self._costs["group"] + self._costs["child"] * len(group.children))
                    yield group

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        """See ``search.ports.StepScorer``; the call goes through the pool."""
        await self.program.work(self._costs["score"] / 2 + self._costs["item"] * len(request.items))
        with self._scorers.call(request.search_id) as replica:
            scores = await replica.score(request)
        await self.program.work(self._costs["score"] / 2)
        return scores


class Node:
    """What every machine of the cluster has once: Serve's HTTP proxy, the clients, and Ray's own processes."""

    def __init__(self, processor: Callable[[], Processor]) -> None:
        self.proxy, self.client, self.others = (Program(processor()) for _ in range(3))


class ClusterSize(NamedTuple):
    """Sizes of the pools, and the number of nodes."""

    generators: PoolSize
    scorers: PoolSize
    controllers: PoolSize
    controller: ControllerSize = ControllerSize()
    nodes: int = 1


class Cluster(Generic[AnyGenerator, AnyScorer]):
    """The whole cluster. To be created and used on one virtual loop."""

    def __init__(
        self,
        size: ClusterSize,
        calls: CallCosts,
        seed: int,
        processor: Callable[[], Processor],
        generator: Callable[[Processor], AnyGenerator],
        scorer: Callable[[Processor], AnyScorer],
        routers: Routers = DEFAULT_ROUTERS,
    ) -> None:
        """``processor`` returns the processor of the next program: one that all share, or one of its own. ``generator``
        and ``scorer`` make replicas; ``routers`` choose among them."""
        self.generators = Pool(lambda: generator(processor()), size.generators, routers.generators, seed)
        self.scorers = Pool(lambda: scorer(processor()), size.scorers, routers.scorers, seed + 1)
        self.controllers = Pool(
            lambda: SimulatedController(processor(), calls, size.controller, self.generators, self.scorers),
            size.controllers,
            PowerOfTwoChoices,
            seed + 2,
        )
        self._proxies = self.controllers.handle()
        self.nodes = [Node(processor) for _ in range(size.nodes)]
        self._calls = calls
        self.refused = 0
        self.costs: list[SearchCost] = []

    async def solve(self, number: int, prompt: tuple[int, ...], settings: SearchSettings) -> float:
        """Sends one search to the next node, from a client that retries when it is refused; returns the seconds."""
        node = self.nodes[number % len(self.nodes)]
        loop = asyncio.get_running_loop()
        began = loop.time()
        node.others.post(self._calls.others["search"])
        await node.client.work(self._calls.client["search"] / 2)
        while True:
            await node.proxy.work(self._calls.proxy["search"] / 2)
            try:
                with self._proxies.call(str(number)) as controller:
                    self.costs.append(await controller.search(str(number), prompt, settings))
                break
            except NoSlot as refusal:
                self.refused += 1
                await asyncio.sleep(refusal.retry_after_s)
        await node.proxy.work(self._calls.proxy["search"] / 2)
        await node.client.work(self._calls.client["search"] / 2)
        return loop.time() - began

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs autoscaling and background work within the block. After it replicas forget the searches that have
        ended."""
        works = [pool.autoscale() for pool in (self.generators, self.scorers, self.controllers)]
        tasks = [asyncio.create_task(work) for work in (*works, *map(self._background, self.nodes))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(MOST_LINGER_S + 1.0)

    async def _background(self, node: Node) -> None:
        while True:
            await asyncio.sleep(BACKGROUND_S)
            await node.others.work(self._calls.background * BACKGROUND_S)


class Ended(NamedTuple):
    """An answered search."""

    at: float
    seconds: float
    """Seconds that the client waited."""


async def closed_loop(solve: Callable[[int], Awaitable[float]], searches: int, clients: int) -> list[Ended]:
    """Runs ``clients`` clients, each with one search after the other. Returns the searches in the order of their
    ends."""
    numbers = iter(range(searches))
    ended: list[Ended] = []

    async def client() -> None:
        for number in numbers:
            seconds = await solve(number)
            ended.append(Ended(asyncio.get_running_loop().time(), seconds))

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return ended


async def open_loop(
    solve: Callable[[int], Awaitable[float]], rate: Callable[[float], float], until: float, seed: int
) -> list[Ended]:
    """Searches arrive at random (Poisson) until ``until``; ``rate`` gives the arrivals per second at a time."""
    rng = random.Random(seed)
    ended: list[Ended] = []
    loop = asyncio.get_running_loop()

    async def client(number: int) -> None:
        seconds = await solve(number)
        ended.append(Ended(loop.time(), seconds))

    async with asyncio.TaskGroup() as group:
        for number in count():
            await asyncio.sleep(rng.expovariate(rate(loop.time())))
            if loop.time() >= until:
                break
            group.create_task(client(number))
    return ended


def figures(ended: Sequence[Ended]) -> dict[str, float]:
    """Summary of the answered searches. ``steady_per_s`` is of the middle three fifths, when all clients are active."""
    seconds = sorted(each.seconds for each in ended)
    first, last = len(ended) // 5, len(ended) * 4 // 5
    return {
        "searches": len(ended),
        "seconds": round(ended[-1].at, 3),
        "searches_per_s": round(len(ended) / ended[-1].at, 3),
        "steady_per_s": round((last - first) / max(ended[last].at - ended[first].at, 1e-9), 3),
        "median_s": round(seconds[len(seconds) // 2], 4),
        "p95_s": round(seconds[int(0.95 * (len(seconds) - 1))], 4),
    }


def means(costs: Sequence[SearchCost]) -> dict[str, float]:
    """Mean costs of a search."""
    names = ("nodes", "repeated_steps", "generated_tokens", "expand_calls", "prm_calls", "cached_tokens")
    return {name: round(sum(getattr(cost, name) for cost in costs) / len(costs), 2) for name in names}
