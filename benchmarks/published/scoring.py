"""Rewards of the pool's steps, by the scoring engine."""

from collections.abc import Sequence
from typing import Any

from benchmarks.published.problems import MathProblem
from benchmarks.published.rows import Row, RowFile
from benchmarks.published.sampling import in_parallel
from search.ports import ScoreItem, ScoreRequest, StepScorer
from search.run.runner import UNLIMITED_S

DIGITS = 4
"""Digits of a reward in a row."""
IN_FLIGHT = 4
"""Problems scored at a time: enough for the next batch to be ready."""


async def score_pool(
    scorer: StepScorer, problems: Sequence[MathProblem], n: int, pool: RowFile, rows: RowFile, ends_at: float
) -> None:
    """Scores all steps of the ``n`` solutions of each problem that has a pool and no rewards yet."""

    async def work(problem: MathProblem) -> Row:
        solutions = pool.rows[problem.id, n]["solutions"]
        return {"problem": problem.id, "n": n, "rewards": await solution_rewards(scorer, problem, solutions)}

    missing = [each for each in problems if (each.id, n) in pool and (each.id, n) not in rows]
    await in_parallel(missing, work, rows.append, IN_FLIGHT, ends_at)


async def solution_rewards(
    scorer: StepScorer, problem: MathProblem, solutions: Sequence[dict[str, Any]]
) -> list[list[float]]:
    """For each solution the rewards of its steps."""
    items = tuple(ScoreItem(tuple(each["steps"]), len(each["steps"])) for each in solutions)
    request = ScoreRequest(f"{problem.id}:pool", problem.text, items, UNLIMITED_S)
    return [[round(reward, DIGITS) for reward in row] for row in await scorer.score(request)]
