"""The figures of a pair of models: ratios of ours over base with their intervals, CPU time, claims."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from benchmarks.pace.rounds import IN_FLIGHT, Batch, Round, median_latency_s
from benchmarks.ratios import Ratio, ratio_with_interval
from benchmarks.record import claim

MIN_THROUGHPUT_RATIO = 0.97
MAX_LATENCY_RATIO = 1 / MIN_THROUGHPUT_RATIO
MODES = ("in_flight", "alone")
SIDES = ("base", "ours")


class Comparison(NamedTuple):
    """Rounds of one pair of models, as figures of ours beside those of base."""

    rounds: Sequence[Round]

    def batches(self, side: str, mode: str) -> list[Batch]:
        return [getattr(measured[side], mode) for measured in self.rounds]

    @property
    def throughput(self) -> Ratio:
        """Problems per second with requests in flight, ours over base, by round."""
        ours, base = (
            [batch.problems_per_second for batch in self.batches(side, "in_flight")] for side in ("ours", "base")
        )
        return ratio_with_interval(list(zip(ours, base, strict=True)))

    @property
    def latency(self) -> Ratio:
        """Seconds of a request that is alone, ours over base, by problem."""
        ours, base = (
            [latency for batch in self.batches(side, "alone") for latency in batch.latencies_s]
            for side in ("ours", "base")
        )
        return ratio_with_interval(list(zip(ours, base, strict=True)))

    @property
    def searches(self) -> int:
        return sum(len(batch.searches) for mode in MODES for batch in self.batches("ours", mode))

    @property
    def equal_searches(self) -> int:
        """Searches with the same answer, number of steps and number of tokens on both sides."""
        return sum(
            here == there
            for mode in MODES
            for ours, base in zip(self.batches("ours", mode), self.batches("base", mode), strict=True)
            for here, there in zip(ours.searches, base.searches, strict=True)
        )

    @property
    def json(self) -> dict[str, Any]:
        return {
            "rounds": len(self.rounds),
            "throughput_ours_over_base": self.throughput.as_json,
            "latency_alone_ours_over_base": self.latency.as_json,
            "searches": self.searches,
            "searches_with_equal_answer_steps_and_tokens": self.equal_searches,
            "sides": {side: self._side_json(side) for side in SIDES},
        }

    def _side_json(self, side: str) -> dict[str, Any]:
        in_flight, alone = self.batches(side, "in_flight"), self.batches(side, "alone")
        return {
            "problems_per_second": [round(batch.problems_per_second, 4) for batch in in_flight],
            "p50_latency_s_in_flight": round(median_latency_s(in_flight), 4),
            "latency_s_alone": [[round(latency, 4) for latency in batch.latencies_s] for batch in alone],
            "p50_latency_s_alone": round(median_latency_s(alone), 4),
            "steps": sum(search.steps for batch in (*in_flight, *alone) for search in batch.searches),
            "tokens": sum(search.tokens for batch in (*in_flight, *alone) for search in batch.searches),
            "cpu_ms_per_step": {mode: cpu_ms_per_step(self.batches(side, mode)) for mode in MODES},
        }

    def claims(self, pair: str) -> list[dict[str, Any]]:
        throughput, latency = self.throughput.ratio, self.latency.ratio
        return [
            claim(
                f"{pair}: problems/s at {IN_FLIGHT} in flight, ours over base",
                round(throughput, 3),
                f">= {MIN_THROUGHPUT_RATIO}",
                throughput >= MIN_THROUGHPUT_RATIO,
            ),
            claim(
                f"{pair}: seconds of a problem alone, ours over base",
                round(latency, 3),
                f"<= {MAX_LATENCY_RATIO:.2f}",
                latency <= MAX_LATENCY_RATIO,
            ),
        ]

    def table(self, pair: str) -> Table:
        title = (
            f"{pair}: {len(self.rounds)} rounds, {self.equal_searches} of {self.searches} searches "
            "with equal answer, steps and tokens"
        )
        table = Table("figure", *SIDES, "ours / base", title=title)
        speeds = [np.median([batch.problems_per_second for batch in self.batches(side, "in_flight")]) for side in SIDES]
        table.add_row(f"problems/s, {IN_FLIGHT} in flight, p50", *(f"{x:.3f}" for x in speeds), str(self.throughput))
        latencies = [median_latency_s(self.batches(side, "alone")) for side in SIDES]
        table.add_row("seconds alone, p50", *(f"{latency:.3f}" for latency in latencies), str(self.latency))
        for mode in MODES:
            base, ours = (cpu_ms_per_step(self.batches(side, mode)) for side in SIDES)
            for role in sorted({**base, **ours}, key=lambda role: -max(base.get(role, 0), ours.get(role, 0))):
                costs = base.get(role), ours.get(role)
                ratio = f"{costs[1] / costs[0]:.2f}" if costs[0] and costs[1] else ""
                shown = ("" if cost is None else f"{cost:.2f}" for cost in costs)
                table.add_row(f"CPU ms per step, {mode.replace('_', ' ')}: {role}", *shown, ratio)
        return table


def cpu_ms_per_step(batches: Sequence[Batch]) -> dict[str, float]:
    """CPU milliseconds per step by process role, the largest first."""
    steps = sum(search.steps for batch in batches for search in batch.searches)
    seconds: dict[str, float] = defaultdict(float)
    for batch in batches:
        for role, spent in batch.cpu.items():
            seconds[role] += spent
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return {role: round(1000 * spent / steps, 3) for role, spent in ordered}
