"""The tables of a measurement, from its rows alone."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks.published.rows import Row
from benchmarks.published.strategies import Outcome, PoolSolution, any_right, search_outcome, voted
from benchmarks.record import claim
from cluster.evaluation.paired_bootstrap import Difference, paired_bootstrap
from search.answers.voting import SelectionRule
from search.strategies.path_score import Aggregation

WIDTHS = (8, 16)
TEST_PROBLEMS = 200
MAJORITY = "majority"
WEIGHTED = "weighted best-of-n"
Votes = Callable[[Sequence[PoolSolution], int], Outcome]
Outcomes = Mapping[str, Outcome]
"""One strategy's outcomes by problem."""


class Line(NamedTuple):
    """One strategy at one width: a line of the table."""

    strategy: str
    n: int
    outcomes: Outcomes
    majority: Outcomes
    """Majority at the same width; greedy is compared with the smallest."""

    @property
    def difference(self) -> Difference:
        """Difference in accuracy to the majority, on the problems of this strategy."""
        return paired_bootstrap(_accuracies(self.majority), _accuracies(self.outcomes))

    def as_json(self) -> dict[str, Any]:
        difference = self.difference
        paired = self.outcomes.keys() & self.majority.keys()
        seconds = [each.seconds for each in self.outcomes.values() if each.seconds is not None]
        return {
            "strategy": self.strategy,
            "n": self.n,
            "problems": difference.problems,
            "accuracy": _mean(self.outcomes[problem].correct for problem in paired),
            "tokens": _mean((self.outcomes[problem].tokens for problem in paired), 1),
            "seconds": _mean(seconds, 1) if seconds else None,
            "majority": _mean(self.majority[problem].correct for problem in paired),
            "majority_tokens": _mean((self.majority[problem].tokens for problem in paired), 1),
            "difference": round(difference.mean, 4),
            "interval": [round(difference.low, 4), round(difference.high, 4)],
        }


def lines_of(
    greedy: Outcomes,
    pools: Mapping[str, Sequence[PoolSolution]],
    scored: Mapping[str, Sequence[PoolSolution]],
    searches: Sequence[Row],
    how: Aggregation,
) -> list[Line]:
    """All strategies at all widths that have rows.

    Args:
        pools: solutions by problem.
        scored: those of them that have rewards.
        how: aggregation of step rewards in best-of-n.
    """
    lines: list[Line] = []
    for n in WIDTHS:
        majority = _over(pools, lambda pool, n: voted(pool, n, SelectionRule.MAJORITY), n)
        if n == min(WIDTHS) and greedy:
            lines.append(Line("greedy", 1, greedy, majority))
        lines.append(Line(MAJORITY, n, majority, majority))
        if scored:
            best = _over(scored, lambda pool, n: voted(pool, n, SelectionRule.NAIVE, how), n)
            weighted = _over(scored, lambda pool, n: voted(pool, n, SelectionRule.WEIGHTED, how), n)
            lines += [Line("best-of-n", n, best, majority), Line(WEIGHTED, n, weighted, majority)]
        for name in dict.fromkeys(row["strategy"] for row in searches if row["n"] == n):
            found = [row for row in searches if (row["strategy"], row["n"]) == (name, n)]
            lines.append(Line(name, n, {row["problem"]: search_outcome(row) for row in found}, majority))
    return [line for line in lines if line.outcomes.keys() & line.majority.keys()]


def pass_rates(pools: Mapping[str, Sequence[PoolSolution]]) -> dict[str, float]:
    """Share of problems with a right answer among n solutions."""
    return {str(n): _mean(any_right(pool, n) for pool in pools.values()) for n in (1, *WIDTHS)}


def claims_of(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """A table of all problems, and a strategy with rewards whose interval over the majority is above 0."""
    problems = min((len(line.outcomes) for line in lines), default=0)
    with_rewards = [line for line in lines if line.strategy not in ("greedy", MAJORITY)]
    best = max(with_rewards, key=lambda line: line.difference.low, default=None)
    low = None if best is None else round(100 * best.difference.low, 1)
    name = "no strategy with rewards" if best is None else f"{best.strategy} @ {best.n}"
    return [
        claim("problems of the line with the fewest", problems, f">= {TEST_PROBLEMS}", problems >= TEST_PROBLEMS),
        claim(f"{name}: lower bound over the majority, points", low, "> 0", low is not None and low > 0),
    ]


def table(lines: Sequence[Line]) -> Table:
    shown = Table(
        *("strategy", "n", "problems", "accuracy", "tokens", "majority", "its tokens", "difference", "95% interval"),
        caption="differences in points on the same problems; paired bootstrap",
    )
    for each in (line.as_json() for line in lines):
        low, high = each["interval"]
        is_reference = each["strategy"] == MAJORITY
        shown.add_row(
            each["strategy"],
            str(each["n"]),
            str(each["problems"]),
            f"{each['accuracy']:.1%}",
            f"{each['tokens']:,.0f}",
            f"{each['majority']:.1%}",
            f"{each['majority_tokens']:,.0f}",
            "" if is_reference else f"{100 * each['difference']:+.1f}",
            "" if is_reference else f"{100 * low:+.1f} to {100 * high:+.1f}",
        )
    return shown


def _over(pools: Mapping[str, Sequence[PoolSolution]], vote: Votes, n: int) -> dict[str, Outcome]:
    return {problem: vote(pool, n) for problem, pool in pools.items() if len(pool) >= n}


def _accuracies(outcomes: Outcomes) -> dict[str, float]:
    return {problem: each.correct for problem, each in outcomes.items()}


def _mean(values: Any, digits: int = 4) -> float:
    return round(statistics.fmean(values), digits)
