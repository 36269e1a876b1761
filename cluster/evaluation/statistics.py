"""Statistics of strategies over graded problems, with confidence intervals."""

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
    """The 95% Wilson score interval of a proportion; [0, 1] without trials.

    Source: Wilson 1927; it holds for few trials and for proportions near 0 and 1.
    Raises ValueError for more successes than trials, or for negative numbers.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must be within 0 and {trials}, got {successes}")
    if trials == 0:
        return Interval(0.0, 1.0)
    from scipy.stats import binomtest  # imported here: takes half a second

    bounds = binomtest(successes, trials).proportion_ci(confidence_level=CONFIDENCE, method="wilson")
    return Interval(float(bounds.low), float(bounds.high))


@dataclass(frozen=True)
class Row:
    """Result of one problem under one strategy: graded, or failed with the reason in ``error``."""

    problem_id: str
    level: int | str | None
    strategy: str
    seed: int
    expected: str
    answer: str | None = None
    right: bool = False
    in_pool: bool = False
    """Whether any answer in the vote is right."""
    score: float | None = None
    agreement: float | None = None
    cost: SearchCost | None = None
    """Cost of the search; None if it failed."""
    seconds: float = 0.0
    """Latency at the client, time in the endpoint's queue included."""
    stop_reason: str | None = None
    degraded: bool = False
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"cost": self.cost.model_dump() if self.cost else None}


@dataclass(frozen=True)
class StrategySummary:
    """Summary of a strategy over all its problems. Means are over the answered problems."""

    strategy: str
    problems: int
    right: int
    failed: int
    degraded: int
    interval: Interval
    pool: float
    """Share of all problems for which an answer in the vote is right: the accuracy of a perfect vote."""
    cost: dict[str, float]
    """Mean of every field of `SearchCost` that the searches reported."""
    seconds: float
    """Mean latency of one problem at the client."""
    elapsed_s: float
    """Wall clock of all problems together."""

    @property
    def accuracy(self) -> float:
        """Share of right answers among all problems. A failed problem counts as not solved."""
        return self.right / self.problems if self.problems else 0.0

    @property
    def tokens(self) -> float:
        """Mean tokens that the models wrote and read."""
        return self.cost.get("written_tokens", 0.0) + self.cost.get("read_tokens", 0.0)

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
