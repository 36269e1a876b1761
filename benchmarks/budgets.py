"""What small token budgets leave: how many searches have an answer, and how many the right one, beside another commit.

Every strategy with its defaults, as a request has it that sets ``max_completion_tokens`` and nothing else. Both sides
run on the memoized models, with the same problems and seeds, one after the other.

    python -m benchmarks.budgets compare --base COMMIT
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.engines import solve_all
from benchmarks.pace.checkouts import ROOT, short_commit, worktree
from benchmarks.record import claim, show_claims, write_result
from cluster.evaluation.loop import problem_seed
from deployments.embedded.problems import Problem, Split, draw_problems
from search.answers.equivalence import AnswerMatcher
from search.run.runner import run_search
from search.settings import parse_search
from search.strategies.catalog import STRATEGIES
from search.tree import SearchTree, TreeError

BUDGETS = (16, 64, 128, 256, 512, 960, 1024)
COMPARED = 960
"""The budget at which no strategy may be right less often than on the other side."""
GREEDY = "greedy"
IN_FLIGHT = 8
console = Console(width=140)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


class Row(NamedTuple):
    """One problem under one strategy at one budget."""

    strategy: str
    budget: int
    problem: str
    answered: bool
    right: bool
    tokens: int
    """Tokens generated on all paths."""
    answer_tokens: int
    paths: int
    """Number of different ways down the tree: nodes that were written and have nothing below them."""
    stop_reason: str


async def measure(problems: Sequence[Problem], strategies: Sequence[str], seed: int) -> list[Row]:
    """The rows of all strategies and budgets; the searches of a problem share its memoized prefixes."""
    import torch  # imported here: importing it takes seconds, and comparing rows does not need it

    from benchmarks.memoized import MemoizedModels

    torch.set_num_threads(1)
    matcher = AnswerMatcher()
    await matcher.start()
    models = MemoizedModels(matcher)

    async def measure_problem(problem: Problem, _: int) -> list[Row]:
        with models.problem(problem.text) as (prompt, environment):
            rows: list[Row] = []
            for strategy in strategies:
                for budget in BUDGETS:
                    field = {"strategy": strategy, "budget": {"tokens": budget}}
                    settings = parse_search(field | {"seed": problem_seed(seed, problem.unique_id)})
                    search_id = f"{problem.unique_id}:{strategy}:{budget}"
                    try:
                        outcome = await run_search(problem.text, prompt, settings, environment, search_id=search_id)
                    except TreeError:  # a fault that the base may have
                        rows.append(Row(strategy, budget, problem.unique_id, False, False, 0, 0, 0, "error"))
                        continue
                    answer, cost = outcome.selection.answer, outcome.cost
                    right = answer is not None and await matcher.same(problem.answer, answer)
                    tokens = cost.generated_tokens, cost.answer_tokens
                    ends = (_paths(outcome.tree), str(outcome.stop_reason))
                    rows.append(Row(strategy, budget, problem.unique_id, answer is not None, right, *tokens, *ends))
            return rows

    try:
        by_problem, _ = await solve_all(measure_problem, problems, IN_FLIGHT, seed)
    finally:
        matcher.close()
    return [row for rows in by_problem for row in rows]


def _paths(tree: SearchTree) -> int:
    return sum(node.step is not None and not node.asked_below and not node.children for node in tree.nodes)


class Cell(NamedTuple):
    """The rows of one strategy at one budget, on both sides."""

    strategy: str
    budget: int
    answered: tuple[int, int]
    """Problems with an answer, on the other side and on this one."""
    right: tuple[int, int]
    tokens: tuple[float, float]
    """Mean tokens."""


def cells_of(before: Iterable[Row], after: Iterable[Row]) -> list[Cell]:
    sides: dict[tuple[str, int], tuple[list[Row], list[Row]]] = {}
    for side, rows in enumerate((before, after)):
        for row in rows:
            sides.setdefault((row.strategy, row.budget), ([], []))[side].append(row)
    return [
        Cell(
            *key,
            answered=(sum(row.answered for row in old), sum(row.answered for row in new)),
            right=(sum(row.right for row in old), sum(row.right for row in new)),
            tokens=(_mean(row.tokens for row in old), _mean(row.tokens for row in new)),
        )
        for key, (old, new) in sides.items()
    ]


def claims_of(cells: Iterable[Cell], after: Sequence[Row]) -> list[dict[str, Any]]:
    """The claims about a run: none for budgets that hold less than one path."""
    needed = {row.problem: row.tokens for row in after if row.strategy == GREEDY and row.budget == max(BUDGETS)}
    worse = [cell for cell in cells if cell.answered[1] < cell.answered[0]]
    less_right = [cell for cell in cells if cell.budget == COMPARED and cell.right[1] < cell.right[0]]
    over = sum(row.tokens > row.budget for row in after)
    unanswered = [row for row in after if row.budget >= 2 * needed[row.problem] and not row.answered]
    two_fit = [row for row in after if row.budget >= 2 * needed[row.problem] and row.strategy != GREEDY]
    single = [row for row in two_fit if row.paths < 2]
    errors = sum(row.stop_reason == "error" for row in after)
    return [
        claim("searches that failed", errors, "0", not errors),
        claim("searches above their budget", over, "0", over == 0),
        claim("strategies and budgets with fewer answers than before", len(worse), "0", not worse),
        claim("searches without an answer at twice what greedy decoding needs", len(unanswered), "0", not unanswered),
        claim("searches of one path at twice what greedy decoding needs", len(single), "0", not single),
        claim(f"strategies that are less often right at {COMPARED} tokens", len(less_right), "0", not less_right),
    ]


def table_of(cells: Iterable[Cell], problems: int) -> Table:
    """Per strategy and budget: the share of problems with an answer and with the right one, before and after."""
    shown = Table("answered, right", *map(str, BUDGETS), caption=f"percent of {problems} problems, before → after")
    by_strategy: dict[str, list[Cell]] = {}
    for cell in cells:
        by_strategy.setdefault(cell.strategy, []).append(cell)
    for strategy, own in by_strategy.items():
        for name, figures in ((strategy, [cell.answered for cell in own]), ("", [cell.right for cell in own])):
            shown.add_row(name, *(f"{old / problems:.0%} → {new / problems:.0%}" for old, new in figures))
    return shown


@app.command()
def rows(
    file: Path,
    split: Split = Split.VALIDATION,
    problems: int = 40,
    seed: int = 1,
    strategy: Annotated[list[str] | None, typer.Option()] = None,
) -> None:
    """Measures the ``search`` package that Python imports, and writes the rows to a file."""
    drawn = list(islice(draw_problems(split, seed), problems))
    file.write_text(json.dumps(asyncio.run(measure(drawn, strategy or list(STRATEGIES), seed))))


@app.command()
def compare(
    base: Annotated[str, typer.Option(help="The other commit.")],
    split: Annotated[Split, typer.Option(help="Choose settings by validation, report test.")] = Split.TEST,
    problems: Annotated[int, typer.Option(min=1, max=1000)] = 40,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the problems and of the searches.")] = 57,
) -> None:
    """Measures both sides and writes the result."""
    commit = short_commit(base)
    with TemporaryDirectory() as directory:
        other = Path(directory, "base")
        with worktree(commit, other):
            sides = [_rows_of(root, Path(directory, "rows"), split, problems, seed) for root in (other, ROOT)]
    cells = cells_of(*sides)
    claims = claims_of(cells, sides[1])
    figures = {
        "base": commit,
        "split": split,
        "problems": problems,
        "seed": seed,
        "claims": claims,
        "cells": [cell._asdict() for cell in cells],
    }
    path = write_result("budgets", figures)
    console.print(table_of(cells, problems))
    show_claims(console, claims)
    console.print(f"kept in {path}")


def _rows_of(root: Path, file: Path, split: Split, problems: int, seed: int) -> list[Row]:
    """The rows of the checkout at ``root``, in a process that imports its packages; this file is ours on both sides."""
    options = ["--split", split, "--problems", str(problems), "--seed", str(seed)]
    command = [sys.executable, "-P", __file__, "rows", str(file), *options]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": str(root)}, cwd=root, check=True)
    return [Row(*row) for row in json.loads(file.read_text())]


def _mean(values: Iterable[int]) -> float:
    found = list(values)
    return round(sum(found) / len(found), 1)


if __name__ == "__main__":
    app()
