"""Throughput, seconds alone and accuracy of both sides, computed from the rounds; and the claims."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.accuracy.pairs import PairedDifference, paired_difference
from benchmarks.ratios import Ratio, ratio_with_interval
from benchmarks.record import claim
from cluster.evaluation.statistics import wilson


class Answered(NamedTuple):
    """One problem on one side."""

    right: bool
    steps: int
    tokens: int
    """Generated tokens."""
    engine_calls: int | None = None
    """Calls to either engine; None on the served side, which does not report them."""
    prm_tokens: int | None = None
    """Tokens that the process reward model read; None on the served side."""


class Turn(NamedTuple):
    """Some problems on one side, one after the other or several in flight."""

    answered: list[Answered]
    seconds: float
    """Wall-clock time of all problems together."""

    @property
    def problems_per_second(self) -> float:
        return len(self.answered) / self.seconds

    @property
    def seconds_per_problem(self) -> float:
        return self.seconds / len(self.answered)


class Round(NamedTuple):
    """The same problems on both sides."""

    lock_step: Turn
    served: Turn


class Bounds(NamedTuple):
    """Bounds of the claims on a pair of models, as ratios of served to lock step."""

    min_throughput: float
    max_seconds_alone: float


class Figures(NamedTuple):
    """Both sides compared on one pair of models."""

    throughput: list[Round]
    """All cores in use."""
    alone: list[Round]
    """One problem at a time."""

    @property
    def throughput_ratio(self) -> Ratio:
        """Problems per second, served over lock step."""
        return ratio_with_interval(
            [(each.served.problems_per_second, each.lock_step.problems_per_second) for each in self.throughput]
        )

    @property
    def alone_ratio(self) -> Ratio:
        """Seconds per problem alone, served over lock step."""
        return ratio_with_interval(
            [(each.served.seconds_per_problem, each.lock_step.seconds_per_problem) for each in self.alone]
        )

    @property
    def lock_step(self) -> list[Answered]:
        """All problems of all rounds."""
        return [answered for each in (*self.throughput, *self.alone) for answered in each.lock_step.answered]

    @property
    def served(self) -> list[Answered]:
        """All problems of all rounds."""
        return [answered for each in (*self.throughput, *self.alone) for answered in each.served.answered]

    @property
    def accuracy_difference(self) -> PairedDifference:
        """Accuracy served less that in lock step, paired by problem."""
        return paired_difference([each.right for each in self.lock_step], [each.right for each in self.served])

    @property
    def as_json(self) -> dict[str, Any]:
        difference = self.accuracy_difference
        return {
            "throughput": {
                "problems_per_second": {
                    "lock_step": [round(each.lock_step.problems_per_second, 4) for each in self.throughput],
                    "served": [round(each.served.problems_per_second, 4) for each in self.throughput],
                },
                "served_over_lock_step": self.throughput_ratio.as_json,
            },
            "alone": {
                "seconds_per_problem": {
                    "lock_step": [round(each.lock_step.seconds_per_problem, 4) for each in self.alone],
                    "served": [round(each.served.seconds_per_problem, 4) for each in self.alone],
                },
                "served_over_lock_step": self.alone_ratio.as_json,
            },
            "accuracy_difference": {
                "served_less_lock_step": round(difference.difference, 4),
                "interval": [round(difference.low, 4), round(difference.high, 4)],
                "only_served_right": difference.won,
                "only_lock_step_right": difference.lost,
            },
            "sides": {"lock_step": side_as_json(self.lock_step), "served": side_as_json(self.served)},
        }

    def claims(self, pair: str, bounds: Bounds) -> list[dict[str, Any]]:
        """Claims on this pair of models, and whether each holds."""
        throughput, alone = self.throughput_ratio.ratio, self.alone_ratio.ratio
        difference = self.accuracy_difference
        return [
            claim(
                f"{pair}: problems/s, served over lock step",
                round(throughput, 3),
                f">= {bounds.min_throughput}",
                throughput >= bounds.min_throughput,
            ),
            claim(
                f"{pair}: seconds of one problem alone, served over lock step",
                round(alone, 3),
                f"<= {bounds.max_seconds_alone}",
                alone <= bounds.max_seconds_alone,
            ),
            claim(
                f"{pair}: same accuracy: the 95% interval of the difference contains 0",
                [round(difference.low, 4), round(difference.high, 4)],
                "contains 0",
                difference.low <= 0 <= difference.high,
            ),
        ]


def side_as_json(answered: Sequence[Answered]) -> dict[str, Any]:
    """Accuracy of one side with its Wilson interval, and its totals."""
    right = sum(each.right for each in answered)
    counted = {
        "steps": sum(each.steps for each in answered),
        "tokens": sum(each.tokens for each in answered),
    }
    calls = [each.engine_calls for each in answered if each.engine_calls is not None]
    read = [each.prm_tokens for each in answered if each.prm_tokens is not None]
    return {
        "problems": len(answered),
        "right": right,
        "accuracy": round(right / len(answered), 4),
        "interval": [round(bound, 4) for bound in wilson(right, len(answered))],
        **counted,
        **({"engine_calls": sum(calls)} if calls else {}),
        **({"prm_tokens": sum(read)} if read else {}),
    }
