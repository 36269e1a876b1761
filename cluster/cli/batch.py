"""``banyan batch``: one line of results for each line of a file, and a summary."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from cluster.cli.endpoint import Target, target
from cluster.cli.failures import fail, refuse
from cluster.cli.progress import Pace, line_progress
from cluster.evaluation.reports import write_json
from cluster.jobs.exports import export
from cluster.jobs.formats import ExportFormat, InputKind
from cluster.jobs.inputs import JobInput, look_at
from cluster.jobs.outputs import Identity, Outputs
from cluster.jobs.run import Job, JobStopped, Settings
from cluster.jobs.summary import MAX_PATHS, Summary, summarize, summary_lines, summary_tables
from cluster.jobs.tables import write_parquet
from cluster.jobs.window import Window


@dataclass(frozen=True)
class BatchOptions:
    """Options of the command."""

    given: Path
    output: Path
    settings: Settings
    kind: InputKind | None = None
    """None: detected from the file."""
    in_flight: int = 1024
    """Most requests in flight."""
    retry_failed: bool = False
    json_file: Path | None = None
    parquet_file: Path | None = None
    export_file: Path | None = None
    """Requires trees."""
    checks_field: str | None = None
    """See `cluster.evaluation.problem_files.parse_problem`."""
    export_format: ExportFormat = ExportFormat.BANYAN
    timeout_s: float = 600.0
    api_key: str | None = None


def run_batch(options: BatchOptions, url: str | None, config: Path | None, console: Console) -> None:
    """Runs the lines of a job that are not done yet, then prints a summary of the whole job. Without a URL it uses the
    application of the cluster it runs on, or the one at the default address, or one of its own.

    Ends the command with status 1 if the service is gone, or no line has a result.
    """
    given = look_at(options.given, options.kind)._replace(checks_field=options.checks_field)
    problems = given.kind is InputKind.PROBLEMS
    if not problems and (options.settings.trees or options.export_file):
        refuse("--trees and --export need problems: requests of a batch file determine their own output")
    with target(url, config, options.api_key, console) as driven:
        done = asyncio.run(_do(options, given, driven, console))
    for table in summary_tables(done.summary):
        console.print(table)
        console.print()
    for line in summary_lines(done.summary, done.elapsed_s):
        console.print(Text(line), soft_wrap=True)
    if done.summary.errors:
        console.print(Text(f"errors, each with its line: {done.errors_path}"), style="yellow", soft_wrap=True)
    _write_files(options, done, console)
    if done.stopped:
        fail(f"{done.stopped}\nWhat is done is in {options.output}; the same command resumes the job")
    if not done.summary.results:
        fail("no line has a result")


@dataclass(frozen=True)
class Done:
    """A job that has ended, or was stopped for the reason ``stopped``."""

    summary: Summary
    settings: dict[str, Any]
    errors_path: Path
    elapsed_s: float
    stopped: str | None


async def _do(options: BatchOptions, given: JobInput, driven: Target, console: Console) -> Done:
    settings, problems = options.settings, given.kind is InputKind.PROBLEMS
    async with driven.client(options.api_key, options.timeout_s, options.in_flight, waits_for_room=False) as client:
        identity = Identity(
            input_sha256=given.sha256,
            input_kind=given.kind,
            lines=given.lines,
            model=await client.model(),  # fails at once if nothing listens
            search=settings.search if problems else {},
            seed=settings.seed if problems else 0,
            trees=settings.trees,
            checks_field=given.checks_field if problems else None,
        )
        with Outputs(options.output, identity, given.last, options.retry_failed) as outputs:
            if outputs.done.count:
                console.print(Text(f"{outputs.done.count:,} of {given.lines:,} lines are done already"), style="dim")
            window = Window(options.in_flight)
            pace = Pace(given.lines, outputs.done.count)

            def note() -> str:
                return f", {window.in_flight} in flight" + (f", {outputs.failed:,} errors" if outputs.failed else "")

            stopped = None
            async with line_progress(console, pace, note) as on_line:
                try:
                    await Job(given, outputs, settings, client, window, on_line).run()
                except JobStopped as error:
                    stopped = str(error)
            outputs.sync()
            paths = int(str(settings.search.get("n") or MAX_PATHS))
            if stopped is None and outputs.done.count != given.lines:
                raise AssertionError(f"{given.lines} lines, and {outputs.done.count} are done")
            summary = summarize(given.lines, outputs.results(), outputs.errors(), paths)
            told = identity.model_dump(mode="json") | {"input": given.path.name, "endpoint": driven.name}
            return Done(summary, told, outputs.errors_path, pace.elapsed_s, stopped)


def _write_files(options: BatchOptions, done: Done, console: Console) -> None:
    """Writes the requested files. If one fails, the others are still written."""
    failures: list[str] = []
    if options.json_file is not None:
        try:
            write_json(options.json_file, done.summary.as_json(done.elapsed_s, done.settings))
        except OSError as error:
            failures.append(_unwritten(options.json_file, error))
    if options.parquet_file is not None:
        try:
            asyncio.run(write_parquet(options.output, options.parquet_file))
        except (OSError, ValueError) as error:  # ValueError: the columns do not fit the table
            failures.append(_unwritten(options.parquet_file, error))
    if options.export_file is not None:
        try:
            count = asyncio.run(export(options.output, options.export_file, options.export_format))
            console.print(Text(f"exported {count:,} examples to {options.export_file}"), soft_wrap=True)
        except (OSError, ValueError) as error:
            failures.append(_unwritten(options.export_file, error))
    if failures:
        refuse("\n".join(failures))


def _unwritten(path: Path, error: OSError | ValueError) -> str:
    return f"cannot write {path}: {getattr(error, 'strerror', None) or error}"
