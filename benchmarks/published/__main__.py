"""Measures a published model on GSM8K; see the package's docstring. Each command goes on where it ended before.

python -m benchmarks.published sample --gsm8k DIRECTORY --minutes 120
python -m benchmarks.published export --gsm8k DIRECTORY solutions.jsonl
banyan train-prm solutions.jsonl HEAD --backbone MODEL
python -m benchmarks.published score --gsm8k DIRECTORY --prm '{"model": "HEAD"}'
python -m benchmarks.published search --gsm8k DIRECTORY --prm '{"model": "HEAD"}' --n 8 --minutes 60
python -m benchmarks.published report --gsm8k DIRECTORY
"""

import asyncio
import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.engines import engines_of
from benchmarks.published.answers_left import answers_left
from benchmarks.published.engines import generator_settings, prm_settings, started_generator, started_scorer
from benchmarks.published.problems import MathProblem, chosen_problems
from benchmarks.published.report import TEST_PROBLEMS, claims_of, lines_of, pass_rates, table
from benchmarks.published.rows import RowFile
from benchmarks.published.sampling import sample
from benchmarks.published.scoring import score_pool
from benchmarks.published.searching import SEARCHES, search_all, search_field
from benchmarks.published.strategies import PoolSolution, pool_of, solution_outcome
from benchmarks.published.training import exported_lines, held_out, split_of
from benchmarks.published.verifier import knowledge
from benchmarks.record import RESULTS, show_claims, write_result
from deployments.config import AppConfig
from search.answers.equivalence import AnswerMatcher
from search.strategies.path_score import Aggregation

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
console = Console(width=160)
ROWS = RESULTS / "published"
GENERATOR = ".models/Qwen2.5-Coder-0.5B-Instruct"
TRAIN, TEST = "train", "test"
SOLUTIONS = {TRAIN: 8, TEST: 16}
"""Solutions in the pool of a problem."""
TRAIN_PROBLEMS = 400
Gsm8k = Annotated[Path, typer.Option(help="Directory with GSM8K's train.jsonl and test.jsonl.")]
Minutes = Annotated[float, typer.Option(min=0.1, help="Ends after this time, whatever is missing then.")]
Requests = Annotated[int, typer.Option(min=1, max=256, help="Solutions or steps written at a time.")]
Threads = Annotated[int, typer.Option(min=1, help="Cores of an engine.")]
TrainProblems = Annotated[int, typer.Option(min=10, help="Training problems that the reward model is made of.")]
Prm = Annotated[str, typer.Option(help="The settings `prm` of the application, as JSON.")]
Keep = Annotated[bool, typer.Option(help="Write the figures to benchmarks/results.")]
Head = Annotated[str, typer.Option(help="Name of the reward model in the names of its files of rows.")]


def pool_file(split: str) -> RowFile:
    return RowFile(ROWS / f"{split}_solutions.jsonl", ("problem", "n"))


def kept_solutions(split: str) -> dict[str, list[dict[str, Any]]]:
    """The solutions of each problem in the pool."""
    return {row["problem"]: row["solutions"] for row in pool_file(split).rows.values() if row["n"] == SOLUTIONS[split]}


def reward_file(split: str, head: str) -> RowFile:
    return RowFile(ROWS / f"{split}_rewards_{head}.jsonl", ("problem", "n"))


def confidence_file() -> RowFile:
    return RowFile(ROWS / "test_confidence.jsonl", ("problem", "n"))


def search_file(head: str) -> RowFile:
    return RowFile(ROWS / f"test_searches_{head}.jsonl", ("problem", "strategy", "n"))


@app.command("sample")
def sample_command(
    gsm8k: Gsm8k,
    train: Annotated[int, typer.Option(min=0, help="Problems of the training split.")] = TRAIN_PROBLEMS,
    test: Annotated[int, typer.Option(min=0, help="Problems of the test split.")] = TEST_PROBLEMS,
    minutes: Minutes = 60.0,
    model: str = GENERATOR,
    requests: Requests = 96,
    threads: Threads = 2,
) -> None:
    """Samples whole solutions, and writes greedy ones, of the problems that have none yet."""
    ends_at = time.monotonic() + 60 * minutes

    async def run() -> None:
        async with started_generator(generator_settings(model, requests, threads)) as (engine, matcher):
            for split, count, widths in ((TRAIN, train, [SOLUTIONS[TRAIN]]), (TEST, test, [SOLUTIONS[TEST], 1])):
                problems = chosen_problems(gsm8k, split, count)
                await sample(engine, matcher, problems, widths, pool_file(split), requests, ends_at)

    asyncio.run(run())


