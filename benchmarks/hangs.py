"""How long a hung engine keeps searches waiting, and how soon it is replaced.

    python -m benchmarks.hangs

For the generator and the process reward model, with one replica of each and with two, under 16 concurrent searches: a
replica is killed, which gives the time of a cold start; then one replica's engine is stopped with ``SIGSTOP``.
"""

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count, islice
from typing import Annotated, Any, NamedTuple

import httpx
import psutil
import typer
from rich.console import Console

from benchmarks.processes import engines_of, has_ended, role_of
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import application
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.embedded.problems import Problem, Split, draw_problems
from deployments.startup.environment import set_environment

SEED = 1
CLIENTS = 16
SEARCH = {"strategy": "beam_search", "n": 8, "m": 4}
ROLES = {"generator": "generator replica", "prm": "prm replica"}
GONE_S = 20.0
COLD_STARTS = 1.5
DEGRADED_S = 30.0
"""Longest allowed time of a search that uses the only PRM while it hangs."""
REPAIR_S = 300.0
LOOK_EVERY_S = 0.2
console = Console(stderr=True)


class Outcome(NamedTuple):
    """Outcome of one search."""

    problem: int
    began: float
    """Monotonic seconds."""
    ended: float
    status: int
    degraded: bool
    answered: bool
    """Whether the reply has a text."""
    tree: str


class Load:
    """Clients that search the same problems over and over, each always under the same seed."""

    def __init__(self, http: httpx.AsyncClient, problems: Sequence[Problem]) -> None:
        self._http = http
        self._problems = problems
        self._numbers = count()
        self.outcomes: list[Outcome] = []

    async def search(self, index: int) -> Outcome:
        messages = [{"role": "user", "content": self._problems[index].text}]
        body = {"model": "banyan-arithmetic", "messages": messages, "seed": SEED + index, "search": SEARCH}
        began = time.monotonic()
        reply = await self._http.post("/v1/search", json=body)
        found = reply.json()
        degraded = reply.status_code == 200 and found["search"]["degraded"]
        answered = reply.status_code == 200 and bool(found["choices"][0]["message"]["content"])
        tree = json.dumps(found.get("tree"))
        return Outcome(index, began, time.monotonic(), reply.status_code, degraded, answered, tree)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keeps the clients searching within the block, then waits for the searches under way."""
        stopping = asyncio.Event()

        async def client() -> None:
            while not stopping.is_set():
                self.outcomes.append(await self.search(next(self._numbers) % len(self._problems)))

        clients = [asyncio.create_task(client()) for _ in range(CLIENTS)]
        try:
            yield
        finally:
            stopping.set()
            await asyncio.gather(*clients)


class Loss(NamedTuple):
    """Loss of one replica, and the searches that ran meanwhile."""

    gone_s: float
    """Seconds until its process had ended."""
    replaced_s: float
    """Seconds until the pool had as many working replicas as before."""
    searches: list[Outcome]
    """Searches that ran at any time in between."""

    def as_json(self, trees: Sequence[str]) -> dict[str, Any]:
        return {
            "gone_s": round(self.gone_s, 1),
            "replaced_s": round(self.replaced_s, 1),
            "searches": len(self.searches),
            "statuses": {str(status): number for status, number in Counter(s.status for s in self.searches).items()},
            "without_a_text": sum(not each.answered for each in self.searches),
            "degraded": sum(each.degraded for each in self.searches),
            "trees_that_differ": sum(each.tree != trees[each.problem] for each in self.searches),
            "longest_search_s": round(max(each.ended - each.began for each in self.searches), 1),
        }


def replicas(part: str) -> list[psutil.Process]:
    """Processes of the replicas of ``generator`` or ``prm``."""
    return [each for each in psutil.Process().children(recursive=True) if has_role(each, ROLES[part])]


def has_role(process: psutil.Process, role: str) -> bool:
    try:
        return role_of(process) == role
    except psutil.Error:  # it has just ended
        return False


def with_engine(part: str) -> tuple[psutil.Process, psutil.Process]:
    """A replica and its engine's process. A replica that is shutting down still exists, but has no engine."""
    for replica in replicas(part):
        for engine in engines_of(replica):
            return replica, engine
    raise LookupError(f"no {ROLES[part]} has an engine")


async def is_whole(http: httpx.AsyncClient, part: str, wanted: int) -> bool:
    try:
        status = (await http.get("/v1/status")).raise_for_status().json()
    except httpx.HTTPError:
        return False
    return len(status[part]) == wanted and not any("error" in each for each in status[part])


