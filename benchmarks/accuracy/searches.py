"""The searches of an accuracy table: what a token budget means for each strategy."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import annotated_types

from cluster.evaluation.search_field import search_field
from search.settings import parse_search
from search.strategies.catalog import STRATEGIES

SOLUTION_TOKENS = 60
"""Approximate tokens of one solution of the embedded generator; budget / SOLUTION_TOKENS is the width of a search."""
STEP_TOKENS = 16
"""Longer than any step of the embedded generator. A search with a token budget reserves this much for each step."""
PATHS_AT_A_TIME = {0: 1, 960: 4, 3_840: 8}
"""Leaves that MCTS and AB-MCTS choose per round, by the token budget from which the number applies: with a larger
budget, fewer leaves per round would need too many rounds."""
WIDE_TOKENS, WIDE = 3_840, 8
"""From this token budget on, MCTS gets this width; below it, its default width."""


class Measured(NamedTuple):
    """One search: a line of the table."""

    name: str
    """The strategy as given, and the budget."""
    field: dict[str, Any]
    """The request's ``search`` field."""

    @property
    def budget_tokens(self) -> int | None:
        """Token budget; None for a search that is bounded by a width."""
        budget: dict[str, int] = self.field.get("budget", {})
        return budget.get("tokens")


def searches(strategies: Sequence[str], budgets: Sequence[int]) -> list[Measured]:
    """Each of ``strategies`` (in the syntax of `banyan eval`; all strategies if empty) at each budget. A strategy
    without a width and without a budget appears once.

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
