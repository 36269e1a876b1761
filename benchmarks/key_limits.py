"""Latency cost of a client at the limits of its API key for another client that is within its own.

    python -m benchmarks.key_limits

Against the served application, in turns, the other client searches alone; beside a key that has spent its tokens of the
minute and keeps sending; beside a key that works in all of its places; and beside that key when it sends more. The
first two differ only by refused requests, and so do the last two.
"""

import asyncio
import secrets
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console

from benchmarks.overload import Requests, Target, percentiles, quantile, search_until, searches, seconds_of
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import application
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.startup.environment import set_environment

PLACES = 4
"""Places of the key that works in all of them."""
CLIENTS = 4
"""Concurrent searches of the other client."""
ASKED_PER_S = 50
"""Requests per second from a key at its limits, which are refused."""
MAX_RATIO = 1.3
LIMITS = {"other": "", "spent": "tokens_per_minute=1 places=1", "full": f"places={PLACES}"}
"""Limits of each key, in the syntax of the keys file."""
ARMS = ("alone", "beside spent", "beside full", "beside more than full")
console = Console(stderr=True)


@asynccontextmanager
async def sending(requests: Requests, statuses: Counter[int]) -> AsyncIterator[None]:
    """Sends requests at a steady rate within the block, without waiting for their replies."""

    async def send() -> None:
        statuses[(await requests.searched()).status] += 1

    async def keep_sending() -> None:
        async with asyncio.TaskGroup() as tasks:
            due = time.perf_counter()
            while not stopping.is_set():
                tasks.create_task(send())
                due += 1 / ASKED_PER_S
                await asyncio.sleep(max(0.0, due - time.perf_counter()))

    stopping = asyncio.Event()
    task = asyncio.create_task(keep_sending())
    try:
        yield
    finally:
        stopping.set()
        await task


@asynccontextmanager
async def working(requests: Requests) -> AsyncIterator[None]:
    """Keeps all places of a key busy within the block."""
    clients = [asyncio.create_task(search_until(requests, float("inf"))) for _ in range(PLACES)]
    await asyncio.sleep(0.5)
    try:
        yield
    finally:
        for each in clients:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


async def measure(
    target: Target, search: dict[str, Any], keys: Sequence[str], count: int, repeats: int, seed: int
) -> dict[str, Any]:
    """``keys``: in the order of `LIMITS`."""
    clients = [Requests(target, search, seed + index, key) for index, key in enumerate(keys)]
    other, spent, full = clients
    await asyncio.gather(*(client.searched() for client in clients for _ in range(4)))
    seconds: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
    statuses: dict[str, Counter[int]] = {arm: Counter() for arm in ARMS}
    for repeat in range(repeats):
        for arm in ARMS if repeat % 2 == 0 else ARMS[::-1]:
            if arm == "alone":
                replies = await searches(other, count, CLIENTS)
            elif arm == "beside spent":
                await spent.searched()  # tokens spent more than a minute ago are available again
                async with sending(spent, statuses[arm]):
                    replies = await searches(other, count, CLIENTS)
            elif arm == "beside full":
                async with working(full):
                    replies = await searches(other, count, CLIENTS)
            else:
                async with working(full), sending(full, statuses[arm]):
                    replies = await searches(other, count, CLIENTS)
            if {reply.status for reply in replies} != {200}:
                raise RuntimeError(f"{arm}: {Counter(reply.status for reply in replies)}")
            seconds[arm].append(seconds_of(replies, 200))
            console.print(f"repeat {repeat + 1}, {arm}: {statistics.median(seconds[arm][-1]):.2f} s at the median")
    return _figures(seconds, statuses)


def _figures(seconds: dict[str, list[list[float]]], statuses: dict[str, Counter[int]]) -> dict[str, Any]:
    together = {arm: sorted(value for each in rounds for value in each) for arm, rounds in seconds.items()}
    claims = []
    for pushed, before in (("beside spent", "alone"), ("beside more than full", "beside full")):
        for name, part in (("p50", 0.5), ("p95", 0.95)):
            ratio = quantile(together[pushed], part) / quantile(together[before], part)
            claims.append(
                claim(f"{pushed} over {before}, {name}", round(ratio, 3), f"<= {MAX_RATIO}", ratio <= MAX_RATIO)
            )
    refused = statuses["beside more than full"][429] / statuses["beside more than full"].total()
    return {
        "arms": {arm: percentiles(values) for arm, values in together.items()},
        "statuses_of_the_key_at_its_limits": {arm: dict(counted) for arm, counted in statuses.items() if counted},
        "share_refused_of_more_than_full": round(refused, 3),
        "claims": claims,
    }


def main(
    n: Annotated[int, typer.Option(min=1, max=256)] = 16,
    m: Annotated[int, typer.Option(min=1, max=64)] = 4,
    problems: Annotated[int, typer.Option(min=4, max=1000, help="Searches of the other client per turn.")] = 32,
    repeats: Annotated[int, typer.Option(min=1, max=50)] = 4,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    cache: Annotated[bool, typer.Option(help="With LMCache, or without.")] = True,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    search = {"strategy": "beam_search", "n": n, "m": m}
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as file:
        keys = [secrets.token_urlsafe() for _ in LIMITS]
        file.writelines(f"{key} {limits}\n" for key, limits in zip(keys, LIMITS.values(), strict=True))
        file.flush()
        config = AppConfig.model_validate({"cache": {"enabled": cache}, "http": {"api_keys_file": file.name}})
        with application(config) as url:
            figures = uvloop.run(measure(Target.of(url), search, keys, problems, repeats, seed))
    setup = {"clients": CLIENTS, "places_of_full": PLACES, "asked_per_s": ASKED_PER_S, "problems": problems}
    path = write_result("key_limits", {"search": search, "lmcache": cache, "asked": setup, **figures})
    show_claims(console, figures["claims"])
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
