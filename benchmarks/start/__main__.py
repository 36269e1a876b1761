"""Measures the time from a clone to the first answer of the committed tree (HEAD) beside another commit.

    python -m benchmarks.start --base main
    python -m benchmarks.start --base main --quick

Both sides are set up and started in turns, the base first. A first start has an empty compile cache; a second start has
what the first one left. Conditions: without ``PYTHONDONTWRITEBYTECODE`` and with it, on a machine that is otherwise
quiet, and with it beside a busy process on each core. After the second start with it on a quiet machine, a generator
replica is added. ``--quick`` measures only ``PYTHONDONTWRITEBYTECODE=1`` on a quiet machine. Exits with 1 if a claim
does not hold.
"""

import os
import signal
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.pace.__main__ import TEMPORARY
from benchmarks.pace.checkouts import Checkout, short_commit
from benchmarks.record import show_claims, write_result
from benchmarks.start.application import START_S, Start, started_application
from benchmarks.start.checkouts import clean_checkout, has_uncommitted_changes, set_up
from benchmarks.start.conditions import CONDITIONS, QUIET, Condition, busy_cores, cache_variables, environment, settle
from benchmarks.start.report import FIRST, SECOND, Figures, MeasuredStart, described
from benchmarks.start.scaling import ScaledUp, scale_up
from benchmarks.start.timeline import timeline

console = Console(stderr=True)


class Run:
    """A run of the benchmark: its checkouts, its directory, and what it has measured."""

    def __init__(self, checkouts: Sequence[Checkout], directory: Path) -> None:
        self.figures = Figures([], [], {})
        self._checkouts, self._directory = checkouts, directory
        self._numbers = count()

    def measure(self, conditions: Sequence[Condition]) -> None:
        """Measures the conditions in order. A ``.venv`` is made anew where the bytecode setting changes."""
        writes_bytecode = None
        for condition in conditions:
            if condition.writes_bytecode != writes_bytecode:
                writes_bytecode = condition.writes_bytecode
                for checkout in self._checkouts:
                    self._set_up(checkout, condition)
            with busy_cores() if condition.busy else nullcontext():
                for number in (FIRST, SECOND):
                    for checkout in self._checkouts:
                        self._start(checkout, condition, number)

    def _set_up(self, checkout: Checkout, condition: Condition) -> None:
        inherited = environment(os.environ, self._checkouts, condition)
        done = set_up(checkout, condition.writes_bytecode, inherited, self._new_directory())
        self.figures.set_ups.append(done)
        console.print(f"{checkout.name}, {condition}: set up in {done.seconds:.1f} s, .venv has {done.venv_mb} MB")

    def _start(self, checkout: Checkout, condition: Condition, number: str) -> None:
        """Starts an application; adds a replica to it after the second start of ``QUIET``."""
        caches = self._directory / f"{checkout.name}-{CONDITIONS.index(condition)}"
        variables = environment(os.environ, self._checkouts, condition) | cache_variables(caches)
        if not condition.busy:
            settle()
        with started_application(checkout, self._new_directory(), variables) as application:
            start = application.wait_first_answer()
            measured = MeasuredStart(checkout.name, condition, number, start)
            self.figures.starts.append(measured)
            _show_start(measured)
            if (condition, number) == (QUIET, SECOND) and start.seconds is not None:
                scaled = self.figures.scaled_up[checkout.name] = scale_up(application)
                _show_scaled_up(checkout.name, scaled)

    def _new_directory(self) -> Path:
        """A directory of one set-up or start, not there yet; with a short path, for Ray's sockets."""
        return self._directory / str(next(self._numbers))


def _show_start(measured: MeasuredStart) -> None:
    start: Start = measured.start
    [title] = described([measured])
    console.print(timeline(title, start.processes, start.seconds or START_S, console.width))


def _show_scaled_up(side: str, scaled: ScaledUp) -> None:
    title = (
        f"{side}, a replica is added: listed after {scaled.listed_s} s, first step after {scaled.first_step_s} s"
        f"{f' ({scaled.failure})' if scaled.failure else ''}"
    )
    seconds = max(scaled.first_step_s or 0.0, 1.0, *(row.began for row in scaled.processes))
    console.print(timeline(title, scaled.processes, seconds, console.width))


def main(
    base: Annotated[str, typer.Option(help="The commit to compare with.")],
    quick: Annotated[bool, typer.Option("--quick", help=f"Only {QUIET}.")] = False,
) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends all processes, as Ctrl-C does
    try:
        commit, head = short_commit(base), short_commit("HEAD")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--base") from error
    if uncommitted := has_uncommitted_changes():
        console.print(f"The working tree has changes that are not committed: they are not measured, {head} is.")
    with (
        tempfile.TemporaryDirectory(prefix="start-", dir=TEMPORARY, ignore_cleanup_errors=True) as temporary,
        clean_checkout("base", commit, Path(temporary) / "base") as theirs,
        clean_checkout("ours", head, Path(temporary) / "ours") as ours,
    ):
        run = Run((theirs, ours), Path(temporary))
        run.measure((QUIET,) if quick else CONDITIONS)
    figures = run.figures
    claims = figures.claims()
    sides = {"base": commit, "ours": head, "uncommitted_changes_not_measured": uncommitted}
    path = write_result("start", {**sides, "claims": claims, **figures.json})
    for line in described(figures.starts):
        console.print(line)
    show_claims(console, claims)
    console.print(f"kept in {path.relative_to(path.parents[2])}")
    if not all(each["holds"] for each in claims):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