@app.command()
def export(
    gsm8k: Gsm8k,
    path: Annotated[Path, typer.Argument(help="JSONL file of {problem, steps, correct} for `banyan train-prm`.")],
    train: TrainProblems = TRAIN_PROBLEMS,
) -> None:
    """Writes the solutions of training problems as `banyan train-prm` takes them."""
    lines = exported_lines(chosen_problems(gsm8k, TRAIN, train), SOLUTIONS[TRAIN], pool_file(TRAIN))
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    console.print(f"{len(lines)} solutions in {path}")


@app.command()
def layers(
    gsm8k: Gsm8k,
    depth: Annotated[list[int], typer.Option(min=1, help="Layers of the reward model; may be repeated.")],
    train: TrainProblems = TRAIN_PROBLEMS,
    model: str = GENERATOR,
    threads: Threads = 2,
    keep: Keep = False,
) -> None:
    """Compares depths of the reward model on the held-out training problems."""
    from benchmarks.published.layers import compared

    split = split_of(chosen_problems(gsm8k, TRAIN, train), SOLUTIONS[TRAIN], pool_file(TRAIN))
    found = asyncio.run(compared(split, model, depth, threads))
    console.print_json(json.dumps(found))
    if keep:
        console.print(f"kept in {write_result('published_layers', {'problems': train, 'depths': found})}")


@app.command()
def score(
    gsm8k: Gsm8k,
    prm: Prm,
    head: Head = "head",
    train: TrainProblems = TRAIN_PROBLEMS,
    minutes: Minutes = 60.0,
    requests: Requests = 64,
    threads: Threads = 2,
) -> None:
    """Scores the steps of the held-out training problems' pools, then of the test problems'."""
    ends_at = time.monotonic() + 60 * minutes

    async def run() -> None:
        async with started_scorer(prm_settings(prm, requests, threads)) as scorer:
            for split, problems in (
                (TRAIN, _held_out(gsm8k, train)),
                (TEST, chosen_problems(gsm8k, TEST, TEST_PROBLEMS)),
            ):
                n = SOLUTIONS[split]
                await score_pool(scorer, problems, n, pool_file(split), reward_file(split, head), ends_at)

    asyncio.run(run())


@app.command()
def confidence(gsm8k: Gsm8k, minutes: Minutes = 60.0, model: str = GENERATOR, threads: Threads = 2) -> None:
    """Reads the test problems' pools again for the generator's own confidence."""
    from benchmarks.published.confidence import Reader, read_pool

    ends_at = time.monotonic() + 60 * minutes
    problems = chosen_problems(gsm8k, TEST, TEST_PROBLEMS)
    read_pool(Reader(model, threads), problems, SOLUTIONS[TEST], pool_file(TEST), confidence_file(), ends_at)


@app.command("logprobs")
def logprobs_command(
    gsm8k: Gsm8k,
    model: str = GENERATOR,
    requests: Requests = 16,
    rounds: Annotated[int, typer.Option(min=2, help="Turns of each side.")] = 6,
    threads: Threads = 2,
    keep: Keep = False,
) -> None:
    """Measures what log-probabilities of the written tokens cost."""
    from benchmarks.published.logprob_cost import logprob_cost

    async def run() -> dict[str, Any]:
        async with started_generator(generator_settings(model, requests, threads)) as (engine, _):
            problems = chosen_problems(gsm8k, TRAIN, requests)
            prompts = [engine.encode_chat([{"role": "user", "content": each.text}]) for each in problems]
            return await logprob_cost(engine, prompts, rounds)

    found = asyncio.run(run())
    console.print_json(json.dumps(found))
    if keep:
        console.print(f"kept in {write_result('published_logprobs', found)}")


