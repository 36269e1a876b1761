"""Behaviour past capacity: how fast requests without a slot are refused, and what that costs accepted requests.

    python -m benchmarks.overload

Against the served application with 64 slots: 64 searches alone, then bursts of 640 requests, then 64 constant searches
beside a steady stream of further requests. Every twentieth request has a prompt of a megabyte, and clients that send
one byte a second are connected meanwhile. The client uses raw sockets on the same machine; its own delay is in every
figure and is recorded.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Annotated, Any, NamedTuple

import typer
import uvloop
from rich.console import Console

from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import application
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.embedded.problems import Problem, Split, draw_problems
from deployments.loop.delay import LoopDelay
from deployments.startup.environment import set_environment

PLACES = 64
BURST = 640
STEADY_PER_S = 50
LONG_EVERY = 20
"""One request in this many has a prompt of a megabyte."""
SLOW = 64
"""Clients that send a byte a second, during each burst and the steady stream."""
SLOW_BYTES = 1000
PATH = "/v1/chat/completions"
TIMEOUT_S = 300.0
HEALTH_EVERY_S = 0.5
WARM_UP = 16
EXPECTED = {200, 400, 408, 413, 429}
console = Console(stderr=True)


class Reply(NamedTuple):
    """Reply to one request."""

    status: int
    seconds: float
    """From before the connection is opened until the whole reply has arrived."""


class Target(NamedTuple):
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> "Target":
        """From an address without a path."""
        host, _, port = url.removeprefix("http://").partition(":")
        return cls(host, int(port))


async def ask(target: Target, head: bytes, body: bytes = b"", every_s: float = 0.0) -> Reply:
    """Sends one request on a connection of its own: its body at once, or a byte every ``every_s`` until the reply."""
    began = time.perf_counter()
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection(*target)
        slowly = None
        try:
            writer.write(head if every_s else head + body)
            if every_s:
                slowly = asyncio.create_task(_trickle(writer, body, every_s))
            received = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(received.partition("content-length:")[2].partition("\r\n")[0])
            await reader.readexactly(length)
            return Reply(int(received.split(" ", 2)[1]), time.perf_counter() - began)
        finally:
            if slowly is not None:
                slowly.cancel()
            writer.close()


async def _trickle(writer: asyncio.StreamWriter, body: bytes, every_s: float) -> None:
    for byte in body:
        if writer.is_closing():
            return
        writer.write(bytes([byte]))
        await asyncio.sleep(every_s)


def head_of(length: int, path: str = PATH, method: str = "POST", key: str | None = None) -> bytes:
    """``key``: an API key, where they are wanted."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {length}",
    ]
    if key is not None:
        lines.append(f"authorization: Bearer {key}")
    return "\r\n".join((*lines, "", "")).encode()


