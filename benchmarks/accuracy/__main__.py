"""Measures searches, or compares two runs.

python -m benchmarks.accuracy --problems 200 --budget 960 --strategy beam_search --strategy dvts:m=8 --json new.json
python -m benchmarks.accuracy compare old.json new.json --keep --better 'beam_search @ 3840'
"""

import asyncio
import time
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.accuracy.measuring import measure_memoized, measure_on_vllm
from benchmarks.accuracy.report import compared, kept_comparison, pairs_table, rows_as_json, summary, table
from benchmarks.accuracy.searches import searches
from benchmarks.record import write_result
from cluster.evaluation.search_field import SearchFieldError
from deployments.embedded.problems import Split, draw_problems

console = Console(width=180)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


class EngineKind(StrEnum):
    MEMOIZED = "memoized"
    """The embedded models without vLLM: the same accuracy in a fraction of the time. All children of a call arrive
    together, so there are fewer PRM calls than on engines, and seconds are meaningless."""
    VLLM = "vllm"


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    strategy: Annotated[
        list[str] | None, typer.Option(help="Strategy in the syntax of `banyan eval`; may be repeated; all if unset.")
    ] = None,
    budget: Annotated[list[int] | None, typer.Option(min=60, help="Tokens; may be repeated; 960 if unset.")] = None,
    split: Annotated[Split, typer.Option(help="Choose settings by validation, report test.")] = Split.VALIDATION,
    problems: Annotated[int, typer.Option(min=1, max=10_000)] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the problems and of the searches.")] = 1,
    engines: Annotated[EngineKind, typer.Option(help="memoized: without vLLM, for accuracy.")] = EngineKind.MEMOIZED,
    in_flight: Annotated[int, typer.Option(min=1, max=256, help="Problems in flight.")] = 64,
    processes: Annotated[int, typer.Option(min=1, max=64, help="Processes with memoized models.")] = 1,
    lmcache: Annotated[bool, typer.Option(help="With LMCache; for vLLM only.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Result file, if not in benchmarks/results.")] = None,
) -> None:
    """Measures accuracy, pool and costs."""
    if context.invoked_subcommand:
        return
    try:
        asked = searches(strategy or (), budget or (960,))
    except SearchFieldError as error:
        raise typer.BadParameter(str(error)) from error
    drawn = list(islice(draw_problems(split, seed), problems))
    began = time.monotonic()
    if engines is EngineKind.VLLM:
        rows = asyncio.run(measure_on_vllm(drawn, asked, seed, in_flight, lmcache))
    else:
        rows = measure_memoized(drawn, asked, seed, in_flight, processes)
    seconds = round(time.monotonic() - began, 1)
    summaries = [summary(each, [row for row in rows if row.search == each.name]) for each in asked]
    drawn_from = {"split": split, "problems": problems, "seed": seed}
    ran_on = {"engines": engines, "lmcache": lmcache, "in_flight": in_flight, "processes": processes}
    figures = {**drawn_from, **ran_on, "seconds": seconds, "searches": summaries, **rows_as_json(rows)}
    path = write_result("accuracy", figures, json_file)
    console.print(table(summaries))
    console.print(f"{problems} {split} problems of seed {seed} in {seconds:.0f} s; kept in {path}")


@app.command()
def compare(
    before: Path,
    after: Path,
    against: Annotated[str | None, typer.Option(help="Compare each search of AFTER with this one of BEFORE.")] = None,
    keep: Annotated[
        bool, typer.Option(help="Write both runs without their rows, and claims, to benchmarks/results.")
    ] = False,
    better: Annotated[
        list[str] | None, typer.Option(help="Search that must be better, not only no worse; may be repeated.")
    ] = None,
) -> None:
    """Paired differences of two runs on the same problems."""
    try:
        pairs = compared(before, after, against)
        console.print(pairs_table(pairs))
        if keep:
            path = write_result("accuracy", kept_comparison(before, after, pairs, better or []))
            console.print(f"kept in {path}")
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


if __name__ == "__main__":
    app()
