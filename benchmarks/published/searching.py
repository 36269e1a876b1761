"""Searches with rewards on the problems of the pool: beam search, DVTS and particles."""

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.engines import Engines
from benchmarks.published.engines import MAX_SOLUTION_TOKENS
from benchmarks.published.problems import MathProblem
from benchmarks.published.rows import Row, RowFile
from benchmarks.published.sampling import SEED, in_parallel
from benchmarks.published.scoring import DIGITS
from cluster.evaluation.loop import problem_seed
from search.run.environment import are_same
from search.settings import parse_search

SEARCHES: dict[str, dict[str, Any]] = {
    "beam_search": {"strategy": "beam_search", "m": 4},
    "dvts": {"strategy": "dvts", "m": 4},
    "particles": {"strategy": "particle_filter"},
}
"""The ``search`` field of each strategy, but for ``n``: with ``n`` steps a round its tokens are about those of ``n``
whole solutions."""
MAX_STEP_TOKENS = 256


def search_field(strategy: str, n: int) -> dict[str, Any]:
    """The ``search`` field of a strategy at width ``n``."""
    return {
        **SEARCHES[strategy],
        "n": n,
        "max_path_tokens": MAX_SOLUTION_TOKENS,
        "max_step_tokens": MAX_STEP_TOKENS,
    }


async def search_all(
    engines: Engines,
    problems: Sequence[MathProblem],
    strategies: Sequence[str],
    n: int,
    rows: RowFile,
    requests: int,
    ends_at: float,
) -> None:
    """Searches each problem with each strategy, problem by problem, so that an early end leaves paired rows."""
    asked = [(problem, name) for problem in problems for name in strategies if (problem.id, name, n) not in rows]

    async def work(item: tuple[MathProblem, str]) -> Row:
        return await _search_row(engines, *item, n)

    await in_parallel(asked, work, rows.append, max(1, requests // n), ends_at)


async def _search_row(engines: Engines, problem: MathProblem, strategy: str, n: int) -> Row:
    settings = parse_search(search_field(strategy, n) | {"seed": problem_seed(SEED, problem.id)})
    began = time.monotonic()
    outcome = await engines.search(problem.text, settings, f"{problem.id}:{strategy}:{n}")
    seconds = time.monotonic() - began
    answer, matcher = outcome.selection.answer, engines.environment.matcher
    ends = settings.strategy.candidates(outcome.tree)
    answers = [outcome.tree.answer_of(end) for end in ends]
    right = {each for each in {answer, *answers} if each is not None and await are_same(matcher, problem.answer, each)}
    return {
        "problem": problem.id,
        "strategy": strategy,
        "n": n,
        "seed": outcome.seed,
        "answer": answer,
        "correct": answer in right,
        "tokens": outcome.cost.generated_tokens,
        "scored_steps": outcome.cost.scored_steps,
        "seconds": round(seconds, 1),
        "stop_reason": str(outcome.stop_reason),
        "degraded": outcome.degraded,
        "paths": [
            {
                "answer": answer,
                "correct": answer in right,
                "rewards": [round(reward, DIGITS) for reward in end.rewards],
            }
            for end, answer in zip(ends, answers, strict=True)
        ],
    }
