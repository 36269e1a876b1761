"""What it costs to look for the step delimiter in the text as well, where a vocabulary can spell it in pieces.

Both sides are one engine with the same problems and seeds, and grow the same trees; one stops at token ids alone. They
take turns.

    python -m benchmarks.step_stop
"""

import asyncio
import statistics
import time
from itertools import islice
from typing import Annotated, NamedTuple

import typer
from rich.console import Console

from benchmarks.engines import Engines, engines_of, solve_all
from benchmarks.record import claim, write_result
from deployments.config import AppConfig
from deployments.embedded.problems import Problem, Split, draw_problems
from search.settings import parse_search

SEED = 1
WARM_UP = 16
ASKED = 0.95
SIDES = ("token ids and string", "token ids alone")
console = Console(stderr=True)


class Round(NamedTuple):
    """All problems once, on one side."""

    problems_per_second: float
    tokens: int


def stop_at(engines: Engines, side: str, strings: tuple[str, ...]) -> None:
    """Has the engine stop as that side does; ``strings`` are what it stops at by itself."""
    splitter = engines.generator._running.splitter
    splitter.stop = splitter.stop._replace(strings=strings if side == SIDES[0] else ())


async def run_round(engines: Engines, problems: list[Problem], in_flight: int) -> Round:
    async def solve(problem: Problem, seed: int) -> int:
        settings = parse_search({"strategy": "beam_search", "n": 16, "m": 4, "seed": seed})
        outcome = await engines.search(problem.text, settings, f"{problem.unique_id}:{time.monotonic_ns()}")
        return outcome.cost.generated_tokens

    tokens, seconds = await solve_all(solve, problems, in_flight, SEED)
    engines.scorer.forget()
    return Round(len(problems) / seconds, sum(tokens))


async def compare(count: int, in_flight: int, repeats: int) -> dict[str, list[Round]]:
    rounds: dict[str, list[Round]] = {side: [] for side in SIDES}
    stream = draw_problems(Split.VALIDATION, SEED)
    async with engines_of(AppConfig.model_validate({"cache": {"enabled": False}})) as engines:
        strings = engines.generator._running.splitter.stop.strings
        await run_round(engines, list(islice(stream, WARM_UP)), in_flight)
        for repeat in range(repeats):
            problems = list(islice(stream, count))
            for side in SIDES if repeat % 2 == 0 else SIDES[::-1]:
                stop_at(engines, side, strings)
                done = await run_round(engines, problems, in_flight)
                rounds[side].append(done)
                console.print(f"{repeat + 1}/{repeats}  {side:22} {done.problems_per_second:.2f} problems/s")
    return rounds


def main(
    problems: Annotated[int, typer.Option(min=1, max=1000)] = 48,
    in_flight: Annotated[int, typer.Option(min=1, max=256)] = 16,
    repeats: Annotated[int, typer.Option(min=2, max=50)] = 6,
) -> None:
    rounds = asyncio.run(compare(problems, in_flight, repeats))
    ratios = [
        ours.problems_per_second / bare.problems_per_second
        for ours, bare in zip(*(rounds[side] for side in SIDES), strict=True)
    ]
    same = [done.tokens for done in rounds[SIDES[0]]] == [done.tokens for done in rounds[SIDES[1]]]
    value = round(statistics.median(ratios), 3)
    kept = claim("problems/s with the string over without it", value, ASKED, value >= ASKED)
    figures = {
        "problems": problems,
        "in_flight": in_flight,
        "ratios": [round(ratio, 3) for ratio in ratios],
        "same_tokens": same,
        "claims": [kept],
    }
    path = write_result("step_stop", figures)
    console.print(
        f"median ratio {value:.3f} (each {', '.join(f'{ratio:.2f}' for ratio in ratios)}), same tokens: {same}"
    )
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
