"""`budget.total_tokens`: a search that might not fit is refused before anything is spent on it."""

import asyncio
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import PROMPT, Bench, search
from search_settings import SEARCHES

from search.errors import BudgetTooSmall
from search.ports import ExpandRequest

SIZES = {"max_step_tokens": 16, "max_path_tokens": 64}


def first_call(bench: Bench) -> list[tuple[Any, ...]]:
    """The branches that a search requested first, with their seeds and most tokens."""
    request: ExpandRequest = bench.generator.requests[0]
    return [(item.parent, item.branches) for item in request.expansions]


def refused(settings: dict[str, Any]) -> BudgetTooSmall:
    """The error of a search, which must have asked the generator for nothing."""

    async def main() -> BudgetTooSmall:
        bench = Bench()
        with pytest.raises(BudgetTooSmall) as error:
            await bench.search(settings)
        assert bench.generator.requests == []
        return error.value

    return asyncio.run(main())


@settings(max_examples=15, deadline=None)
@given(SEARCHES, st.integers(0, 30))
def test_it_is_refused_exactly_if_the_first_round_might_not_fit(settings: dict[str, Any], more: int) -> None:
    """What the error names as fitting fits: the first round is then that of the search without a budget."""
    asked = settings | SIZES
    unlimited, _ = search(asked)
    needed = refused({**asked, "budget": {"total_tokens": 1}}).needed
    assert refused({**asked, "budget": {"total_tokens": needed - 1}}).needed == needed
    total = needed + more
    bench, outcome = search({**asked, "budget": {"total_tokens": total}})
    assert first_call(bench) == first_call(unlimited)
    assert len(PROMPT) + outcome.cost.generated_tokens <= total
    narrower, _ = search({**asked, "budget": {"tokens": needed - 1 - len(PROMPT)}})
    alone = sum(len(branches) for _, branches in first_call(unlimited)) == 1
    assert (first_call(narrower) != first_call(unlimited)) or alone, "a budget of tokens alone refuses nothing"


def test_a_smaller_budget_of_generated_tokens_makes_any_search_fit() -> None:
    budget = {"total_tokens": 100, "tokens": 100 - len(PROMPT)}
    _, outcome = search({"strategy": "best_of_n", "n": 8, **SIZES, "budget": budget})
    assert 0 < outcome.cost.generated_tokens <= budget["tokens"]
    budget["tokens"] += 1
    assert refused({"strategy": "best_of_n", "n": 8, **SIZES, "budget": budget}).fitting == 1


def test_the_error_says_the_numbers_and_what_would_fit() -> None:
    solutions = {"strategy": "best_of_n", "n": 8, **SIZES, "budget": {"total_tokens": 200}}
    error = refused(solutions)
    assert str(pickle.loads(pickle.dumps(error))) == (
        "budget.total_tokens is 200, but the prompt has 5 tokens and the first round may take 512 more: "
        "8 branches of at most 64. What would fit: total_tokens of 517, or 3 branches"
    )
    search(solutions | {"n": error.fitting})
    steps = {"strategy": "beam_search", "n": 4, "m": 2, **SIZES, "budget": {"total_tokens": 60}}
    assert str(refused(steps)).endswith(
        "4 branches of at most 16, and 48 to finish a path. What would fit: total_tokens of 117"
    )