async def until(condition: Callable[[], Any], what: str) -> None:
    """Waits for ``condition``, which may be asynchronous."""
    began = time.monotonic()
    while True:
        holds = condition()
        if await holds if asyncio.iscoroutine(holds) else holds:
            return
        if time.monotonic() - began > REPAIR_S:
            raise TimeoutError(what)
        await asyncio.sleep(LOOK_EVERY_S)


async def lose(http: httpx.AsyncClient, problems: Sequence[Problem], part: str, wanted: int, hangs: bool) -> Loss:
    """Kills a replica of ``part``, or stops its engine, under load."""
    load = Load(http, problems)
    victim, engine = with_engine(part)
    async with load.running():
        await until(lambda: load.outcomes, "a first search")
        began = time.monotonic()
        if hangs:
            engine.send_signal(signal.SIGSTOP)
        else:
            victim.send_signal(signal.SIGKILL)
        await until(lambda: has_ended(victim), "the replica's end")
        gone = time.monotonic()
        await until(lambda: is_whole(http, part, wanted), "another in its place")
        back = time.monotonic()
    # All replicas are back and the load has ended before the next one is lost.
    await until(lambda: is_whole(http, part, wanted), "all replicas")
    met = [each for each in load.outcomes if each.began < back and each.ended > began]
    return Loss(gone - began, back - began, met)


async def measure(url: str, wanted: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Figures by part, and claims, with ``wanted`` replicas of each part."""
    problems = list(islice(draw_problems(Split.TEST, SEED), CLIENTS))
    figures: dict[str, Any] = {}
    claims: list[dict[str, Any]] = []
    async with httpx.AsyncClient(base_url=url, timeout=REPAIR_S, limits=httpx.Limits(max_connections=None)) as http:
        first = Load(http, problems)
        undisturbed = await asyncio.gather(*(first.search(index) for index in range(len(problems))))
        trees = [each.tree for each in undisturbed]
        for part in ROLES:
            killed = await lose(http, problems, part, wanted, hangs=False)
            hung = await lose(http, problems, part, wanted, hangs=True)
            figures[part] = {"killed": killed.as_json(trees), "hung": hung.as_json(trees)}
            console.print(f"{wanted} of {part}: {figures[part]}")
            claims += _claims(f"{part}, {wanted} replicas" if wanted > 1 else f"the only {part}", killed, hung, trees)
    return figures, claims


def _claims(what: str, killed: Loss, hung: Loss, trees: Sequence[str]) -> list[dict[str, Any]]:
    within = GONE_S + COLD_STARTS * killed.replaced_s
    unanswered = sum(not each.answered for each in hung.searches)
    made = [
        claim(f"{what}: gone, seconds", round(hung.gone_s, 1), f"<= {GONE_S:g}", hung.gone_s <= GONE_S),
        claim(f"{what}: replaced, seconds", round(hung.replaced_s, 1), f"<= {within:.1f}", hung.replaced_s <= within),
        claim(f"{what}: searches without an answer", unanswered, 0, not unanswered),
    ]
    if what == "the only prm":
        longest = max(each.ended - each.began for each in hung.searches)
        unmarked = sum(not each.degraded and each.tree != trees[each.problem] for each in hung.searches)
        made += [
            claim(
                f"{what}: the longest search, seconds", round(longest, 1), f"<= {DEGRADED_S:g}", longest <= DEGRADED_S
            ),
            claim(f"{what}: searches with other trees and no mark", unmarked, 0, not unmarked),
        ]
    else:
        other = sum(each.tree != trees[each.problem] for each in hung.searches)
        made.append(claim(f"{what}: trees that differ", other, 0, not other))
    return made


def main(
    replicas_each: Annotated[list[int], typer.Option("--replicas", min=1, max=4)] = [1, 2],  # noqa: B006  # typer's way
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    figures: dict[str, Any] = {}
    claims: list[dict[str, Any]] = []
    for wanted in replicas_each:
        settings = {"replicas": {"min_replicas": wanted, "max_replicas": wanted}}
        config = AppConfig.model_validate({"generator": settings, "prm": settings, "http": {"canary_every_s": 0}})
        with application(config) as url:
            figures[f"{wanted} of each"], found = asyncio.run(measure(url, wanted))
        claims += found
    path = write_result("hangs", {"search": SEARCH, "in_flight": CLIENTS, **figures, "claims": claims})
    show_claims(console, claims)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