class Requests:
    """Sends searches, each of a new problem, so that no cache can answer them."""

    def __init__(self, target: Target, search: dict[str, Any], seed: int, key: str | None = None) -> None:
        self._target = target
        self._key = key
        self._search = search
        self._problems: Iterator[Problem] = draw_problems(Split.TEST, seed)
        self._numbers = count(1)

    async def searched(self, long_too: bool = False) -> Reply:
        """Sends a search. With ``long_too``, one search in `LONG_EVERY` has a prompt of a megabyte."""
        number = next(self._numbers)
        text = next(self._problems).text
        if long_too and number % LONG_EVERY == 0:
            text = text * (1_000_000 // len(text))
        messages = [{"role": "user", "content": text}]
        fields = {"model": "banyan-arithmetic", "messages": messages, "seed": number, "search": self._search}
        body = json.dumps(fields).encode()
        return await ask(self._target, head_of(len(body), key=self._key), body)

    async def slow(self) -> Reply:
        """Sends a body so slowly that it would take a quarter of an hour."""
        return await ask(self._target, head_of(SLOW_BYTES), b" " * SLOW_BYTES, every_s=1.0)


class HealthWatch:
    """Polls /health, and measures the delay of this process's event loop."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._delay = LoopDelay()
        self.health: list[Reply] = []
        self.client_delays: list[float] = []

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        self._delay.start()
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            self._delay.stop()

    async def _watch(self) -> None:
        tasks: set[asyncio.Task[None]] = set()
        while True:
            task = asyncio.create_task(self._ask())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            await asyncio.sleep(HEALTH_EVERY_S)
            self.client_delays.append(self._delay.seconds)

    async def _ask(self) -> None:
        self.health.append(await ask(self._target, head_of(0, "/health", "GET")))


class Burst(NamedTuple):
    replies: list[Reply]
    slow: list[Reply]


async def full_house(requests: Requests) -> list[Reply]:
    """Runs as many searches at once as there are slots."""
    return list(await asyncio.gather(*(requests.searched() for _ in range(PLACES))))


async def burst(requests: Requests) -> Burst:
    """Sends ten times as many requests at once as there are slots."""
    slow = [asyncio.create_task(requests.slow()) for _ in range(SLOW)]
    replies = await asyncio.gather(*(requests.searched(long_too=True) for _ in range(BURST)))
    return Burst(list(replies), list(await asyncio.gather(*slow)))


async def steady(requests: Requests, seconds: float) -> Burst:
    """Keeps all slots busy, and sends `STEADY_PER_S` further requests a second."""
    until = time.perf_counter() + seconds
    house = [asyncio.create_task(search_until(requests, until)) for _ in range(PLACES)]
    await asyncio.sleep(1.0)
    slow = [asyncio.create_task(requests.slow()) for _ in range(SLOW)]
    refused: list[asyncio.Task[Reply]] = []
    due = time.perf_counter()
    while due < until:
        refused.append(asyncio.create_task(requests.searched(long_too=True)))
        due += 1 / STEADY_PER_S
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
    replies = list(await asyncio.gather(*refused))
    await asyncio.gather(*house)
    return Burst(replies, list(await asyncio.gather(*slow)))


async def search_until(requests: Requests, until: float) -> None:
    """Searches one after the other; after a refusal it retries soon."""
    while time.perf_counter() < until:
        if (await requests.searched()).status != 200:
            await asyncio.sleep(0.2)


async def searches(requests: Requests, number: int, clients: int) -> list[Reply]:
    """Runs ``number`` searches, ``clients`` at a time."""
    left = iter(range(number))

    async def client() -> list[Reply]:
        return [await requests.searched() for _ in left]

    return [reply for each in await asyncio.gather(*(client() for _ in range(clients))) for reply in each]


def seconds_of(replies: Sequence[Reply], *statuses: int) -> list[float]:
    return sorted(reply.seconds for reply in replies if reply.status in statuses)


def quantile(ordered: Sequence[float], part: float) -> float:
    """Quantile of an ordered sequence; NaN if it is empty."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


async def measure(target: Target, search: dict[str, Any], repeats: int, steady_s: float, seed: int) -> dict[str, Any]:
    requests = Requests(target, search, seed)
    watch = HealthWatch(target)
    alone: list[list[Reply]] = []
    bursts: list[Burst] = []
    await asyncio.gather(*(requests.searched() for _ in range(WARM_UP)))
    async with watch.watching():
        for repeat in range(repeats):
            alone.append(await full_house(requests))
            bursts.append(await burst(requests))
            shown = seconds_of(bursts[-1].replies, 429)
            console.print(f"burst {repeat + 1}: {len(shown)} refused, the last after {quantile(shown, 1.0):.2f} s")
        stream = await steady(requests, steady_s)
    return _figures(alone, bursts, stream, watch)


def _figures(alone: list[list[Reply]], bursts: list[Burst], stream: Burst, watch: HealthWatch) -> dict[str, Any]:
    house = seconds_of([reply for each in alone for reply in each], 200)
    crowd = [reply for each in bursts for reply in each.replies]
    slow = [reply for each in (*bursts, stream) for reply in each.slow]
    accepted, refused = seconds_of(crowd, 200), seconds_of(crowd, 429)
    steadily = seconds_of(stream.replies, 429)
    health = sorted(reply.seconds for reply in watch.health)
    ratio = quantile(accepted, 0.95) / quantile(house, 0.95)
    statuses = Counter(reply.status for reply in (*crowd, *stream.replies, *slow))
    unhealthy = sum(reply.status != 200 for reply in watch.health)
    p99, last, slowest = quantile(steadily, 0.99), quantile(refused, 1.0), quantile(health, 1.0)
    return {
        "full_house_alone": percentiles(house),
        "burst": {
            "accepted": percentiles(accepted),
            "refused": percentiles(refused),
            "statuses": [_statuses(each.replies) for each in bursts],
        },
        "steady": {"refused": percentiles(steadily), "statuses": _statuses(stream.replies)},
        "slow_bodies": {"ended": percentiles([reply.seconds for reply in slow]), "statuses": _statuses(slow)},
        "health": percentiles(health) | {"not_200": unhealthy},
        "client_loop_delay_s": percentiles(watch.client_delays),
        "claims": [
            claim("steady: refusals p99, seconds", round(p99, 3), "< 0.25", p99 < 0.25),
            claim("burst: the last refusal, seconds", round(last, 3), "< 3", last < 3),
            claim("accepted p95 over that of a full house alone", round(ratio, 3), "<= 1.5", ratio <= 1.5),
            claim("/health, the slowest, seconds", round(slowest, 3), "< 1", slowest < 1 and not unhealthy),
            claim("statuses", sorted(statuses), sorted(EXPECTED), set(statuses) <= EXPECTED),
        ],
    }


def percentiles(seconds: Sequence[float]) -> dict[str, Any]:
    ordered = sorted(seconds)
    parts = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {"count": len(ordered)} | {name: round(quantile(ordered, part), 3) for name, part in parts.items()}


def _statuses(replies: Sequence[Reply]) -> dict[str, int]:
    return {str(status): number for status, number in sorted(Counter(reply.status for reply in replies).items())}


def main(
    n: Annotated[int, typer.Option(min=1, max=256)] = 16,
    m: Annotated[int, typer.Option(min=1, max=64)] = 4,
    repeats: Annotated[int, typer.Option(min=1, max=50, help="Repeats of the full house and of the burst.")] = 3,
    steady_s: Annotated[float, typer.Option(min=1, max=600)] = 20.0,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    cache: Annotated[bool, typer.Option(help="With LMCache, or without.")] = True,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    config = AppConfig.model_validate({"cache": {"enabled": cache}, "controller": {"searches": PLACES}})
    search = {"strategy": "beam_search", "n": n, "m": m}
    with application(config) as url:
        figures = uvloop.run(measure(Target.of(url), search, repeats, steady_s, seed))
    setup = {"places": PLACES, "burst": BURST, "steady_per_s": STEADY_PER_S, "slow_bodies": SLOW}
    path = write_result("overload", {"search": search, "lmcache": cache, "asked": setup, **figures})
    show_claims(console, figures["claims"])
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