@app.command()
def search(
    gsm8k: Gsm8k,
    prm: Prm,
    n: Annotated[int, typer.Option(min=4, max=256)] = 8,
    strategy: Annotated[list[str] | None, typer.Option(help="May be repeated; all if unset.")] = None,
    problems: Annotated[int, typer.Option(min=1, help="Test problems, in their fixed order.")] = TEST_PROBLEMS,
    head: Head = "head",
    minutes: Minutes = 60.0,
    model: str = GENERATOR,
    requests: Requests = 96,
    threads: Threads = 2,
) -> None:
    """Searches test problems with rewards, problem by problem."""
    names = strategy or list(SEARCHES)
    if unknown := [name for name in names if name not in SEARCHES]:
        raise typer.BadParameter(f"no search {unknown[0]!r}; available: {', '.join(SEARCHES)}")
    ends_at = time.monotonic() + 60 * minutes
    engines_config: dict[str, Any] = {
        "generator": generator_settings(model, requests, threads),
        "prm": prm_settings(prm, requests, threads),
        "cache": {"enabled": False},
    }

    async def run() -> None:
        async with engines_of(AppConfig.model_validate(engines_config)) as engines:
            chosen = chosen_problems(gsm8k, TEST, problems)
            await search_all(engines, chosen, names, n, search_file(head), requests, ends_at)

    asyncio.run(run())


@app.command()
def report(
    gsm8k: Gsm8k,
    head: Head = "head",
    train: TrainProblems = TRAIN_PROBLEMS,
    aggregation: Annotated[Aggregation, typer.Option(help="As chosen by the held-out problems.")] = Aggregation.MEAN,
    keep: Keep = False,
) -> None:
    """Prints the tables, and what the reward model knows."""
    figures, lines = asyncio.run(_figures(gsm8k, head, train, aggregation))
    console.print_json(json.dumps({name: figures[name] for name in ("held_out", "test", "pass", "answers_left")}))
    console.print(table(lines))
    show_claims(console, figures["claims"])
    if keep:
        console.print(f"kept in {write_result('published', figures)}")


async def _figures(gsm8k: Path, head: str, train: int, aggregation: Aggregation) -> tuple[dict[str, Any], list[Any]]:
    matcher = AnswerMatcher()
    await matcher.start()
    try:
        test_problems = chosen_problems(gsm8k, TEST, TEST_PROBLEMS)
        pools = await pools_of(TEST, test_problems, None, matcher)
        scored = await pools_of(TEST, test_problems, head, matcher)
        held_out_pools = await pools_of(TRAIN, _held_out(gsm8k, train), head, matcher)
    finally:
        matcher.close()
    greedy = {row["problem"]: solution_outcome(row) for row in pool_file(TEST).rows.values() if row["n"] == 1}
    sampled = kept_solutions(TEST)
    searches = list(search_file(head).rows.values())
    lines = lines_of(greedy, pools, scored, searches, aggregation)
    figures = {
        "claims": claims_of(lines),
        "aggregation": aggregation,
        "held_out": [knowledge(held_out_pools, how) for how in Aggregation] if held_out_pools else [],
        "test": knowledge(scored, aggregation) if scored else None,
        "pass": pass_rates(pools),
        "answers_left": answers_left(searches, sampled),
        "strategies": [line.as_json() for line in lines],
        "fields": {name: search_field(name, 8) for name in SEARCHES},
    }
    return figures, lines


async def pools_of(
    split: str, problems: list[MathProblem], head: str | None, matcher: AnswerMatcher
) -> dict[str, list[PoolSolution]]:
    """The pools of those problems that have rows, with the rewards of a head if it is named."""
    pool, n = pool_file(split).rows, SOLUTIONS[split]
    rewards = None if head is None else reward_file(split, head).rows
    return {
        problem.id: await pool_of(
            pool[problem.id, n]["solutions"], None if rewards is None else rewards[problem.id, n]["rewards"], matcher
        )
        for problem in problems
        if (problem.id, n) in pool and (rewards is None or (problem.id, n) in rewards)
    }


def _held_out(gsm8k: Path, train: int) -> list[MathProblem]:
    return held_out(chosen_problems(gsm8k, TRAIN, train), SOLUTIONS[TRAIN], pool_file(TRAIN))


if __name__ == "__main__":
    app()
