"""The benchmark of votes counts kept solutions as a search would."""

from pathlib import Path

import pytest

from benchmarks.published.engines import DTYPE
from benchmarks.published.problems import chosen_problems
from benchmarks.votes import config_of, count_kept, kept_vote, questions
from search.strategies.solutions.self_consistency import SelfConsistency

SOLUTIONS = [("5", True, 10)] * 4 + [("6", False, 20)] * 3 + [(None, False, 30)] * 2 + [("6", False, 40)] * 7


@pytest.mark.parametrize(
    ("risk", "rounds", "found"),
    [
        (None, None, ("6", False, 4 * 10 + 3 * 20 + 2 * 30 + 7 * 40)),
        (0.5, (4,), ("5", True, 4 * 10)),
        (0.0, (4, 12), ("6", False, 4 * 10 + 3 * 20 + 2 * 30 + 7 * 40)),
    ],
)
def test_a_kept_vote_asks_for_the_solutions_that_a_search_would_write(
    risk: float | None, rounds: tuple[int, ...] | None, found: tuple[str | None, bool, int]
) -> None:
    assert kept_vote(SOLUTIONS, SelfConsistency(n=16, risk=risk, rounds=rounds)) == found


async def test_the_kept_pool_is_the_one_of_the_docs() -> None:
    """docs/strategies.md, votes that stop early: 86% of the tokens at 0.05, and no answer changed."""
    counted = await count_kept(16, 0.05)
    assert (len(counted), sum(each.changed for each in counted)) == (200, 0)
    tokens = [sum(each.tokens[side] for each in counted) for side in (0, 1)]
    assert tokens[1] / tokens[0] == pytest.approx(0.86, abs=0.005)


def test_a_published_generator_is_served_with_the_settings_of_its_pool(tmp_path: Path) -> None:
    config = config_of({}, str(tmp_path))
    assert (config.generator.served_name, config.generator.dtype) == ("votes", DTYPE)


def test_problems_are_unseen_ones_of_a_level_or_of_gsm8k(tmp_path: Path) -> None:
    lines = [f'{{"question": "Q{number}", "answer": "so #### {number}"}}' for number in range(600)]
    (tmp_path / "test.jsonl").write_text("\n".join(lines))
    ours = list(questions(tmp_path, None))
    assert len({each.text for each in ours}) == 400
    assert not {each.text for each in ours} & {each.text for each in chosen_problems(tmp_path, "test", 200)}
    first = next(questions(None, 1, " Box it."))
    assert first.text.endswith(" Box it.")
    assert first.answer.lstrip("-").isdigit()
