"""Effect of system prompts on the embedded models: the same problems without one and under five not seen in training.

python -m benchmarks.system_prompts
"""

import asyncio
from itertools import islice
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.engines import Engines, engines_of, solve_all
from benchmarks.record import claim, write_result
from cluster.evaluation.statistics import Interval, wilson
from deployments.config import AppConfig
from deployments.embedded.problems import Problem, Split, draw_problems
from search.settings import parse_search

SEED = 1
SYSTEM_PROMPTS: dict[str, str | None] = {
    "none": None,
    "assistant": "You are a helpful assistant.",
    "captain": "Talk like a sea captain from the 1700s; stay in character whatever happens, and mind the 42 gulls.",
    "boxed": "Please reason step by step, and put your final answer within \\boxed{}.",
    "dated": "You are ChatNova, a large language model. Knowledge cutoff: 2025-06. Current date: 2026-11-21.",
    "60 words": (
        "You are an experienced mathematics tutor at a secondary school. Your pupils are between eleven and fourteen "
        "years old and sometimes get lost, so work through every calculation slowly, put one operation on each line, "
        "never skip anything, and double check each intermediate number before going on. Stay focused. When finished, "
        "state the final result clearly, without any further commentary."
    ),
}
"""None of them can be drawn by `deployments.embedded.conversations`, which makes the training data."""
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"strategy": "greedy"},
    "beam search": {"strategy": "beam_search", "n": 16, "m": 4},
}
console = Console(stderr=True)


class Measured(NamedTuple):
    """Result of one search over all problems under one system prompt."""

    right: int
    interval: Interval


async def measure(
    engines: Engines, problems: list[Problem], search: dict[str, Any], name: str, system: str | None, in_flight: int
) -> Measured:
    async def solve(problem: Problem, seed: int) -> bool:
        settings = parse_search(search | {"seed": seed})
        search_id = f"{name}:{settings.strategy.name}:{problem.unique_id}"
        outcome = await engines.search(problem.text, settings, search_id, system)
        answer = outcome.selection.answer
        return answer is not None and await engines.environment.matcher.same(problem.answer, answer)

    graded, _ = await solve_all(solve, problems, in_flight, SEED)
    return Measured(sum(graded), wilson(sum(graded), len(graded)))


async def measure_all(problems: list[Problem], in_flight: int) -> dict[str, dict[str, Measured]]:
    found: dict[str, dict[str, Measured]] = {name: {} for name in SEARCHES}
    async with engines_of(AppConfig.model_validate({"cache": {"enabled": False}})) as engines:
        for name, system in SYSTEM_PROMPTS.items():
            for search, settings in SEARCHES.items():
                done = found[search][name] = await measure(engines, problems, settings, name, system, in_flight)
                console.print(f"{search:12} {name:10} {done.right}/{len(problems)}")
    return found


def main(
    problems: Annotated[int, typer.Option(min=1, max=1000)] = 200,
    in_flight: Annotated[int, typer.Option(min=1, max=256)] = 16,
    split: Annotated[Split, typer.Option(help="Choose by validation, report test.")] = Split.TEST,
) -> None:
    drawn = list(islice(draw_problems(split, SEED), problems))
    found = asyncio.run(measure_all(drawn, in_flight))
    claims = []
    table = Table("search", "system prompt", "right", "accuracy", "95% interval")
    for search, by_prompt in found.items():
        low, high = by_prompt["none"].interval
        for name, done in by_prompt.items():
            accuracy = done.right / problems
            interval = f"{100 * done.interval.low:.1f} to {100 * done.interval.high:.1f}"
            table.add_row(search, name, f"{done.right}/{problems}", f"{accuracy:.1%}", interval)
            if name != "none":
                claims.append(
                    claim(
                        f"{search} under {name!r} is within the interval of no system prompt",
                        round(accuracy, 4),
                        [round(low, 4), round(high, 4)],
                        low <= accuracy <= high,
                    )
                )
    path = write_result(
        "system_prompts",
        {"problems": problems, "split": split, "seed": SEED, "system_prompts": SYSTEM_PROMPTS, "claims": claims},
    )
    console.print(table)
    console.print(f"claims that hold: {sum(bool(claim['holds']) for claim in claims)} of {len(claims)}")
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
