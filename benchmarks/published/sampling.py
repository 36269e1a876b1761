"""Samples whole solutions: the pool from which every strategy without a search is computed."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks.published.engines import CONTEXT_TOKENS, MAX_SOLUTION_TOKENS
from benchmarks.published.problems import MathProblem
from benchmarks.published.rows import Row, RowFile
from cluster.evaluation.loop import problem_seed
from search.answers.equivalence import AnswerMatcher
from search.ports import ScoreRequest
from search.run.environment import Matcher, SearchEnvironment, are_same
from search.run.runner import run_search
from search.settings import parse_search
from search.tree import Node, SearchTree

if TYPE_CHECKING:
    from deployments.engines.generation import GenerationEngine

Item = TypeVar("Item")
SEED = 7
"""Seed of all samples and searches."""
MAX_STEPS = 100


class NoScorer:
    """Stands for the reward model of searches that need none."""

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        raise AssertionError(f"search {request.search_id} scores steps")


async def sample(
    engine: "GenerationEngine",
    matcher: AnswerMatcher,
    problems: Sequence[MathProblem],
    widths: Sequence[int],
    rows: RowFile,
    requests: int,
    ends_at: float,
) -> None:
    """Writes the solutions of each of ``problems`` that has no row yet: as many as each of ``widths`` says, the greedy
    one for a width of 1.

    About ``requests`` solutions are in flight. Ends at ``ends_at`` (of ``time.monotonic``), whatever is in flight then.
    """
    environment = SearchEnvironment(engine, NoScorer(), CONTEXT_TOKENS, matcher)

    async def work(item: tuple[MathProblem, int]) -> Row:
        problem, n = item
        prompt = engine.encode_chat([{"role": "user", "content": problem.text}])
        return await pool_row(problem, prompt, n, environment)

    missing = [(problem, n) for problem in problems for n in widths if (problem.id, n) not in rows]
    in_flight = max(1, requests * len(widths) // sum(widths))
    await in_parallel(missing, work, rows.append, in_flight, ends_at)


async def in_parallel(
    items: Sequence[Item],
    work: Callable[[Item], Awaitable[Row]],
    keep: Callable[[Row], None],
    in_flight: int,
    ends_at: float,
) -> None:
    """Passes the row of each item to ``keep`` as it is done, ``in_flight`` items at a time, until ``ends_at``."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            keep(await work(item))

    with suppress(TimeoutError):
        async with asyncio.timeout(ends_at - time.monotonic()), asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(worker())


async def pool_row(problem: MathProblem, prompt: Sequence[int], n: int, environment: SearchEnvironment) -> Row:
    """``n`` solutions of a problem. Siblings are not merged: each solution is one written sequence."""
    settings = parse_search(solutions_field(n) | {"seed": problem_seed(SEED, problem.id)})
    began = time.monotonic()
    outcome = await run_search(problem.text, prompt, settings, environment, search_id=f"{problem.id}:{n}")
    seconds = time.monotonic() - began
    ends = sorted(outcome.tree.terminals, key=lambda node: node.id)
    solutions = [await solution(outcome.tree, end, problem, environment.matcher) for end in ends]
    return {
        "problem": problem.id,
        "n": n,
        "seed": outcome.seed,
        "seconds": round(seconds, 1),
        "solutions": solutions,
    }


def solutions_field(n: int) -> dict[str, Any]:
    """The ``search`` field of ``n`` whole solutions; of the greedy one for 1."""
    shared = {"max_path_tokens": MAX_SOLUTION_TOKENS, "max_depth": MAX_STEPS}
    if n == 1:
        return {"strategy": "greedy", **shared}
    return {"strategy": "self_consistency", "n": n, "merge_siblings": False, **shared}


async def solution(tree: SearchTree, end: Node, problem: MathProblem, matcher: Matcher) -> dict[str, Any]:
    """The path that ends in ``end``: its steps' texts and tokens, its answer, and whether that is right."""
    steps, answer = end.steps, tree.answer_of(end)
    return {
        "steps": [step.text for step in steps],
        "tokens": [len(step.token_ids) for step in steps],
        "answer": answer,
        "correct": answer is not None and await are_same(matcher, problem.answer, answer),
        "end": str(steps[-1].end),
    }
