"""``banyan eval``: from a file of problems to a table, with a progress bar in between."""

import asyncio
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from cluster.cli.endpoint import Target, target
from cluster.cli.failures import bad_lines, fail, refuse, unwritten
from cluster.cli.progress import progress_bar
from cluster.client.client import Client
from cluster.evaluation.loop import Plan, evaluate
from cluster.evaluation.problem_files import EvalProblem, OnBadLine, read_problems
from cluster.evaluation.reports import error_lines, paired_table, report, summary_table, write_json
from cluster.evaluation.statistics import Row, StrategySummary, summarize
from cluster.evaluation.training_file import TrainingFile


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of the command."""

    problems: Path
    strategies: tuple[str, ...]
    plan: Plan
    on_bad_line: OnBadLine = OnBadLine.REFUSE
    limit: int | None = None
    checks_field: str | None = None
    """See `cluster.evaluation.problem_files.parse_problem`."""
    json_file: Path | None = None
    export_file: Path | None = None
    """File for the trees as training data; requires ``plan.trees``."""
    timeout_s: float = 600.0
    api_key: str | None = None


@dataclass
class Results:
    """Results so far, also of an interrupted evaluation."""

    endpoint: str | None = None
    """Name of the endpoint or application."""
    model: str | None = None
    rows: list[Row] = field(default_factory=list)
    elapsed: dict[str, float] = field(default_factory=dict)
    """Wall-clock seconds by strategy, once it has begun."""
    export: TrainingFile | None = None
    """File for training data; None if it was not requested."""

    @property
    def summaries(self) -> list[StrategySummary]:
        return [summarize(strategy, self.rows, seconds) for strategy, seconds in self.elapsed.items()]


def run_evaluation(options: EvaluationOptions, url: str | None, config: Path | None, console: Console) -> None:
    """Runs an evaluation, prints its table and writes its files. Without a URL it uses the application of the cluster
    it runs on, or the one at the default address, or one of its own.

    Wrong options and files are refused before anything is started or sent. Ends the command with status 1 if every
    request failed.
    """
    for strategy in options.strategies:
        options.plan.search(strategy)
    file = read_problems(options.problems, options.on_bad_line, options.limit, options.checks_field)
    if options.export_file is not None and any(problem.test is not None for problem in file.problems):
        refuse("--export needs problems with an answer, not with a test")
    for line in bad_lines(tuple(file.skipped)):
        console.print(Text(f"skipped {line.strip()}"), style="yellow", soft_wrap=True)
    complete = False
    with _training_file(options.export_file) as export:
        results = Results(export=export)
        try:
            with target(url, config, options.api_key, console) as driven:
                results.endpoint = driven.name
                asyncio.run(_ask_all(options, driven, file.problems, results, console))
                complete = True
        finally:
            if results.rows:
                _show(results, complete, console)
                _save(options, results, complete, console)
    if all(row.error is not None for row in results.rows):
        fail("every request failed")


def _training_file(path: Path | None) -> TrainingFile | nullcontext[None]:
    if path is None:
        return nullcontext()
    try:
        return TrainingFile(path)
    except OSError as error:
        refuse(unwritten(path, error))


async def _ask_all(
    options: EvaluationOptions, driven: Target, problems: list[EvalProblem], results: Results, console: Console
) -> None:
    async with driven.client(options.api_key, options.timeout_s, options.plan.in_flight) as client:
        results.model = await client.model()  # fails at once if nothing listens
        with progress_bar(console) as progress:
            for strategy in options.strategies:
                await _ask(client, strategy, options.plan, problems, results, progress)


async def _ask(
    client: Client, strategy: str, plan: Plan, problems: list[EvalProblem], results: Results, progress: Progress
) -> None:
    task = progress.add_task(strategy, total=len(problems), note="")
    began = time.monotonic()
    right = failed = done = 0

    def arrived(row: Row) -> None:
        nonlocal right, failed, done
        results.rows.append(row)
        done, right, failed = done + 1, right + row.right, failed + (row.error is not None)
        results.elapsed[strategy] = time.monotonic() - began
        note = f"{right / done:.0%} right" + (f", {failed} failed" if failed else "")
        progress.update(task, advance=1, note=note)

    export = results.export
    if export is not None:
        export.begin()
    await evaluate(client.ask, problems, strategy, plan, arrived, export.put if export is not None else None)


def _show(results: Results, complete: bool, console: Console) -> None:
    summaries = results.summaries
    console.print(summary_table(summaries))
    if len(summaries) > 1:
        console.print()
        console.print(paired_table(summaries, results.rows))
    for line in error_lines(results.rows):
        console.print(Text(f"failed: {line}"), style="red", soft_wrap=True)
    if degraded := sum(summary.degraded for summary in summaries):
        console.print(
            f"{degraded} answers are degraded: steps were not scored, or the step hook failed", style="yellow"
        )
    if not complete:
        console.print("interrupted: these are the problems done until then", style="yellow")


def _save(options: EvaluationOptions, results: Results, complete: bool, console: Console) -> None:
    """Writes the requested files. If one fails, the other is still written."""
    failures: list[str] = []
    if options.json_file is not None:
        try:
            settings = _settings(options, results)
            write_json(options.json_file, report(settings, results.summaries, results.rows, complete))
        except OSError as error:
            failures.append(unwritten(options.json_file, error))
    if results.export is not None:
        try:
            results.export.finish()
            console.print(Text(results.export.summary), soft_wrap=True)
        except OSError as error:
            failures.append(unwritten(results.export.path, error))
    if failures:
        refuse("\n".join(failures))


def _settings(options: EvaluationOptions, results: Results) -> dict[str, Any]:
    return {
        "problems": options.problems.name,
        "strategies": {name: options.plan.search(name) for name in options.strategies},
        "n": options.plan.n,
        "seed": options.plan.seed,
        "in_flight": options.plan.in_flight,
        "endpoint": results.endpoint,
        "model": results.model,
    }
