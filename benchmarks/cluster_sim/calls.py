"""CPU cost of a real controller, on real Ray Serve with engines that cost nothing.

Searches of several shapes run against fake engines that reply at once, in groups of several sizes. A fit of each
process's CPU seconds to its numbers of searches, calls, groups and children gives the cost of each. The controller's
maximum throughput is measured with other searches, and with more of them at once.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
from rich.console import Console

from benchmarks.cluster_sim.costs import fitted
from benchmarks.cluster_sim.pace import Pace
from benchmarks.cluster_sim.pace import measured as measured_pace
from benchmarks.processes import CpuClock, at_rest
from benchmarks.quick_ports import OwnTime, QuickGenerator, QuickScorer
from cluster.launch.application import free_port
from deployments.calls.envelope import Envelope
from deployments.config import AppConfig, ControllerUserConfig
from search.ports import ChildGroup, ExpandRequest, ScoreRequest

REPEATED = 0.4
"""Share of siblings with a repeated text, as with the embedded models."""
SHAPES = ((1, 1, 8), (4, 4, 3), (16, 4, 6), (48, 4, 4), (64, 8, 6))
"""Width, children of each kept path, and levels of the beam searches that the costs are fitted to."""
PAUSE_S = 0.004
"""Pause between two groups of a call."""
GROUPS = (4, 64)
"""Children that a fake sends at a time."""
ALONE, MANY = 1, 32
"""Searches at once. With one, the controller is idle before every reply that reaches it; with many, never."""
LIMIT_SHAPE = (32, 4, 5)
"""Shape of the searches whose maximum throughput is predicted; then children per group, and searches at once."""
LIMIT_GROUP = 16
LIMIT_IN_FLIGHT = 48
PARTS = {
    "controller": ("search", "expand", "group", "child", "score", "item", "wake"),
    "generator": ("call", "group", "child"),
    "prm": ("call", "item"),
    "proxy": ("search",),
    "client": ("search",),
    "others": ("search",),
}
ROLES = {
    "controller replica": "controller",
    "generator replica": "generator",
    "prm replica": "prm",
    "http proxy": "proxy",
    "benchmark": "client",
}
console = Console(stderr=True)


class FakeReplica:
    """The methods that a controller calls on every engine replica."""

    _counted: dict[str, int]

    async def stats(self) -> dict[str, int]:
        return dict(self._counted)

    async def check_integrity(self) -> list[str]:
        return []

    async def canary(self, deadline_s: float) -> float:
        return 0.0


class FakeGenerator(FakeReplica):
    """Stands in for `deployments.generator.GeneratorReplica`. A group has 100 times ``temperature`` children. The pause
    between two groups makes each a message of its own, as an engine's are."""

    def __init__(self) -> None:
        self._fake = QuickGenerator(OwnTime(), REPEATED, 8)
        self._counted = {"calls": 0, "groups": 0, "children": 0}

    async def expand(self, request: ExpandRequest, envelope: Envelope) -> AsyncGenerator[ChildGroup, None]:
        self._counted["calls"] += 1
        size = round(100 * request.sampling.temperature)
        async for written in self._fake.expand(request):
            for start in range(0, len(written.children), size):
                if start:
                    await asyncio.sleep(PAUSE_S)
                group = written.children[start : start + size]
                self._counted["groups"] += 1
                self._counted["children"] += len(group)
                yield ChildGroup(group)


class FakeScorer(FakeReplica):
    """Stands in for `deployments.prm.PrmReplica`."""

    def __init__(self) -> None:
        self._fake = QuickScorer(OwnTime())
        self._counted = {"calls": 0, "items": 0}

    async def score(self, request: ScoreRequest, envelope: Envelope) -> Sequence[Sequence[float]]:
        self._counted["calls"] += 1
        self._counted["items"] += len(request.items)
        return await self._fake.score(request)

    async def silent_s(self) -> float:
        return 0.0


class Counted(NamedTuple):
    """Measurement of several searches of one shape."""

    shape: tuple[int, int, int]
    group: int
    in_flight: int
    seconds: float
    searches: int
    calls: dict[str, int]
    """Counters of both fakes, such as ``generator_calls``."""
    cpu_s: dict[str, float]
    """CPU seconds by role (`PARTS`), without those of an idle application."""
    cores: float
    """Cores of the machine that other programs left."""
    fast: float
    """Speed of the machine at that time, relative to its pace."""
    worth: float
    """Value of these CPU seconds, relative to those of a program alone on the machine at its pace."""

    @property
    def rate(self) -> float:
        return self.searches / self.seconds

    def number(self, role: str, part: str) -> int:
        """Number of units of one part of a role's work."""
        if part == "search":
            return self.searches
        if part == "wake":
            rested = self.searches + self.calls["generator_groups"] + self.calls["prm_calls"]
            return rested if self.in_flight == ALONE else 0
        of = {"expand": "generator_calls", "score": "prm_calls", "group": "generator_groups"}
        of |= {"child": "generator_children", "item": "prm_items", "call": f"{role}_calls"}
        return self.calls[of[part]]


