"""What is it worth that the model reads its own solutions?

    python -m benchmarks.reading read --gsm8k DIRECTORY --split train --side select-8 --minutes 60
    python -m benchmarks.reading report --gsm8k DIRECTORY --keep
    python -m benchmarks.reading prefixes --gsm8k DIRECTORY --keep

Qwen2.5-Coder-0.5B-Instruct on GSM8K. Every search starts from the solutions that `benchmarks.published` has sampled:
the readers and the majority vote have the same candidates, and only the reading is generated. Each problem is a row of
a file, from which a later run goes on.

``read`` runs one of `SIDES`. With ``select`` the solutions are read wherever two of them differ; what that is worth
where the vote is more contested follows from the same rows, as in ``banyan check-select``. Problems whose solutions are
all right or all wrong are skipped for ``select``, which can only choose among them. ``report`` compares all sides with
the vote.

``prefixes`` runs ``fuse`` with 16 solutions and three more rounds, in which each solution reads four, twice: with the
solutions of a prompt in Banyan's order, and in the order in which they were drawn. It compares the share of prompt
tokens that the prefix cache had, and the seconds.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from unittest.mock import patch

import typer
from rich.console import Console

from benchmarks.published.__main__ import SOLUTIONS, TEST, TRAIN, TRAIN_PROBLEMS, kept_solutions, pools_of
from benchmarks.published.engines import DTYPE, MAX_SOLUTION_TOKENS, generator_settings, started_generator
from benchmarks.published.problems import MathProblem, chosen_problems
from benchmarks.published.report import TEST_PROBLEMS
from benchmarks.published.rows import Row, RowFile
from benchmarks.published.sampling import MAX_STEPS, SEED, NoScorer, in_parallel
from benchmarks.published.strategies import PoolSolution, vote
from benchmarks.record import RESULTS, claim, show_claims, write_result
from cluster.evaluation.card_fit import TooFewProblems
from cluster.evaluation.loop import Plan, problem_seed
from cluster.evaluation.paired_bootstrap import paired_bootstrap
from cluster.evaluation.reader_check import ReadingPlan, ReadProblem, fit_reader_card
from search.answers.equivalence import AnswerMatcher
from search.ports import Child, ChildGroup, ExpandRequest
from search.prompt import Prompt
from search.run.environment import SearchEnvironment, are_same
from search.run.runner import run_search
from search.settings import parse_search
from search.strategies.catalog import STRATEGIES
from search.strategies.reading import fuse
from search.strategies.reading.draws import prefix_order
from search.templates import TEMPLATES, composed
from search.tree import Step, StepEnd

if TYPE_CHECKING:
    from deployments.engines.generation import GenerationEngine

DEFAULT_MODEL = ".models/Qwen2.5-Coder-0.5B-Instruct"
CONTEXT_TOKENS = 4096
"""Room for eight solutions and the reader's reply."""
ROWS = RESULTS / "reading"
SIDES: Mapping[str, Mapping[str, Any]] = {
    "select-8": {"strategy": "select", "n": 8, "contested": 1.0},
    "select-8, one reader": {"strategy": "select", "n": 8, "contested": 1.0, "readers": 1},
    "fuse-8": {"strategy": "fuse", "n": 8, "rounds": 1},
    "fuse-8, one synthesis": {"strategy": "fuse", "n": 8, "schedule": [8, 1]},
    "refine-8": {"strategy": "refine", "n": 8, "depth": 1, "feedback": "none"},
}
ONLY_CHOOSING = ("select-8", "select-8, one reader")
"""Sides whose answer is always one of the first solutions."""
PROBLEMS = {TRAIN: TRAIN_PROBLEMS, TEST: TEST_PROBLEMS}
"""Number of problems that `benchmarks.published` has sampled."""
WIDTHS = (8, 16)
"""Votes that the sides are compared with."""
PREFIXES = {"strategy": "fuse", "n": 16, "k": 4, "rounds": 3}
console = Console(width=120)


class KeptSolutions:
    """A generator whose first solutions of a search are kept ones; it has an engine write all others."""

    def __init__(self, engine: "GenerationEngine", kept: Mapping[str, Sequence[tuple[Step, ...]]]) -> None:
        self._engine = engine
        self._kept = kept
        self.prefix_tokens = 0
        self.cached_tokens = 0

    async def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        kept = self._kept[request.search_id]
        first = [item for item in request.expansions if not item.parent]
        if first:
            yield ChildGroup(
                tuple(Child((), each.index, kept[each.index], 0) for item in first for each in item.branches)
            )
        if rest := tuple(item for item in request.expansions if item.parent):
            sizes = {item.parent: len(item.prefix) for item in rest}
            async for group in self._engine.expand(request._replace(expansions=rest)):
                self.prefix_tokens += sum(sizes[child.parent] for child in group.children)
                self.cached_tokens += sum(child.cached_tokens for child in group.children)
                yield group


