"""``banyan check-prm``: what a reward model knows, before anybody searches with it."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from cluster.cli.endpoint import Target, target
from cluster.cli.failures import bad_lines, fail, refuse, unwritten
from cluster.cli.progress import progress_bar
from cluster.client.printable import printable
from cluster.evaluation.card_fit import TooFewProblems, fit_card
from cluster.evaluation.prm_check import FORMAT, PrmSummary, ScoredSolution, score_all, summarize, vote_pools
from cluster.evaluation.prm_metrics import DECISION_THRESHOLD
from cluster.evaluation.prm_plot import plot
from cluster.evaluation.prm_tables import card_table, tables
from cluster.evaluation.problem_files import OnBadLine
from cluster.evaluation.reports import most_frequent, write_json, write_text
from cluster.evaluation.step_files import LabelledSolution, read_solutions


@dataclass(frozen=True)
class CheckOptions:
    """Options of the command."""

    solutions: Path
    threshold: float = DECISION_THRESHOLD
    in_flight: int = 16
    on_bad_line: OnBadLine = OnBadLine.REFUSE
    limit: int | None = None
    output: Path | None = None
    plot_file: Path | None = None
    card: Path | None = None
    timeout_s: float = 600.0
    api_key: str | None = None


@dataclass
class _Check:
    """The check so far, also of an interrupted one."""

    endpoint: str
    scored: list[ScoredSolution]
    model: str | None = None
    elapsed_s: float = 0.0


def run_check(options: CheckOptions, url: str | None, config: Path | None, console: Console) -> None:
    """Has a file's solutions scored, prints what that says of the reward model, and writes the files. Finds the
    application as `target` says.

    A wrong file is refused before anything is started or sent. Ends the command with status 1 if every request failed.
    """
    file = read_solutions(options.solutions, options.on_bad_line, options.limit)
    for line in bad_lines(tuple(file.skipped)):
        console.print(Text(f"skipped {line.strip()}"), style="yellow", soft_wrap=True)
    with target(url, config, options.api_key, console) as driven:
        check = _Check(driven.name, [])
        complete = False
        try:
            asyncio.run(_score(options, driven, file.solutions, check, console))
            complete = True
        finally:
            if any(each.error is None for each in check.scored):
                summary = asyncio.run(summarize(check.scored, check.elapsed_s, options.threshold))
                _show(check, summary, complete, console)
                _save(options, check, summary, complete)
                if options.card is not None and complete:
                    _write_card(options.card, options, check, console)
    if all(each.error is not None for each in check.scored):
        fail("every request failed\n" + "\n".join(most_frequent([each.error for each in check.scored if each.error])))


async def _score(
    options: CheckOptions, driven: Target, solutions: list[LabelledSolution], check: _Check, console: Console
) -> None:
    async with driven.client(options.api_key, options.timeout_s, options.in_flight) as client:
        check.model = await client.model()  # fails at once if nothing listens
        with progress_bar(console) as progress:
            task = progress.add_task("solutions", total=len(solutions), note="")
            began = time.monotonic()
            failed = 0

            def arrived(scored: ScoredSolution) -> None:
                nonlocal failed
                check.scored.append(scored)
                check.elapsed_s = time.monotonic() - began
                failed += scored.error is not None
                progress.update(task, advance=1, note=f"{failed} failed" if failed else "")

            await score_all(client.post, solutions, options.in_flight, arrived)


def _show(check: _Check, summary: PrmSummary, complete: bool, console: Console) -> None:
    for table in tables(summary):
        console.print(table)
        console.print()
    for line in most_frequent([each.error for each in check.scored if each.error]):
        console.print(Text(f"failed: {line}"), style="red", soft_wrap=True)
    if not complete:
        console.print("interrupted: these are the solutions done until then", style="yellow")


def _save(options: CheckOptions, check: _Check, summary: PrmSummary, complete: bool) -> None:
    """Writes the requested files. If one fails, the other is still written."""
    failures: list[str] = []
    if options.output is not None:
        try:
            write_json(options.output, _report(options, check, summary, complete))
        except OSError as error:
            failures.append(unwritten(options.output, error))
    if options.plot_file is not None:
        title = printable(f"The reward model of {check.model} on {options.solutions.name}")
        try:
            write_text(options.plot_file, plot(summary, title))
        except OSError as error:
            failures.append(unwritten(options.plot_file, error))
    if failures:
        refuse("\n".join(failures))


def _write_card(path: Path, options: CheckOptions, check: _Check, console: Console) -> None:
    """Fits the card on the solutions, prints what it says, and writes it."""
    try:
        card = fit_card(asyncio.run(vote_pools(check.scored)), check.model, options.solutions.name)
    except TooFewProblems as error:
        refuse(f"no card: {error}")
    console.print(card_table(card))
    console.print(Text(card.verdict), style="green" if card.helps else "yellow", soft_wrap=True)
    try:
        write_text(path, card.model_dump_json(indent=2) + "\n")
    except OSError as error:
        refuse(unwritten(path, error))


def _report(options: CheckOptions, check: _Check, summary: PrmSummary, complete: bool) -> dict[str, Any]:
    settings = {
        "solutions": options.solutions.name,
        "in_flight": options.in_flight,
        "endpoint": check.endpoint,
        "model": check.model,
    }
    rows = [
        {"line": each.solution.line, "rewards": each.rewards, "error": each.error}
        for each in sorted(check.scored, key=lambda each: each.position)
    ]
    return {"format": FORMAT, "complete": complete, "settings": settings, "summary": summary.as_json(), "rows": rows}
