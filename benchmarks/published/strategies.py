"""Strategies without a search, computed from a problem's pool of solutions: one pool serves all of them."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from search.answers.equivalence import AnswerMatcher
from search.answers.voting import AnswerSelection, Ballot, Candidate, SelectionRule
from search.strategies.path_score import Aggregation, aggregate


class PoolSolution(NamedTuple):
    """One solution of a pool."""

    tokens: int
    correct: bool
    group: int | None
    """Equal for equivalent answers; None if there is no answer."""
    rewards: tuple[float, ...] = ()
    """Rewards of its steps; empty without a reward model."""


class Outcome(NamedTuple):
    """One problem under one strategy. Means over the disjoint parts of the pool, where there are several."""

    correct: float
    tokens: float
    seconds: float | None = None
    """Wall clock of the search; None where nothing was searched."""


def search_outcome(row: Mapping[str, Any]) -> Outcome:
    """The outcome in a row of a search."""
    return Outcome(float(row["correct"]), row["tokens"], row["seconds"])


def solution_outcome(row: Mapping[str, Any]) -> Outcome:
    """The outcome in a row of the pool that has one solution."""
    [solution] = row["solutions"]
    return Outcome(float(solution["correct"]), sum(solution["tokens"]))


async def pool_of(
    solutions: Sequence[Mapping[str, Any]], rewards: Sequence[Sequence[float]] | None, matcher: AnswerMatcher
) -> list[PoolSolution]:
    """A row's solutions with their answers grouped, and with the rewards of their steps if they are given."""
    answered = [number for number, each in enumerate(solutions) if each["answer"] is not None]
    groups = await matcher.group([solutions[number]["answer"] for number in answered])
    group_of = {answered[member]: group for group, members in enumerate(groups) for member in members}
    return [
        PoolSolution(
            sum(each["tokens"]), each["correct"], group_of.get(number), tuple(rewards[number]) if rewards else ()
        )
        for number, each in enumerate(solutions)
    ]


def parts(pool: Sequence[PoolSolution], n: int) -> Iterator[Sequence[PoolSolution]]:
    """The disjoint parts of ``n`` solutions, in the order in which they were written."""
    for begin in range(0, len(pool) - n + 1, n):
        yield pool[begin : begin + n]


def voted(pool: Sequence[PoolSolution], n: int, rule: SelectionRule, how: Aggregation = Aggregation.LAST) -> Outcome:
    """The outcome of a vote among ``n`` solutions of the pool.

    Raises:
        ValueError: the pool has fewer than ``n`` solutions.
    """
    chosen = [(part[vote(part, rule, how).node].correct, sum(each.tokens for each in part)) for part in parts(pool, n)]
    if not chosen:
        raise ValueError(f"the pool has {len(pool)} solutions, not {n}")
    return Outcome(statistics.fmean(right for right, _ in chosen), statistics.fmean(tokens for _, tokens in chosen))


def any_right(pool: Sequence[PoolSolution], n: int) -> float:
    """Whether one of ``n`` solutions is right: what a perfect verifier would get (pass@n)."""
    return statistics.fmean(any(each.correct for each in part) for part in parts(pool, n))


def vote(
    pool: Sequence[PoolSolution], rule: SelectionRule = SelectionRule.MAJORITY, how: Aggregation = Aggregation.LAST
) -> AnswerSelection[int]:
    """The vote over all solutions of a pool; ``node`` is the index of the one that answers."""
    ballot: Ballot[int] = Ballot()
    for number, each in enumerate(pool):
        score = aggregate(each.rewards, how) if each.rewards else None
        ballot.add(Candidate(number, score, None, each.group))
    return ballot.selected(rule)
