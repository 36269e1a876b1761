"""`benchmarks.published` on real engines: what is computed from a pool is what the search itself would answer."""

import json
import time
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.engines import Engines
from benchmarks.published.problems import MathProblem, chosen_problems
from benchmarks.published.rows import RowFile
from benchmarks.published.sampling import sample, solutions_field
from benchmarks.published.scoring import score_pool
from benchmarks.published.searching import SEARCHES, search_all
from benchmarks.published.strategies import pool_of, voted
from deployments.embedded.problems import Split, draw_problems
from deployments.engines.generation import GenerationEngine
from deployments.engines.scoring import ScoringEngine
from search.answers.equivalence import AnswerMatcher
from search.answers.voting import SelectionRule
from search.run.environment import SearchEnvironment
from search.settings import parse_search

pytestmark = pytest.mark.asyncio(loop_scope="session")

N = 4
MINUTES = 600.0


@pytest.fixture
def problems(tmp_path: Path) -> list[MathProblem]:
    drawn = islice(draw_problems(Split.VALIDATION, 1), 3)
    lines = [json.dumps({"question": each.text, "answer": f"So.\n#### {each.answer}"}) for each in drawn]
    (tmp_path / "test.jsonl").write_text("\n".join(lines))
    return chosen_problems(tmp_path, "test", 3)


async def test_a_pool_answers_as_best_of_n_does_and_searches_go_on_where_they_ended(
    generation: GenerationEngine, scoring: ScoringEngine, problems: list[MathProblem], tmp_path: Path
) -> None:
    matcher = AnswerMatcher()
    await matcher.start()
    engines = Engines(generation, scoring, SearchEnvironment(generation, scoring, 1024, matcher))
    pool, rewards = RowFile(tmp_path / "pool", ("problem", "n")), RowFile(tmp_path / "rewards", ("problem", "n"))
    searches = RowFile(tmp_path / "searches", ("problem", "strategy", "n"))
    try:
        await sample(generation, matcher, problems, [N, 1], pool, 64, time.monotonic() + MINUTES)
        await score_pool(scoring, problems, N, pool, rewards, time.monotonic() + MINUTES)
        for problem in problems:
            row = pool.rows[problem.id, N]
            offline = await pool_of(row["solutions"], rewards.rows[problem.id, N]["rewards"], matcher)
            assert [len(each["rewards"]) for each in [rewards.rows[problem.id, N]]] == [N]
            field = solutions_field(N) | {"strategy": "best_of_n", "seed": row["seed"]}
            outcome = await engines.search(problem.text, parse_search(field), f"{problem.id}:online")
            answer = outcome.selection.answer
            right = answer is not None and await matcher.same(problem.answer, answer)
            assert voted(offline, N, SelectionRule.WEIGHTED).correct == float(right)
            assert outcome.cost.generated_tokens == voted(offline, N, SelectionRule.WEIGHTED).tokens
            assert len(pool.rows[problem.id, 1]["solutions"]) == 1
        for asked in (problems[:1], problems):
            await search_all(engines, asked, list(SEARCHES), N, searches, 64, time.monotonic() + MINUTES)
    finally:
        matcher.close()
    assert set(searches.rows) == {(problem.id, name, N) for problem in problems for name in SEARCHES}
    for row in searches.rows.values():
        assert row["tokens"] > 0
        assert not row["degraded"]
        assert all(0 <= reward <= 1 for path in row["paths"] for reward in path["rewards"])
