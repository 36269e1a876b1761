"""CPU cost of the search controller per step, with a generator and a scorer that cost nothing.

Every strategy grows trees of 256 to 65,536 nodes, with all siblings distinct and with most of them repeated, under the
controller's garbage collection policy. Measured is the CPU time of the event loop's thread without that of the fakes:
from the start of a search until its reply is written, and of each callback of the loop.

Some sizes exceed the caps of served searches: widths above 256 (65,536 nodes are 768 paths of up to 100 steps) and
iterations above the strategies' caps are set without checks. Greedy has one path, so its tree is as large as a path may
be long. ETS keeps the best quarter of its leaves instead of solving its integer program, which a served search solves
in another process.

    python -m benchmarks.controller_cost [STRATEGY ...]
"""

import asyncio
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.controller_searches import SIZES, Measured, measure
from benchmarks.record import claim, write_result
from deployments.loop.garbage import GarbagePolicy
from search.answers.equivalence import AnswerMatcher
from search.strategies.catalog import STRATEGIES

SHARES = (0.0, 0.6)
"""Shares of siblings that repeat another's text."""
MAX_RATIO = 3.0
MAX_HOLD_MS = 5.0
MAX_GROWTH = 0.05
GROWING = ("rebase", 16_384, 10)
"""Strategy, nodes and number of the searches that are run twice over to see whether memory grows."""
console = Console(stderr=True)


class Side:
    """One strategy with one share of repeated siblings: several measurements at every size."""

    def __init__(self, strategy: str, repeated: float) -> None:
        self.strategy = strategy
        self.repeated = repeated
        self.runs: dict[int, list[Measured]] = {}

    @property
    def name(self) -> str:
        return f"{self.strategy}, {self.repeated:.0%} repeated"

    def step_us(self, size: int) -> float:
        """The least of all repeats: what the others took more is the machine's noise."""
        return min(run.step_us for run in self.runs[size])

    def hold_ms(self, size: int) -> float:
        return min(run.holds[0].seconds for run in self.runs[size]) * 1e3

    @property
    def claims(self) -> list[dict[str, Any]]:
        sizes = sorted(self.runs)
        holds = round(max(map(self.hold_ms, sizes)), 2)
        complete = sizes[-1] == max(SIZES) or self.strategy == "greedy"
        ratio = round(self.step_us(sizes[-1]) / self.step_us(sizes[0]), 2)
        return [
            claim(
                f"{self.name}: cost per step at {sizes[-1]} nodes over {sizes[0]}",
                ratio,
                MAX_RATIO,
                complete and ratio <= MAX_RATIO,
            ),
            claim(
                f"{self.name}: longest hold of the event loop, ms",
                holds,
                MAX_HOLD_MS,
                complete and holds <= MAX_HOLD_MS,
            ),
        ]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [
            {"strategy": self.strategy, "repeated": self.repeated, "size": size, "runs": [run.figures for run in runs]}
            for size, runs in self.runs.items()
        ]


async def measure_side(side: Side, sizes: list[int], repeats: int, seconds: float, matcher: AnswerMatcher) -> None:
    for size in sizes:
        if side.runs and size * side.step_us(max(side.runs)) * 1e-6 > seconds:
            console.print(f"{side.name}: {size} nodes would take more than {seconds:g} s")
            return
        side.runs[size] = [await measure(side.strategy, size, side.repeated, matcher) for _ in range(repeats)]
        run = min(side.runs[size], key=lambda each: each.holds[0].seconds)
        console.print(
            f"{side.name}: {run.nodes} nodes ({run.stop_reason}), {side.step_us(size):.1f} us a step, "
            f"{run.tree_us:.1f} more with the tree in the reply; held {run.holds[0].seconds * 1e3:.1f} ms by "
            f"{run.holds[0].what}"
        )


async def memory_claim(matcher: AnswerMatcher) -> dict[str, Any]:
    """Claim that memory does not grow over many searches while full garbage collections are off."""
    strategy, size, count = GROWING
    used: list[int] = []
    for _ in range(2):
        for _ in range(count):
            await measure(strategy, size, SHARES[-1], matcher)
        used.append(psutil.Process().memory_info().rss)
    growth = round(used[1] / used[0] - 1.0, 4)
    name = f"memory after {2 * count} searches of {size} nodes over that after {count}, less 1"
    return claim(name, growth, MAX_GROWTH, growth <= MAX_GROWTH)


async def measure_all(strategies: list[str], sizes: list[int], repeats: int, seconds: float) -> dict[str, Any]:
    matcher = AnswerMatcher()
    await matcher.start()
    policy = GarbagePolicy(is_busy=lambda: True)
    policy.start()
    sides = [Side(strategy, share) for strategy in strategies for share in SHARES]
    try:
        await measure("rebase", min(SIZES), 0.0, matcher)  # warms up
        for side in sides:
            await measure_side(side, sizes, repeats, seconds, matcher)
        claims = [claim for side in sides for claim in side.claims] + [await memory_claim(matcher)]
    finally:
        matcher.close()
    table = Table("strategy", *(f"µs a step at {size}" for size in sizes), "ratio", "longest hold, ms", "tree, µs")
    for side in sides:
        costs = [f"{side.step_us(size):.1f}" if size in side.runs else "-" for size in sizes]
        ratio, hold = (f"{claim['value']:.2f}{'' if claim['holds'] else ' !'}" for claim in side.claims)
        table.add_row(side.name, *costs, ratio, hold, f"{side.runs[max(side.runs)][0].tree_us:.1f}")
    console.print(table)
    console.print(f"{claims[-1]['name']}: {claims[-1]['value']:.1%}")
    return {"repeats": repeats, "rows": [row for side in sides for row in side.rows], "claims": claims}


def main(
    strategies: Annotated[list[str] | None, typer.Argument()] = None,
    repeats: Annotated[int, typer.Option(min=1, max=20)] = 3,
    largest: Annotated[int, typer.Option(help="Nodes of the largest trees.")] = max(SIZES),
    seconds: Annotated[float, typer.Option(help="Skip searches that would take longer.")] = 120.0,
) -> None:
    sizes = [size for size in SIZES if size <= largest]
    figures = asyncio.run(measure_all(strategies or list(STRATEGIES), sizes, repeats, seconds))
    path = write_result("controller_cost", figures)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