@contextmanager
def fake_application() -> Iterator[str]:
    """One controller in front of one fake of each kind; yields its address."""
    import ray
    from ray import serve

    from deployments.controller import SearchController

    generator, prm = (
        serve.deployment(
            name=name, max_ongoing_requests=512, max_queued_requests=4096, ray_actor_options={"num_cpus": 0.2}
        )(fake).bind()
        for name, fake in (("Generator", FakeGenerator), ("ProcessRewardModel", FakeScorer))
    )
    controller = SearchController.options(
        max_ongoing_requests=1024,
        ray_actor_options={"num_cpus": 0.2},
        logging_config={"log_level": "WARNING", "enable_access_log": False},
        user_config=ControllerUserConfig().model_dump(mode="json"),
    ).bind(AppConfig(), generator, prm)
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
    port = free_port()
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(controller)
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


class SearchClient:
    """Sends searches over HTTP and measures what they cost."""

    def __init__(self, http: httpx.AsyncClient, pace: Pace) -> None:
        self._http = http
        self._pace = pace
        self._numbers = itertools.count()
        self.idle: dict[str, float] = {}
        """CPU seconds per second of the idle application, by role."""

    async def searches(self, shape: tuple[int, int, int], group: int, in_flight: int, seconds: float) -> Counted:
        """Runs ``in_flight`` searches at a time for ``seconds``, and waits for the last ones."""
        speed = self._pace.now()
        before, clock, began = await self._counts(), CpuClock(), time.perf_counter()
        done = 0

        async def client() -> None:
            nonlocal done
            while time.perf_counter() - began < seconds:
                await self._search(shape, group)
                done += 1

        await asyncio.gather(*(client() for _ in range(in_flight)))
        took, spent, after = time.perf_counter() - began, clock.spent(), await self._counts()
        cpu = dict.fromkeys(PARTS, 0.0)
        for role, of_role in spent.items():
            cpu[ROLES.get(role, "others")] += max(0.0, of_role - self.idle.get(role, 0.0) * took)
        calls = {name: after[name] - before[name] for name in after}
        elsewhere = clock.elsewhere()
        cores = round(self._pace.cores - elsewhere / took, 3)
        speed = round(statistics.mean((speed, self._pace.now())), 4)
        worth = round(speed * self._pace.on_average((sum(spent.values()) + elsewhere) / took), 4)
        cpu_s = {role: round(of_role, 3) for role, of_role in cpu.items()}
        return Counted(shape, group, in_flight, round(took, 3), done, calls, cpu_s, cores, speed, worth)

    async def _search(self, shape: tuple[int, int, int], group: int) -> None:
        width, children, levels = shape
        number = next(self._numbers)
        search = {"strategy": "beam_search", "n": width, "m": children, "max_depth": levels}
        body = {
            "model": "banyan-arithmetic",
            "messages": [{"role": "user", "content": f"Start with {number}. Multiply by 3. What is the result?"}],
            "seed": number,
            "temperature": group / 100,
            "search": search,
        }
        (await self._http.post("/v1/chat/completions", json=body)).raise_for_status()

    async def _counts(self) -> dict[str, int]:
        status = (await self._http.get("/v1/status")).raise_for_status().json()
        return {f"{role}_{name}": number for role in ("generator", "prm") for name, number in status[role][0].items()}


def costs_of(runs: Sequence[Counted], idle: Mapping[str, float]) -> dict[str, Any]:
    """CPU seconds of each part, by role."""
    found: dict[str, Any] = {}
    for role, parts in PARTS.items():
        spent = [max(run.worth * run.cpu_s[role], 1e-6) for run in runs]
        rows = [[run.number(role, part) for part in parts] for run in runs]
        found[role] = {part: round(each, 8) for part, each in zip(parts, fitted(spent, rows), strict=True)}
    return {**found, "background": round(sum(idle.values()), 4)}


async def measure(url: str, seconds: float, pace: Pace) -> dict[str, Any]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=60.0, limits=limits) as http:
        search_client = SearchClient(http, pace)
        await search_client.searches(SHAPES[1], GROUPS[0], MANY, seconds)  # warms up
        search_client.idle = await at_rest(2 * seconds)
        runs = []
        for shape, group, in_flight in itertools.product(SHAPES, GROUPS, (ALONE, MANY)):
            runs.append(await search_client.searches(shape, group, in_flight, seconds))
            console.print(f"{shape}, groups of {group}, {in_flight}: {runs[-1].rate:.1f}/s {runs[-1].cpu_s}")
        limit = [await search_client.searches(LIMIT_SHAPE, LIMIT_GROUP, LIMIT_IN_FLIGHT, 2 * seconds) for _ in range(3)]
        console.print(f"limit: {[(round(run.rate, 2), run.cores) for run in limit]} (searches/s, cores available)")
    return {
        "pace": pace.model_dump(),
        "costs": costs_of(runs, search_client.idle),
        "idle": search_client.idle,
        "runs": [run._asdict() for run in runs],
        "limit": [run._asdict() for run in limit],
    }


def measured(seconds: float) -> dict[str, Any]:
    pace = measured_pace(seconds)
    with fake_application() as url:
        return asyncio.run(measure(url, seconds, pace))