def steps_of(solution: Mapping[str, Any]) -> tuple[Step, ...]:
    """A kept solution as it was written. Its tokens stand for themselves by their number."""
    texts, counts = solution["steps"], solution["tokens"]
    ends = [StepEnd.DELIMITER] * (len(texts) - 1) + [StepEnd(solution["end"])]
    return tuple(Step((0,) * count, text, end) for text, count, end in zip(texts, counts, ends, strict=True))


def unread(pool: Sequence[PoolSolution]) -> ReadProblem:
    """The majority vote, which is the answer where nothing is read."""
    found = vote(pool)
    right, in_pool = pool[found.node].correct, any(each.correct for each in pool)
    return ReadProblem(found.agreement, right, right, in_pool, solution_tokens=sum(each.tokens for each in pool))


def environment_of(generator: KeptSolutions, engine: "GenerationEngine", matcher: AnswerMatcher) -> SearchEnvironment:
    def compose(messages: Any, template: str, shown: Sequence[str], note: str) -> Prompt:
        return Prompt(tuple(engine.encode_chat(composed(messages, TEMPLATES[template], shown, note))))

    return SearchEnvironment(generator, NoScorer(), CONTEXT_TOKENS, matcher, compose=compose)


async def searched(
    problem: MathProblem,
    kept: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    environment: SearchEnvironment,
    engine: "GenerationEngine",
    cache_salt: str = "",
) -> Row:
    """One search over the kept solutions of a problem."""
    messages = [{"role": "user", "content": problem.text}]
    limits = {"max_path_tokens": MAX_SOLUTION_TOKENS, "max_depth": MAX_STEPS}
    began = time.monotonic()
    outcome = await run_search(
        problem.text,
        engine.encode_chat(messages),
        parse_search({**settings, **limits, "seed": problem_seed(SEED, problem.id)}),
        environment,
        search_id=problem.id,
        messages=messages,
        cache_salt=cache_salt,
    )
    answer, cost = outcome.selection.answer, outcome.cost
    return {
        "problem": problem.id,
        "correct": answer is not None and await are_same(environment.matcher, problem.answer, answer),
        "written_tokens": cost.generated_tokens - sum(sum(each["tokens"]) for each in kept[: settings["n"]]),
        "prompt_tokens": cost.context_prompt_tokens,
        "unread": cost.unread_sources,
        "abstained": sum(each.chosen is None for each in outcome.reader_votes),
        "replies": [each.text for each in outcome.reader_votes],
        "seconds": round(time.monotonic() - began, 1),
    }


