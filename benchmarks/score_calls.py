"""How many calls to the process reward model a search makes: what waits for it goes together when a call is free.

    python -m benchmarks.score_calls

Beam search n = 16, m = 4 with 16 searches in flight, the engines as the application starts them; with LMCache, as it is
served, and without. A call has its price whatever is in it, so fewer are better as long as nothing waits for them:
`benchmarks.served_overhead` says what it does to the time. The figures go to ``benchmarks/results``.
"""

import asyncio
import statistics
import time
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.engines import Engines, engines_of, solve_all
from benchmarks.record import claim, write_result
from deployments.config import AppConfig
from deployments.embedded.problems import Problem, Split, draw_problems
from search.run.report import SearchOutcome
from search.settings import parse_search

SEED = 3
IN_FLIGHT = 16
WARM_UP = 16
ASKED = 8.0
SEARCH = {"strategy": "beam_search", "n": 16, "m": 4}
SIDES = {"with LMCache": True, "without LMCache": False}
console = Console(stderr=True)


async def run_round(engines: Engines, problems: list[Problem]) -> dict[str, Any]:
    async def solve(problem: Problem, seed: int) -> SearchOutcome:
        settings = parse_search(SEARCH | {"seed": seed})
        return await engines.search(problem.text, settings, f"{problem.unique_id}:{time.monotonic_ns()}")

    outcomes, seconds = await solve_all(solve, problems, IN_FLIGHT, SEED)
    engines.scorer.forget()
    same = engines.environment.matcher.same
    return {
        "prm_calls": statistics.mean(outcome.cost.prm_calls for outcome in outcomes),
        "scored_steps": statistics.mean(outcome.cost.scored_steps for outcome in outcomes),
        "right": sum([await same(o.selection.answer or "", p.answer) for o, p in zip(outcomes, problems, strict=True)]),
        "problems_per_second": len(problems) / seconds,
    }


async def measure(count: int, repeats: int) -> dict[str, list[dict[str, Any]]]:
    rounds: dict[str, list[dict[str, Any]]] = {}
    for side, enabled in SIDES.items():
        async with engines_of(AppConfig.model_validate({"cache": {"enabled": enabled}})) as engines:
            stream = draw_problems(Split.VALIDATION, SEED)
            await run_round(engines, list(islice(stream, WARM_UP)))
            problems = list(islice(stream, count))
            rounds[side] = []
            for repeat in range(repeats):
                done = await run_round(engines, problems)
                rounds[side].append(done)
                shown = ", ".join(f"{name} {value:.4g}" for name, value in done.items())
                console.print(f"{repeat + 1}/{repeats}  {side}: {shown}")
    return rounds


def main(
    problems: Annotated[int, typer.Option(min=1, max=1000)] = 64,
    repeats: Annotated[int, typer.Option(min=1, max=50)] = 4,
) -> None:
    rounds = asyncio.run(measure(problems, repeats))
    claims = []
    for side, done in rounds.items():
        calls = round(statistics.median(each["prm_calls"] for each in done), 2)
        claims.append(claim(f"PRM calls of a search of 16, {side}", calls, f"<= {ASKED:g}", calls <= ASKED))
    path = write_result(
        "score_calls",
        {"search": SEARCH, "in_flight": IN_FLIGHT, "problems": problems, "rounds": rounds, "claims": claims},
    )
    for each in claims:
        console.print(f"{each['name']}: {each['value']}{'' if each['holds'] else ' (more than asked)'}")
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
