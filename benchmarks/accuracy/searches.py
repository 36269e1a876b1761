"""Which searches an accuracy table is made of: what a budget of tokens means to each strategy."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import annotated_types

from cluster.evaluation.search_field import search_field
from search.settings import parse_search
from search.strategies.catalog import STRATEGIES

SOLUTION_TOKENS = 60
"""What a solution of the embedded generator takes, about: a budget is so many solutions' worth."""
STEP_TOKENS = 16
"""More than a step of the embedded generator has: a search with a budget reserves as much for each step."""
PATHS_AT_A_TIME = {0: 1, 960: 4, 3_840: 8}
"""From a budget of tokens on, how many leaves MCTS and AB-MCTS choose at a time: searches with more to spend would take
too many rounds."""
WIDE_TOKENS, WIDE = 3_840, 8
"""From this budget on MCTS has this width, and what it comes with below."""


class Measured(NamedTuple):
    """A search as a line of the table."""

    name: str
    """The strategy as it was asked for, with the budget."""
    field: dict[str, Any]
    """The request's ``search`` field."""

    @property
    def budget_tokens(self) -> int | None:
        """What it may spend, where that and not a width bounds it."""
        budget: dict[str, int] = self.field.get("budget", {})
        return budget.get("tokens")


def searches(strategies: Sequence[str], budgets: Sequence[int]) -> list[Measured]:
    """Each of ``strategies`` (as `banyan eval` takes them; all where there is none) at each budget, once where it has
    no width and no budget.

    Raises:
        SearchFieldError: there is no such strategy, or it does not take these settings.
    """
    found: dict[str, Measured] = {}
    for budget in budgets:
        for strategy in strategies or STRATEGIES:
            each = _at_budget(strategy, budget)
            found.setdefault(each.name, each)
    return list(found.values())


def _at_budget(strategy: str, budget: int) -> Measured:
    given: dict[str, Any] = search_field(strategy, max(1, budget // SOLUTION_TOKENS))
    settings = type(parse_search(given).strategy).model_fields
    if "n" in settings:
        return Measured(f"{strategy} @ {budget}", given)
    if "iterations" not in settings:
        return Measured(strategy, given)
    defaults: dict[str, Any] = {
        "budget": {"tokens": budget},
        "iterations": next(mark.le for mark in settings["iterations"].metadata if isinstance(mark, annotated_types.Le)),
        "max_step_tokens": STEP_TOKENS,
    }
    if "paths" in settings:
        defaults["paths"] = max(paths for least, paths in PATHS_AT_A_TIME.items() if budget >= least)
    if given["strategy"] == "mcts" and budget >= WIDE_TOKENS:
        defaults["width"] = WIDE
    spending = defaults["budget"] | given.get("budget", {})
    field = defaults | given | {"budget": spending}
    parse_search(field)
    return Measured(f"{strategy} @ {budget}", field)
