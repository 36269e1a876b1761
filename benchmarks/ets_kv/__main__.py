"""Compares ETS with REBASE, with one command for each source of trees.
python -m benchmarks.ets_kv embedded --width 64 --side ets --side ets:node_weight=2 --problems 100
python -m benchmarks.ets_kv smollm2 --model .models/SmolLM2-135M-Instruct
python -m benchmarks.ets_kv shapes --width 256
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.engines import engines_of, solve_all
from benchmarks.ets_kv.arithmetic_reward import ArithmeticScorer
from benchmarks.ets_kv.measuring import Row, claims_of, compared, measured
from benchmarks.ets_kv.shapes import SHAPES, ShapedModels
from benchmarks.record import write_result
from cluster.evaluation.loop import problem_seed
from cluster.evaluation.search_field import SearchFieldError, search_field
from deployments.config import AppConfig
from deployments.embedded.problems import Problem, Split, draw_problems
from search.answers.equivalence import AnswerMatcher
from search.run.environment import SearchEnvironment
from search.run.solver import ProcessSolver

BASELINE = "rebase"
MAX_SHAPED_TOKENS = 1 << 16
console = Console(width=180)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

Widths = Annotated[list[int] | None, typer.Option("--width", min=1, max=256, help="May be repeated; 16 if unset.")]
Sides = Annotated[
    list[str] | None,
    typer.Option("--side", help="Search to compare with REBASE, in the syntax of `banyan eval`; may be repeated."),
]
Merged = Annotated[
    bool, typer.Option("--merge/--no-merge", help="Merge siblings of the same text; the papers do not merge.")
]
Count = Annotated[int, typer.Option("--problems", min=1, max=1000)]
Seed = Annotated[int, typer.Option(min=0)]
InFlight = Annotated[int, typer.Option(min=1, max=256)]

Rows = list[Row]
Search = Callable[[str, dict[str, Any]], Awaitable[Row]]
"""Runs the search of one problem, given a side's name and settings."""


@app.command()
def embedded(
    width: Widths = None,
    side: Sides = None,
    merge: Merged = True,
    problems: Count = 100,
    split: Annotated[Split, typer.Option(help="Choose settings by validation, report test.")] = Split.VALIDATION,
    seed: Seed = 1,
    in_flight: InFlight = 16,
) -> None:
    """The embedded models, without an engine (`benchmarks.memoized`)."""
    from benchmarks.memoized import MemoizedModels

    async def measure_all() -> Rows:
        matcher, solver = AnswerMatcher(), ProcessSolver()
        await asyncio.gather(matcher.start(), solver.start())
        models = MemoizedModels(matcher)

        async def measure_one(problem: Problem, _: int) -> Rows:
            with models.problem(problem.text) as memo:
                return [
                    await measured(
                        name,
                        settings | {"seed": problem_seed(seed, problem.unique_id)},
                        problem.unique_id,
                        problem.text,
                        memo.prompt,
                        memo.environment,
                        lambda outcome: outcome.selection.answer == problem.answer,
                    )
                    for name, settings in asked.items()
                ]

        drawn = list(islice(draw_problems(split, seed), problems))
        rows, _ = await solve_all(measure_one, drawn, in_flight, seed)
        matcher.close()
        solver.close()
        return [row for each in rows for row in each]

    asked = _sides(width, side, merge)
    _report("embedded", asked, {"embedded": asyncio.run(measure_all())}, {"split": split, "seed": seed})


@app.command()
def smollm2(
    model: Annotated[Path, typer.Option(exists=True, file_okay=False)] = Path(".models/SmolLM2-135M-Instruct"),
    width: Widths = None,
    side: Sides = None,
    merge: Merged = True,
    problems: Count = 20,
    level: Annotated[int, typer.Option(min=1, max=5, help="Level of the arithmetic; the model is weak at it.")] = 1,
    seed: Seed = 1,
    in_flight: InFlight = 8,
) -> None:
    """Texts that SmolLM2 writes on vLLM; the scorer is a function that checks the sums in a step."""
    config = AppConfig.model_validate(
        {
            "generator": {
                "model": str(model),
                "max_model_len": 2048,
                "kv_cache_memory_bytes": 1 << 30,
                "cpu_threads": 2,
                "max_num_seqs": 128,
            },
            "cache": {"enabled": False},
        }
    )

    async def measure_all() -> Rows:
        async with engines_of(config) as engines:
            environment = SearchEnvironment(
                engines.generator,
                ArithmeticScorer(),
                config.generator.max_model_len,
                engines.environment.matcher,
                solver=engines.environment.solver,
            )

            async def measure_one(problem: Problem, _: int) -> Rows:
                question = f"{problem.text} Think step by step."
                prompt = engines.prompt(question)
                rows = []
                for name, settings in asked.items():
                    field = {"max_step_tokens": 96, "max_depth": 12} | settings
                    field |= {"seed": problem_seed(seed, problem.unique_id)}
                    rows.append(
                        await measured(
                            name,
                            field,
                            problem.unique_id,
                            question,
                            prompt,
                            environment,
                            lambda outcome: outcome.selection.answer == problem.answer,
                        )
                    )
                console.print(problem.unique_id, [(row.side, row.score, len(row.rounds)) for row in rows])
                return rows

            drawn = list(islice(draw_problems(Split.VALIDATION, seed, level), problems))
            rows, _ = await solve_all(measure_one, drawn, in_flight, seed)
            return [row for each in rows for row in each]

    asked = _sides(width, side, merge)
    _report("smollm2", asked, {"smollm2": asyncio.run(measure_all())}, {"seed": seed, "level": level})


