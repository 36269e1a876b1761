"""Runs searches over problems, on the memoized models or on vLLM's engines: one row per problem and search."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

from rich.console import Console

from benchmarks.accuracy.searches import Measured
from benchmarks.engines import engines_of, solve_all
from cluster.evaluation.loop import problem_seed
from deployments.config import AppConfig
from deployments.embedded.problems import Problem
from search.answers.equivalence import AnswerMatcher
from search.run.environment import SearchEnvironment, are_same
from search.run.report import SearchCost, SearchOutcome
from search.run.runner import run_search
from search.settings import parse_search
from search.strategies.base import Strategy
from search.tree import NodeStatus

PROGRESS_EVERY = 50
"""Problems between two lines of progress."""
console = Console(stderr=True)


class Row(NamedTuple):
    """One problem under one search."""

    search: str
    problem: str
    answer: str | None
    right: bool
    in_pool: bool
    stop_reason: str
    cost: SearchCost


def measure_memoized(
    problems: Sequence[Problem], asked: Sequence[Measured], seed: int, in_flight: int, processes: int
) -> list[Row]:
    """Measures on `benchmarks.memoized`, in ``processes`` processes of one thread each."""
    work = partial(_memoized_process, asked=asked, seed=seed, in_flight=in_flight)
    if processes == 1:
        return work(problems)
    parts = [problems[start::processes] for start in range(processes)]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        return [row for rows in pool.map(work, parts) for row in rows]


def _memoized_process(problems: Sequence[Problem], asked: Sequence[Measured], seed: int, in_flight: int) -> list[Row]:
    import torch

    torch.set_num_threads(1)
    return asyncio.run(_measure_memoized(problems, asked, seed, in_flight))


async def _measure_memoized(
    problems: Sequence[Problem], asked: Sequence[Measured], seed: int, in_flight: int
) -> list[Row]:
    """Goes problem by problem, so that all searches of a problem share its memoized prefixes."""
    from benchmarks.memoized import MemoizedModels

    matcher = AnswerMatcher()
    await matcher.start()
    try:
        models = MemoizedModels(matcher)
        report_progress = _progress("problems", len(problems))

        async def measure_problem(problem: Problem, _: int) -> list[Row]:
            with models.problem(problem.text) as memo:
                rows = await asyncio.gather(*(_measure(problem, each, seed, *memo) for each in asked))
            report_progress()
            return rows

        by_problem, _ = await solve_all(measure_problem, problems, in_flight, seed)
    finally:
        matcher.close()
    return [row for rows in by_problem for row in rows]


async def measure_on_vllm(
    problems: Sequence[Problem], asked: Sequence[Measured], seed: int, in_flight: int, lmcache: bool
) -> list[Row]:
    """Measures on the application's engines, one search at a time, so that its seconds include no other search's."""
    rows: list[Row] = []
    async with engines_of(AppConfig.model_validate({"cache": {"enabled": lmcache}})) as engines:
        for each in asked:
            report_progress = _progress(each.name, len(problems))

            async def measure_one(
                problem: Problem, _: int, each: Measured = each, report_progress: Callable[[], None] = report_progress
            ) -> Row:
                row = await _measure(problem, each, seed, engines.prompt(problem.text), engines.environment)
                report_progress()
                return row

            done, _ = await solve_all(measure_one, problems, in_flight, seed)
            rows += done
    return rows


async def _measure(
    problem: Problem, asked: Measured, seed: int, prompt: Sequence[int], environment: SearchEnvironment
) -> Row:
    settings = parse_search(asked.field | {"seed": problem_seed(seed, problem.unique_id), "kv_usage": True})
    search_id = f"{asked.name}:{problem.unique_id}"
    outcome = await run_search(problem.text, prompt, settings, environment, search_id=search_id)
    answer = outcome.selection.answer
    right = {
        each
        for each in {answer, *_pool(outcome, settings.strategy)}
        if each is not None and await are_same(environment.matcher, problem.answer, each)
    }
    stop_reason = str(outcome.stop_reason)
    return Row(asked.name, problem.unique_id, answer, answer in right, bool(right), stop_reason, outcome.cost)


def _pool(outcome: SearchOutcome, strategy: Strategy) -> set[str | None]:
    """Answers of the paths that may answer; of all ended paths where the strategy leaves at most one candidate."""
    tree = outcome.tree
    ends = strategy.candidates(tree)
    if len(ends) < 2:
        ends = [node for node in tree.nodes if node.status is NodeStatus.TERMINAL]
    return {tree.answer_of(node) for node in ends}


def _progress(name: str, total: int) -> Callable[[], None]:
    done, began = 0, time.monotonic()

    def report_progress() -> None:
        nonlocal done
        done += 1
        if done == total or done % PROGRESS_EVERY == 0:
            console.print(f"{name}: {done}/{total} after {time.monotonic() - began:.0f} s")

    return report_progress
