"""Measures how fast the working tree is relative to another commit, in one run.

Two pairs of models one after the other; for each pair both applications run beside each other and take turns on the
same problems and seeds, so that a busy machine is busy for both. A turn is a batch with 16 requests in flight, then
problems one at a time. Exits with 1 if the working tree is slower than is allowed.

    python -m benchmarks.pace --base main
    python -m benchmarks.pace --base v0.1.0 --pair embedded

``--minutes`` limits the number of rounds, but each pair has at least two. Starting both applications takes half of ten
minutes on two cores, and the first run takes longer, since the heavy pair is written and compiled in it. To fit, the
heavy pair's problems are all of level 2 (of five), and it is measured first, so that the embedded pair gets the time
that is left. ``--minutes 17`` has room for the default number of rounds, 3 and 4. Installing packages for a base with
another lock file is not counted.
"""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.model_pairs import PairName
from benchmarks.pace.applications import applications
from benchmarks.pace.checkouts import Checkout, base_checkout, short_commit, this_checkout
from benchmarks.pace.figures import Comparison
from benchmarks.pace.rounds import IN_FLIGHT, MIN_ROUNDS, SEARCH, Load, Round, measure
from benchmarks.record import show_claims, write_result

STOP_S = 15.0
"""Part of a pair's time that is reserved for the shutdown of its applications."""
TEMPORARY = "/tmp"
"""Parent of the temporary directory. Short, since the path of a Unix socket has at most 107 characters."""
console = Console(stderr=True)
LOADS = {PairName.HEAVY: Load(problems=16, alone=2, level=2), PairName.EMBEDDED: Load(problems=48, alone=8)}
ROUNDS = {PairName.HEAVY: 3, PairName.EMBEDDED: 4}


def compare(
    pair: PairName, checkouts: Sequence[Checkout], directory: Path, rounds: int | None, deadline: float
) -> Comparison:
    """Serves a pair of models from both checkouts and measures them; ``deadline`` in monotonic time."""

    def show(measured: Round) -> None:
        sides = (
            f"{name} {turn.in_flight.problems_per_second:.3f} problems/s, alone "
            f"{', '.join(f'{latency:.2f}' for latency in turn.alone.latencies_s)} s"
            for name, turn in measured.items()
        )
        console.print(f"{pair}: {'; '.join(sides)}")

    began = time.monotonic()
    with applications(checkouts, pair.models, directory / pair[0], os.environ) as running:
        console.print(f"{pair}: both applications are healthy after {time.monotonic() - began:.0f} s")
        return Comparison(asyncio.run(measure(running, LOADS[pair], rounds or ROUNDS[pair], deadline - STOP_S, show)))


def report(base: str, comparisons: Mapping[PairName, Comparison], seconds: float) -> bool:
    """Writes and prints the figures; returns whether all claims hold."""
    claims = [claim for pair, comparison in comparisons.items() for claim in comparison.claims(pair)]
    figures = {
        "base": base,
        "search": SEARCH,
        "in_flight": IN_FLIGHT,
        "seconds": round(seconds, 1),
        "claims": claims,
        "pairs": {pair: LOADS[pair]._asdict() | comparison.json for pair, comparison in comparisons.items()},
    }
    path = write_result("pace", figures)
    for pair, comparison in comparisons.items():
        console.print(comparison.table(pair))
    show_claims(console, claims)
    console.print(f"kept in {path.relative_to(path.parents[2])}, after {seconds:.0f} s")
    return all(claim["holds"] for claim in claims)


def main(
    base: Annotated[str, typer.Option(help="The commit to compare with.")],
    pair: Annotated[list[PairName] | None, typer.Option(help="A pair of models; both if unset.")] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=MIN_ROUNDS, max=50, help="At most, for each pair. Unset: heavy 3, embedded 4.", show_default=False
        ),
    ] = None,
    minutes: Annotated[float, typer.Option(min=1, help="For the whole run; limits the number of rounds.")] = 10.0,
) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the applications, as Ctrl-C does
    try:
        commit = short_commit(base)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--base") from error
    pairs = [each for each in PairName if each in (pair or PairName)]
    comparisons: dict[PairName, Comparison] = {}
    with (
        tempfile.TemporaryDirectory(prefix="pace-", dir=TEMPORARY, ignore_cleanup_errors=True) as temporary,
        base_checkout(commit, Path(temporary) / "base") as theirs,
    ):
        began = time.monotonic()
        for index, each in enumerate(pairs):
            left = began + 60 * minutes - time.monotonic()
            deadline = time.monotonic() + left / (len(pairs) - index)
            checkouts = (theirs, this_checkout())
            comparisons[each] = compare(each, checkouts, Path(temporary), rounds, deadline)
        seconds = time.monotonic() - began
    if not report(commit, comparisons, seconds):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