@app.command()
def shapes(
    width: Widths = None,
    side: Sides = None,
    merge: Merged = True,
    problems: Count = 20,
    shape: Annotated[list[str] | None, typer.Option(help=f"May be repeated; of {', '.join(SHAPES)}.")] = None,
) -> None:
    """Trees without a model, in shapes that the embedded models do not produce."""

    async def measure_all(name: str) -> Rows:
        rows = []
        for problem in range(problems):
            models = ShapedModels(SHAPES[name], problem)
            environment = SearchEnvironment(models, models, MAX_SHAPED_TOKENS, matcher)
            for each, settings in asked.items():
                field = settings | {"seed": problem}
                rows.append(
                    await measured(each, field, str(problem), "", (1, 2, 3), environment, models.quality_of_answer)
                )
        return rows

    asked = _sides(width, side, merge)
    matcher = AnswerMatcher()
    by_shape = {name: asyncio.run(measure_all(name)) for name in shape or SHAPES}
    _report("shapes", asked, by_shape, {"shapes": {name: SHAPES[name]._asdict() for name in by_shape}})


def _sides(widths: Sequence[int] | None, sides: Sequence[str] | None, merge: bool) -> dict[str, dict[str, Any]]:
    """Settings of every search by its name, which ends with its width."""
    try:
        return {
            f"{side} @ {width}": {"merge_siblings": merge} | search_field(side, width)
            for width in widths or (16,)
            for side in dict.fromkeys([BASELINE, *(sides or ["ets"])])
        }
    except SearchFieldError as error:
        raise typer.BadParameter(str(error)) from error


def _report(source: str, asked: dict[str, dict[str, Any]], rows: dict[str, Rows], drawn: dict[str, Any]) -> None:
    """Writes and prints the KV of each side relative to REBASE of the same width; ``rows``: by kind of trees."""
    comparisons: dict[str, dict[str, Any]] = {}
    claims: list[dict[str, Any]] = []
    table = Table(
        *("trees", "search", "score", "difference", "by node", "by path", "texts of samples", "one parent, by path"),
        caption="factors: KV of REBASE over this search's, without prompts; last column: KV of REBASE over what this "
        "search's steps would hold below a single path",
    )
    for trees, found in rows.items():
        for name in asked:
            width = name.rpartition(" @ ")[2]
            baseline = [row for row in found if row.side == f"{BASELINE} @ {width}"]
            figures = compared(baseline, [row for row in found if row.side == name])
            comparisons.setdefault(trees, {})[name] = figures
            if name.startswith("ets @"):
                claims += claims_of(f"{trees}, n = {width}", figures)
            difference = figures["score_difference"]
            table.add_row(
                *(trees, name, f"{figures['score'][1]:.3f}"),
                f"{difference['value']:+.3f} ({difference['low']:+.3f} to {difference['high']:+.3f})",
                *(_shown(figures[f"factor_{figure}"]) for figure in ("by_node", "by_path")),
                f"{figures['texts'][1]:,.0f} of {figures['samples'][1]:,.0f}",
                f"{figures['held_by_path'][0] / figures['held_by_path_at_least'][1]:.2f}",
            )
    how = "" if all(settings["merge_siblings"] for settings in asked.values()) else "_unmerged"
    path = write_result(f"ets_kv_{source}{how}", drawn | {"searches": asked, "compared": comparisons, "claims": claims})
    console.print(table)
    console.print(f"claims that hold: {sum(claim['holds'] for claim in claims)} of {len(claims)}; kept in {path.name}")


def _shown(factor: dict[str, float]) -> str:
    return f"{factor['value']:.2f} ({factor['low']:.2f} to {factor['high']:.2f})"


if __name__ == "__main__":
    app()
