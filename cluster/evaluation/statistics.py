"""What a set of graded problems says about a strategy, and how sure one may be of it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from search.run.report import SearchCost

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """Bounds of a proportion, in [0, 1]."""

    low: float
    high: float


def wilson(successes: int, trials: int) -> Interval:
    """The 95% Wilson score interval of a proportion; all of [0, 1] when nothing was tried.

    Source: Wilson 1927; it holds for few trials and for proportions near 0 and 1.
    Raises ValueError for more successes than trials, or for negative numbers.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must be within 0 and {trials}, got {successes}")
    if trials == 0:
        return Interval(0.0, 1.0)
    from scipy.stats import binomtest  # half a second of imports that no other command needs

    bounds = binomtest(successes, trials).proportion_ci(confidence_level=CONFIDENCE, method="wilson")
    return Interval(float(bounds.low), float(bounds.high))


@dataclass(frozen=True)
class Row:
    """One problem under one strategy: graded and paid for, or failed with the reason in ``error``."""

    problem_id: str
    level: int | str | None
    strategy: str
    seed: int
    expected: str
    answer: str | None = None
    right: bool = False
    in_pool: bool = False
    """Whether an answer that was voted on is right, the winner or another."""
    score: float | None = None
    agreement: float | None = None
    cost: SearchCost | None = None
    """What the search cost; None where it failed."""
    seconds: float = 0.0
    """As the client saw it, waiting for a place at the endpoint included."""
    stop_reason: str | None = None
    degraded: bool = False
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"cost": self.cost.model_dump() if self.cost else None}


@dataclass(frozen=True)
class StrategySummary:
    """A strategy over all its problems. Means are over the problems that were answered."""

    strategy: str
    problems: int
    right: int
    failed: int
    degraded: int
    interval: Interval
    pool: float
    """The share of problems of which some answer that was voted on is right: what a perfect vote would reach."""
    cost: dict[str, float]
    """The mean of every figure of `SearchCost` that the searches reported."""
    seconds: float
    """Mean time of one problem, as the client saw it."""
    elapsed_s: float
    """Wall clock of all problems together."""

    @property
    def accuracy(self) -> float:
        """Right answers among all problems: a failed problem is a problem not solved."""
        return self.right / self.problems if self.problems else 0.0

    def as_json(self) -> dict[str, Any]:
        fields = asdict(self) | {"accuracy": self.accuracy}
        return fields | {"interval": {**self.interval._asdict(), "confidence": CONFIDENCE, "method": "wilson"}}


def summarize(strategy: str, rows: Iterable[Row], elapsed_s: float) -> StrategySummary:
    """The summary of the rows of one strategy."""
    rows = [row for row in rows if row.strategy == strategy]
    answered = [row for row in rows if row.error is None]
    costs = [row.cost.model_dump() for row in answered if row.cost is not None]
    known = {name for cost in (SearchCost().model_dump(), *costs) for name in cost}
    right = sum(row.right for row in rows)
    return StrategySummary(
        strategy=strategy,
        problems=len(rows),
        right=right,
        failed=len(rows) - len(answered),
        degraded=sum(row.degraded for row in answered),
        interval=wilson(right, len(rows)),
        pool=_mean(row.in_pool for row in rows),
        cost={
            name: _mean(cost[name] for cost in costs if name in cost)
            for name in SearchCost.model_fields
            if name in known
        },
        seconds=_mean(row.seconds for row in answered),
        elapsed_s=elapsed_s,
    )


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0
