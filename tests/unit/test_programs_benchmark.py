"""How `benchmarks.programs` compares votes: at equal tokens, on the same problems."""

import pytest

from benchmarks.programs import (
    PROMPTS,
    UNASKED,
    compared,
    equal_width,
    majority,
    of_as_many,
    problems_needed,
    until_first_program,
)
from benchmarks.published.strategies import PoolSolution


def pool(rights: str, tokens: int) -> list[PoolSolution]:
    """A solution for each letter: ``r`` is right, ``-`` has no answer, any other one is a wrong answer of its own."""
    return [PoolSolution(tokens, letter == "r", None if letter == "-" else ord(letter)) for letter in rights]


def test_a_majority_is_of_equal_answers_and_its_tokens_are_those_of_its_solutions() -> None:
    assert majority(pool("abrr-", 10), 5) == (1.0, 50)
    assert majority(pool("abrr-", 10), 3) == (0.0, 30)
    assert majority(pool("--r", 10), 3).correct == 1.0


@pytest.mark.parametrize(("tokens", "width"), [(10, 8), (5, 16), (20, 4), (1000, 1), (1, 24)])
def test_the_side_with_the_tool_gets_as_many_solutions_as_cost_no_more(tokens: int, width: int) -> None:
    assert equal_width(80.0, {"p": pool("r" * 24, tokens)}) == width


def test_sides_are_compared_on_the_problems_of_both() -> None:
    without = {"p": pool("a" * 16, 10), "q": pool("r" * 16, 10), "only here": pool("r" * 16, 10)}
    with_tool = {"p": pool("r" * 24, 20), "q": pool("r" * 24, 20)}
    found = compared(8, without, with_tool)
    assert (found["problems"], found["without"], found["with_tool"]) == (2, 0.5, 1.0)
    assert (found["width_with_tool"], found["tokens_with_tool"], found["tokens_without"]) == (4, 80.0, 80.0)
    assert (found["difference"], found["discordant"]) == (0.5, 0.5)


def test_as_many_solutions_are_compared_over_all_parts_of_a_pool() -> None:
    without = {"p": pool("rrbb", 10), "q": pool("aabb", 10), "only here": pool("rrrr", 10)}
    found = of_as_many(2, without, {"p": pool("rrrr", 15), "q": pool("aabb", 15)})
    assert (found["without"], found["with_tool"], found["difference"]) == (0.25, 0.5, 0.25)
    assert found["tokens_over_without"] == 1.5


@pytest.mark.parametrize(
    ("solution", "kept"),
    [
        ("So ```python\nprint(1)\n```\n```output\n7\n```\nIt is 7. ```python\n2\n```", "So ```python\nprint(1)\n```"),
        ("So ```python\nprint(1)", ""),
        ("It is ```7```.", ""),
    ],
)
def test_a_solution_is_written_again_from_behind_its_first_program(solution: str, kept: str) -> None:
    assert until_first_program(solution) == kept


def test_more_disagreement_needs_more_problems() -> None:
    assert problems_needed(0.1) < problems_needed(0.2) < problems_needed(0.3)
    assert 800 < problems_needed(0.1) < 900


def test_every_candidate_asks_for_a_fence_that_is_run_and_a_box() -> None:
    asking = [prompt for name, prompt in PROMPTS.items() if name != UNASKED]
    assert len(asking) >= 2
    assert all("```python" in prompt and "\\boxed{}" in prompt for prompt in asking)
