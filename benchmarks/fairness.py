"""Latency cost of one wide search for the narrow searches beside it.

    python -m benchmarks.fairness

Fifteen clients search with n = 4 against the served application, each one search after the other. In turns they are
alone, and beside one client that searches with n = 256. The latency of the wide search is reported for both: alone,
and beside the narrow ones.
"""

import asyncio
import statistics
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console

from benchmarks.overload import Reply, Requests, Target, percentiles, quantile, searches, seconds_of
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import application
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.startup.environment import set_environment

NARROW = {"strategy": "beam_search", "n": 4, "m": 4}
WIDE = {"strategy": "beam_search", "n": 256, "m": 4}
CLIENTS = 15
MAX_RATIO = 1.5
console = Console(stderr=True)


@asynccontextmanager
async def searching_beside(requests: Requests, ended: list[Reply]) -> AsyncIterator[None]:
    """Runs one search after the other in the background; their replies are appended to ``ended``."""

    async def keep_searching() -> None:
        while True:
            reply = await requests.searched()
            ended.append(reply)

    task = asyncio.create_task(keep_searching())
    await asyncio.sleep(1.0)  # until the first search is under way
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def measure(target: Target, number: int, repeats: int, seed: int) -> dict[str, Any]:
    narrow, wide = Requests(target, NARROW, seed), Requests(target, WIDE, seed + 1)
    await searches(narrow, 2 * CLIENTS, CLIENTS)
    await wide.searched()
    seconds: dict[str, list[float]] = {"alone": [], "beside wide": [], "wide alone": [], "wide beside": []}
    for repeat in range(repeats):
        for arm in ("alone", "beside wide")[:: 1 if repeat % 2 == 0 else -1]:
            if arm == "alone":
                replies = await searches(narrow, number, CLIENTS)
                wide_replies = [await wide.searched()]
            else:
                wide_replies = []
                async with searching_beside(wide, wide_replies):
                    replies = await searches(narrow, number, CLIENTS)
            if {reply.status for reply in [*replies, *wide_replies]} - {200}:
                raise RuntimeError(f"{arm}: {Counter(reply.status for reply in [*replies, *wide_replies])}")
            seconds[arm] += seconds_of(replies, 200)
            seconds["wide alone" if arm == "alone" else "wide beside"] += seconds_of(wide_replies, 200)
            console.print(
                f"repeat {repeat + 1}, {arm}: {statistics.median(seconds_of(replies, 200)):.2f} s at the median"
            )
    ordered = {arm: sorted(values) for arm, values in seconds.items()}
    ratios = {part: quantile(ordered["beside wide"], part) / quantile(ordered["alone"], part) for part in (0.5, 0.95)}
    return {
        "arms": {arm: percentiles(values) for arm, values in ordered.items() if values},
        "claims": [
            claim(
                f"narrow beside wide over alone, p{part * 100:.0f}",
                round(ratio, 3),
                f"<= {MAX_RATIO}",
                ratio <= MAX_RATIO,
            )
            for part, ratio in ratios.items()
        ],
    }


def main(
    problems: Annotated[int, typer.Option(min=15, max=10_000, help="Narrow searches in each turn.")] = 150,
    repeats: Annotated[int, typer.Option(min=1, max=50)] = 3,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    cache: Annotated[bool, typer.Option(help="With LMCache, or without.")] = True,
    write_ahead: Annotated[str, typer.Option(help="Of the generator; see docs/settings.md.")] = "auto",
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    config = AppConfig.model_validate({"cache": {"enabled": cache}, "generator": {"write_ahead": write_ahead}})
    with application(config) as url:
        figures = uvloop.run(measure(Target.of(url), problems, repeats, seed))
    asked = {"clients": CLIENTS, "problems": problems, "repeats": repeats}
    path = write_result(
        "fairness",
        {"narrow": NARROW, "wide": WIDE, "lmcache": cache, "write_ahead": write_ahead, "asked": asked, **figures},
    )
    show_claims(console, figures["claims"])
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
