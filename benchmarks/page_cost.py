"""What it costs the service that somebody looks at a search on its page.

    python -m benchmarks.page_cost

The page reads the stream of its search, as any client can. Three sides take turns on the same problems and seeds, 16
searches at a time: nobody looks, one of sixteen searches is streamed, all are. The stream is read here and thrown away:
what the browser does with it is the browser's.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console

from benchmarks.ratios import Ratio, ratio_with_interval
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import Round, Searched, Solve, application, http_for, run_round, served
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.embedded.problems import Problem, Split, draw_problems
from deployments.startup.environment import set_environment

SEED = 1
SEARCH = {"strategy": "beam_search", "n": 16, "m": 4}
IN_FLIGHT = 16
WATCHED = {"none": 0, "one in 16": 16, "all": 1}
"""Every which search is streamed, by the name of the side; 0: none."""
MIN_RATIO = 0.97
console = Console(stderr=True)


@asynccontextmanager
async def clients(url: str, key: str, every: int) -> AsyncIterator[Solve]:
    """Yields a function that searches; it streams every search whose seed is a multiple of ``every``."""
    headers = {"Authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=None)
    async with (
        served(url, SEARCH, key) as unwatched,
        httpx.AsyncClient(base_url=url, timeout=600.0, limits=limits, headers=headers) as http,
    ):

        async def solve(problem: Problem, seed: int) -> Searched:
            if not every or seed % every:
                return await unwatched(problem, seed)
            body = {
                "model": "banyan-arithmetic",
                "messages": [{"role": "user", "content": problem.text}],
                "seed": seed,
                "search": SEARCH,
                "stream": True,
            }
            pieces = 0
            async with http.stream("POST", "/v1/chat/completions", json=body) as stream:
                async for _ in stream.aiter_raw():
                    pieces += 1
            if not pieces:
                raise RuntimeError("a stream had no events")
            return Searched(None, 0, 0)

        yield solve


async def measure(url: str, keys: Sequence[str], rounds: int, problems: int) -> list[dict[str, Round]]:
    stream = draw_problems(Split.VALIDATION, SEED)
    async with AsyncExitStack() as stack:
        sides = {
            name: await stack.enter_async_context(clients(url, key, every))
            for (name, every), key in zip(WATCHED.items(), keys, strict=True)
        }
        warm_up = list(islice(stream, 2 * IN_FLIGHT))
        for solve in sides.values():
            await run_round(solve, warm_up, IN_FLIGHT)
        measured: list[dict[str, Round]] = []
        for number in range(rounds):
            drawn = list(islice(stream, problems))
            order = list(sides)[number % len(sides) :] + list(sides)[: number % len(sides)]
            measured.append({name: await run_round(sides[name], drawn, IN_FLIGHT) for name in order})
            console.print(", ".join(f"{name} {measured[-1][name].seconds:.2f} s" for name in sides))
        return measured


def throughput(rounds: Sequence[dict[str, Round]], side: str) -> Ratio:
    """Throughput of a side over that of the one at which nobody looks."""
    return ratio_with_interval([(each["none"].seconds, each[side].seconds) for each in rounds])


def main(
    rounds: Annotated[int, typer.Option(min=2, max=50)] = 12, problems: Annotated[int, typer.Option(min=16)] = 48
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    keys = [f"sk-{index}-{'0' * 24}" for index in range(len(WATCHED))]
    with tempfile.TemporaryDirectory() as directory:
        config = AppConfig.model_validate({"http": http_for(keys, Path(directory) / "keys")})
        with application(config) as url:
            measured = asyncio.run(measure(url, keys, rounds, problems))
    ratios = {name: throughput(measured, name) for name in WATCHED if name != "none"}
    one = round(ratios["one in 16"].ratio, 3)
    claims = [claim("throughput, one of 16 searches watched over none", one, f">= {MIN_RATIO}", one >= MIN_RATIO)]
    path = write_result(
        "page_cost",
        {
            "search": SEARCH,
            "in_flight": IN_FLIGHT,
            "problems": problems,
            "ratios": {name: each.as_json for name, each in ratios.items()},
            "seconds": {name: [round(each[name].seconds, 3) for each in measured] for name in WATCHED},
            "claims": claims,
        },
    )
    for name, each in ratios.items():
        console.print(f"{name}: {each}")
    show_claims(console, claims)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
