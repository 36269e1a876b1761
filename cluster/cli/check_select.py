"""``banyan check-select``: what it is worth that a model reads its solutions, before anybody searches so."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from cluster.cli.endpoint import Target, target
from cluster.cli.failures import bad_lines, fail, refuse, unwritten
from cluster.cli.progress import progress_bar
from cluster.evaluation.card_fit import TooFewProblems
from cluster.evaluation.problem_files import EvalProblem, OnBadLine, read_problems
from cluster.evaluation.reader_check import ReadingPlan, ReadProblem, fit_reader_card, read_all
from cluster.evaluation.reader_tables import reader_table
from cluster.evaluation.reports import most_frequent, write_json, write_text
from search.reader_card import ReaderCard

FORMAT = 1


@dataclass(frozen=True)
class ReaderCheckOptions:
    """Options of the command."""

    problems: Path
    reading: ReadingPlan
    on_bad_line: OnBadLine = OnBadLine.REFUSE
    limit: int | None = None
    output: Path | None = None
    card: Path | None = None
    timeout_s: float = 600.0
    api_key: str | None = None


@dataclass
class _Check:
    """The check so far, also of an interrupted one."""

    model: str | None = None
    read: list[ReadProblem] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def run_reader_check(options: ReaderCheckOptions, url: str | None, config: Path | None, console: Console) -> None:
    """Has a file's problems solved and their solutions read, prints what that says of the reader, and writes the files.
    Finds the application as `target` says.

    Wrong options and files are refused before anything is started or sent. Ends the command with status 1 if every
    request failed.
    """
    search = options.reading.search
    file = read_problems(options.problems, options.on_bad_line, options.limit)
    if any(problem.test is not None for problem in file.problems):
        refuse("the problems must have an answer, not a test")
    for line in bad_lines(tuple(file.skipped)):
        console.print(Text(f"skipped {line.strip()}"), style="yellow", soft_wrap=True)
    check, complete = _Check(), False
    with target(url, config, options.api_key, console) as driven:
        try:
            asyncio.run(_read(options, driven, file.problems, check, console))
            complete = True
        finally:
            for line in most_frequent(check.errors):
                console.print(Text(f"failed: {line}"), style="red", soft_wrap=True)
            card = _fitted(options, check, console) if check.read else None
            _save(options, check, search, card, complete)
    if not check.read:
        fail("every request failed")


async def _read(
    options: ReaderCheckOptions, driven: Target, problems: list[EvalProblem], check: _Check, console: Console
) -> None:
    plan = options.reading.plan
    async with driven.client(options.api_key, options.timeout_s, plan.in_flight) as client:
        check.model = await client.model()  # fails at once if nothing listens
        with progress_bar(console) as progress:
            task = progress.add_task(options.reading.strategy, total=len(problems), note="")

            def arrived(read: ReadProblem | None, error: str | None) -> None:
                if read is not None:
                    check.read.append(read)
                if error is not None:
                    check.errors.append(error)
                note = f"{sum(each.share < 1 for each in check.read)} contested"
                progress.update(task, advance=1, note=note + (f", {len(check.errors)} failed" if check.errors else ""))

            await read_all(client.ask, problems, options.reading, arrived)


def _fitted(options: ReaderCheckOptions, check: _Check, console: Console) -> ReaderCard | None:
    """Prints what the card says; None if the problems do not suffice for one."""
    try:
        card = fit_reader_card(check.read, options.reading, check.model, options.problems.name)
    except TooFewProblems as error:
        console.print(Text(f"no card: {error}"), style="yellow", soft_wrap=True)
        return None
    console.print(reader_table(card))
    console.print(Text(card.verdict), style="green" if card.helps else "yellow", soft_wrap=True)
    return card


def _save(
    options: ReaderCheckOptions, check: _Check, search: dict[str, object], card: ReaderCard | None, complete: bool
) -> None:
    """Writes the requested files; no card of an interrupted check. If one fails, the other is still written."""
    failures: list[str] = []
    if options.output is not None and check.read:
        content: dict[str, Any] = {
            "format": FORMAT,
            "complete": complete,
            "search": search,
            "seed": options.reading.plan.seed,
            "model": check.model,
            "card": card and card.model_dump(mode="json"),
            "problems": [each._asdict() for each in check.read],
            "failed": len(check.errors),
        }
        try:
            write_json(options.output, content)
        except OSError as error:
            failures.append(unwritten(options.output, error))
    if options.card is not None and card is not None and complete:
        try:
            write_text(options.card, card.model_dump_json(indent=2) + "\n")
        except OSError as error:
            failures.append(unwritten(options.card, error))
    if failures:
        refuse("\n".join(failures))
