"""Gain of ``reasoning_effort``: the presets as shipped, requested by a client of the served application.

python -m benchmarks.efforts
"""

import asyncio
import statistics
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.pairs import paired_difference
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import application
from cluster.client import Client, Question
from cluster.evaluation.statistics import wilson
from cluster.launch.token import ensure_token
from deployments.config import EFFORTS, AppConfig
from deployments.embedded.problems import Problem, Split, draw_problems
from deployments.startup.environment import set_environment

console = Console(stderr=True)


class Answered(NamedTuple):
    right: bool
    tokens: int
    """Generated tokens of the search."""
    seconds: float
    """Duration of the search, without the wait for a slot in this client."""


async def measure(url: str, problems: Sequence[Problem], in_flight: int) -> dict[str, list[Answered]]:
    """Solves all problems under each effort. The efforts run one after the other, so that each meets the same load."""
    slots = asyncio.Semaphore(in_flight)
    async with Client(url, connections=in_flight) as client:

        async def ask(problem: Problem, seed: int, effort: str) -> Answered:
            async with slots:
                reply = await client.ask(Question(problem.text, effort=effort, seed=seed))
            return Answered(reply.search.answer == problem.answer, reply.search.generated_tokens, reply.search.seconds)

        answered: dict[str, list[Answered]] = {}
        for effort in EFFORTS:
            asked = (ask(problem, seed, effort) for seed, problem in enumerate(problems))
            answered[effort] = list(await asyncio.gather(*asked))
        return answered


def main(
    problems: Annotated[int, typer.Option(min=1, help="Test problems.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the problems.")] = 23,
    in_flight: Annotated[int, typer.Option(min=1)] = 16,
) -> None:
    """Measures all efforts and writes the result."""
    set_environment()  # before Ray is imported
    ensure_token()
    drawn = list(islice(draw_problems(Split.TEST, seed), problems))
    with application(AppConfig()) as url:
        answered = asyncio.run(measure(url, drawn, in_flight))
    table = Table("effort", "right", "95% interval", "tokens", "seconds, median")
    figures: dict[str, Any] = {}
    for effort, rows in answered.items():
        right, tokens = sum(row.right for row in rows), statistics.mean(row.tokens for row in rows)
        low, high = wilson(right, len(rows))
        median_s = statistics.median(row.seconds for row in rows)
        table.add_row(
            effort, f"{right / len(rows):.1%}", f"{low:.1%} to {high:.1%}", f"{tokens:,.0f}", f"{median_s:.2f}"
        )
        figures[effort] = {
            "search": EFFORTS[effort],
            "accuracy": right / len(rows),
            "interval": [low, high],
            "tokens": tokens,
            "seconds_median": median_s,
            "right": [row.right for row in rows],
        }
    console.print(table)
    gain = paired_difference(*([row.right for row in answered[effort]] for effort in ("low", "high")))
    rising = [figures[effort]["tokens"] for effort in EFFORTS]
    claims = [
        claim("tokens by effort", [round(each) for each in rising], "rising", rising == sorted(set(rising))),
        claim("gain of high over low, lower bound", round(gain.low, 4), "above 0", gain.low > 0),
    ]
    show_claims(console, claims)
    setting = {"problems": problems, "seed": seed, "in_flight": in_flight}
    paired = gain._asdict() | {"difference": gain.difference}
    written = write_result(
        "efforts", {"setting": setting, "efforts": figures, "high_over_low": paired, "claims": claims}
    )
    console.print(f"written to {written}")


if __name__ == "__main__":
    typer.run(main)
