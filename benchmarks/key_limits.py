"""What a client at the limits of its API key costs another client, who is within its own.

    python -m benchmarks.key_limits

Against the served application, in turns: the other client alone; beside a key whose tokens of the minute are spent and
that asks on; beside a key that works in all of its places; and beside that key when it asks for more. The first two
differ by refusals alone, and so do the last two.
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

from benchmarks.overload import Requests, Target, quantile, resident, searches, seconds_of, told
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import application
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.startup.environment import set_environment

PLACES = 4
"""Those of the key that works in all of them."""
CLIENTS = 4
"""Searches of the other client at a time."""
ASKED_PER_S = 50
"""Refused requests of a key at its limits."""
MOST = 1.3
LIMITS = {"other": "", "spent": "tokens_per_minute=1 places=1", "full": f"places={PLACES}"}
"""Those of each key, as a file of keys has them."""
ARMS = ("alone", "beside spent", "beside full", "beside more than full")
console = Console(stderr=True)


@asynccontextmanager
async def asking(requests: Requests, statuses: Counter[int]) -> AsyncIterator[None]:
    """Requests come steadily, whatever becomes of those before."""

    async def ask_once() -> None:
        statuses[(await requests.searched()).status] += 1

    async def ask_on() -> None:
        async with asyncio.TaskGroup() as asked:
            due = time.perf_counter()
            while not enough.is_set():
                asked.create_task(ask_once())
                due += 1 / ASKED_PER_S
                await asyncio.sleep(max(0.0, due - time.perf_counter()))

    enough = asyncio.Event()
    task = asyncio.create_task(ask_on())
    try:
        yield
    finally:
        enough.set()
        await task


@asynccontextmanager
async def working(requests: Requests) -> AsyncIterator[None]:
    """All places of a key are taken, one search after the other."""
    residents = [asyncio.create_task(resident(requests, float("inf"))) for _ in range(PLACES)]
    await asyncio.sleep(0.5)
    try:
        yield
    finally:
        for each in residents:
            each.cancel()
        await asyncio.gather(*residents, return_exceptions=True)


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
                await spent.searched()  # a minute after the last one it has to be spent again
                async with asking(spent, statuses[arm]):
                    replies = await searches(other, count, CLIENTS)
            elif arm == "beside full":
                async with working(full):
                    replies = await searches(other, count, CLIENTS)
            else:
                async with working(full), asking(full, statuses[arm]):
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
            claims.append(claim(f"{pushed} over {before}, {name}", round(ratio, 3), f"<= {MOST}", ratio <= MOST))
    refused = statuses["beside more than full"][429] / statuses["beside more than full"].total()
    return {
        "arms": {arm: told(values) for arm, values in together.items()},
        "statuses_of_the_key_at_its_limits": {arm: dict(counted) for arm, counted in statuses.items() if counted},
        "share_refused_of_more_than_full": round(refused, 3),
        "claims": claims,
    }


def main(
    n: Annotated[int, typer.Option(min=1, max=256)] = 16,
    m: Annotated[int, typer.Option(min=1, max=64)] = 4,
    problems: Annotated[int, typer.Option(min=4, max=1000, help="Searches of the other client, in each turn.")] = 32,
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
    asked = {"clients": CLIENTS, "places_of_full": PLACES, "asked_per_s": ASKED_PER_S, "problems": problems}
    path = write_result("key_limits", {"search": search, "lmcache": cache, "asked": asked, **figures})
    show_claims(console, figures["claims"])
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