async def read_side(
    split: str, side: str, problems: Sequence[MathProblem], rows: RowFile, model: str, requests: int, minutes: float
) -> None:
    """Reads the solutions of each problem that has no row yet."""
    settings, solutions = SIDES[side], kept_solutions(split)
    missing = [
        problem
        for problem in problems
        if problem.id in solutions
        and (problem.id, side) not in rows
        and not (
            side in ONLY_CHOOSING and are_alike(each["correct"] for each in solutions[problem.id][: settings["n"]])
        )
    ]
    async with started(model, requests) as (engine, matcher):
        steps = {problem.id: [steps_of(each) for each in solutions[problem.id]] for problem in missing}
        generator = KeptSolutions(engine, steps)
        environment = environment_of(generator, engine, matcher)

        async def work(problem: MathProblem) -> Row:
            row = await searched(problem, solutions[problem.id], settings, environment, engine)
            return row | {"side": side, "dtype": DTYPE}

        def keep(row: Row) -> None:
            rows.append(row)
            console.print(f"{row['problem']}: {row['written_tokens']} tokens, {row['seconds']} s")

        await in_parallel(missing, work, keep, max(1, requests // settings["n"]), time.monotonic() + 60 * minutes)
    console.print(f"{side}: {sum((problem.id, side) in rows for problem in missing)} of {len(missing)} problems read")


def started(model: str, requests: int) -> AbstractAsyncContextManager[tuple["GenerationEngine", AnswerMatcher]]:
    """The engine, with room for prompts that show solutions."""
    settings = generator_settings(model, requests, 2)
    return started_generator(settings.model_copy(update={"max_model_len": CONTEXT_TOKENS}))


def are_alike(rights: Iterable[bool]) -> bool:
    """Whether all solutions are right, or all wrong: no choice among them matters."""
    return len(set(rights)) < 2


def results_of(side: str, pools: Mapping[str, Sequence[PoolSolution]], rows: RowFile) -> dict[str, ReadProblem]:
    """Vote and reading of each problem that has a row, or that reading cannot change: of a side that only chooses up to
    the first problem that has neither. What others lack is told by `bounds_of`."""
    found: dict[str, ReadProblem] = {}
    for problem, solutions in pools.items():
        pool = solutions[: SIDES[side]["n"]]
        row = rows.rows.get((problem, side))
        if row is not None:
            costs = {name: row[name] for name in ("written_tokens", "prompt_tokens", "abstained")}
            costs["readings"] = len(row["replies"])
            found[problem] = unread(pool)._replace(read=row["correct"], **costs)
        elif side in ONLY_CHOOSING and are_alike(each.correct for each in pool):
            found[problem] = unread(pool)
        elif side in ONLY_CHOOSING:
            break
    return found


def bounds_of(side: str, results: Mapping[str, ReadProblem], pools: Mapping[str, Sequence[PoolSolution]]) -> Row:
    """What a side would have at most, if all problems before the last one that was read were right that were not. They
    are those whose reading took longest, so the others alone say too much for it. Empty if there are none."""
    number = 1 + max(index for index, problem in enumerate(pools) if problem in results)
    votes = {problem: unread(pool[: SIDES[side]["n"]]).vote for problem, pool in islice(pools.items(), number)}
    if not (left := votes.keys() - results.keys()):
        return {}
    right = sum(each.read for each in results.values()) + len(left)
    return {
        "not read": len(left),
        "right at most": round(right / number, 4),
        f"majority of {SIDES[side]['n']} there": round(statistics.fmean(votes.values()), 4),
    }


def figures_of(results: Mapping[str, ReadProblem], majorities: Mapping[str, Mapping[str, ReadProblem]]) -> Row:
    """A side beside votes on the same problems, with the tokens of each."""
    read = [each for each in results.values() if each.written_tokens]
    figures: Row = {
        "problems": len(results),
        "read": len(read),
        "right": round(statistics.fmean(each.read for each in results.values()), 4),
        "solution_tokens": round(statistics.fmean(each.solution_tokens for each in results.values())),
        "written_tokens_where_read": round(statistics.fmean(each.written_tokens for each in read)) if read else 0,
        "prompt_tokens_where_read": round(statistics.fmean(each.prompt_tokens for each in read)) if read else 0,
    }
    for name, votes in majorities.items():
        one = {problem: float(votes[problem].vote) for problem in results}
        other = {problem: float(each.read) for problem, each in results.items()}
        difference = paired_bootstrap(one, other)
        figures[f"less {name}"] = {
            "right": round(statistics.fmean(one.values()), 4),
            "tokens": round(statistics.fmean(votes[problem].solution_tokens for problem in results)),
            "difference": round(difference.mean, 4),
            "interval": [round(difference.low, 4), round(difference.high, 4)],
        }
    return figures


async def compared(gsm8k: Path) -> Row:
    """Every split and side that has rows."""
    matcher = AnswerMatcher()
    await matcher.start()
    try:
        figures: Row = {}
        for split, number in PROBLEMS.items():
            rows, pools = rows_of(split), await pools_of(split, chosen_problems(gsm8k, split, number), None, matcher)
            votes = {
                f"majority of {n}": {problem: unread(pool[:n]) for problem, pool in pools.items()}
                for n in WIDTHS
                if n <= SOLUTIONS[split]
            }
            for side in SIDES:
                results = results_of(side, pools, rows)
                if any(each.written_tokens for each in results.values()):
                    found = figures_of(results, votes) | bounds_of(side, results, pools)
                    figures[f"{split}, {side}"] = found | card_of(side, results)
        return figures
    finally:
        matcher.close()


def card_of(side: str, results: Mapping[str, ReadProblem]) -> Row:
    """What ``banyan check-select`` would say; empty for a strategy without `contested`, which it cannot measure."""
    given = SIDES[side]
    if "contested" not in STRATEGIES[given["strategy"]].model_fields:
        return {}
    typed = ",".join(f"{name}={value}" for name, value in given.items() if name not in ("strategy", "contested"))
    try:
        card = fit_reader_card([*results.values()], ReadingPlan(f"{given['strategy']}:{typed}", Plan()))
    except TooFewProblems as error:
        return {"card": str(error)}
    return {"card": card.model_dump(mode="json"), "verdict": card.verdict}


def rows_of(split: str) -> RowFile:
    return RowFile(ROWS / f"{split}.jsonl", ("problem", "side"))


async def with_prefixes(gsm8k: Path, model: str, problems: int, requests: int) -> Row:
    """``fuse`` in both orders, one search at a time, the first order first in every other problem."""
    chosen, kept = chosen_problems(gsm8k, TEST, problems), kept_solutions(TEST)
    figures: dict[str, dict[str, float]] = {
        order: {"prompt_tokens": 0, "cached_tokens": 0, "seconds": 0.0} for order in ORDERS
    }
    async with started(model, requests) as (engine, matcher):
        for number, problem in enumerate(chosen):
            solutions = kept[problem.id]
            for order in ORDERS if number % 2 else [*ORDERS][::-1]:
                generator = KeptSolutions(engine, {problem.id: [steps_of(each) for each in solutions]})
                with patch.object(fuse, "prefix_order", ORDERS[order]):
                    environment = environment_of(generator, engine, matcher)
                    # Nothing of the other order's prompts may be found in the cache.
                    row = await searched(problem, solutions, PREFIXES, environment, engine, cache_salt=order)
                figures[order]["prompt_tokens"] += generator.prefix_tokens
                figures[order]["cached_tokens"] += generator.cached_tokens
                figures[order]["seconds"] += row["seconds"]
                console.print(f"{problem.id}, {order}: {generator.cached_tokens} of {generator.prefix_tokens} tokens")
    for each in figures.values():
        each["cached_share"] = round(each["cached_tokens"] / each["prompt_tokens"], 4)
        each["seconds"] = round(each["seconds"], 1)
    return {"model": Path(model).name, "search": PREFIXES, "problems": problems, **figures}


def _as_drawn(sets: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[list[int]]:
    return [list(each) for each in sets]


OURS, DRAWN = "Banyan's order", "drawn order"
ORDERS = {OURS: prefix_order, DRAWN: _as_drawn}


app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
Gsm8k = Annotated[Path, typer.Option(help="Directory with GSM8K's train.jsonl and test.jsonl.")]
Model = Annotated[str, typer.Option(help="Directory of the generator.")]
Requests = Annotated[int, typer.Option(min=8, max=256, help="Requests of the engine at a time.")]
Keep = Annotated[bool, typer.Option(help="Write the figures to benchmarks/results.")]


@app.command()
def read(
    gsm8k: Gsm8k,
    split: Annotated[str, typer.Option(help="`train` or `test`.")],
    side: Annotated[str, typer.Option(help=f"One of {', '.join(SIDES)}.")],
    problems: Annotated[int, typer.Option(min=1, help="Problems, in their fixed order.")] = 400,
    minutes: Annotated[float, typer.Option(min=0.1, help="Ends after so long; a later run goes on.")] = 60.0,
    model: Model = DEFAULT_MODEL,
    requests: Requests = 64,
) -> None:
    """Has the model read the kept solutions of problems that it has not read yet."""
    if side not in SIDES:
        raise typer.BadParameter(f"one of {', '.join(SIDES)}", param_hint="--side")
    if split not in PROBLEMS:
        raise typer.BadParameter(f"one of {', '.join(PROBLEMS)}", param_hint="--split")
    chosen = chosen_problems(gsm8k, split, min(problems, PROBLEMS[split]))
    asyncio.run(read_side(split, side, chosen, rows_of(split), model, requests, minutes))


@app.command()
def report(gsm8k: Gsm8k, keep: Keep = False) -> None:
    """Compares all sides with the vote, on the problems that were read."""
    figures = asyncio.run(compared(gsm8k))
    claims = [
        claim(
            f"{side}: right, less the {name.removeprefix('less ')}",
            each["difference"],
            "above 0, interval too",
            each["interval"][0] > 0,
        )
        for side, found in figures.items()
        for name, each in found.items()
        if name.startswith("less ")
    ]
    for side, found in figures.items():
        if "right at most" in found:
            most = round(found["right at most"] - found["majority of 8 there"], 4)
            claims.append(claim(f"{side}: right at most, less the majority of 8", most, "above 0", most > 0))
    console.print_json(data=figures)
    show_claims(console, claims)
    if keep:
        console.print(f"kept in {write_result('reading', {**figures, 'claims': claims}).name}")


@app.command()
def prefixes(
    gsm8k: Gsm8k,
    problems: Annotated[int, typer.Option(min=1, help="Test problems.")] = 6,
    model: Model = DEFAULT_MODEL,
    requests: Requests = 64,
    keep: Keep = False,
) -> None:
    """Measures what the order of the solutions in a prompt saves."""
    figures = asyncio.run(with_prefixes(gsm8k, model, problems, requests))
    ours, drawn = figures[OURS], figures[DRAWN]
    gain = round(ours["cached_share"] - drawn["cached_share"], 4)
    claims = [claim("share of prompt tokens in the cache, less that of the drawn order", gain, "> 0", gain > 0)]
    console.print_json(data=figures)
    show_claims(console, claims)
    if keep:
        console.print(f"kept in {write_result('reading_prefixes', {**figures, 'claims': claims}).name}")


if __name__ == "__main__":
    app()
