"""Histograms of an engine's steps: fixed buckets, a few operations per step. Imports no vLLM."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

TOKENS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0)
"""Upper bucket boundaries of the tokens in an engine step."""
REQUESTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
"""Upper bucket boundaries of the requests in an engine step."""
SHARES = tuple(tenth / 10 for tenth in range(1, 11))
"""Upper bucket boundaries of a share of KV memory."""
RESIDENCY_S = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
"""Upper bucket boundaries of times in a KV block's life, seconds."""


class Histogram:
    """Counts and sums of observed values by bucket; those of the last bucket exceed every boundary."""

    def __init__(self, boundaries: Sequence[float]) -> None:
        self._boundaries = tuple(boundaries)
        self._counts = [0] * (len(self._boundaries) + 1)
        self._sums = [0.0] * (len(self._boundaries) + 1)
        self._told = list(zip(self._counts, self._sums, strict=True))

    def observe(self, value: float) -> None:
        bucket = bisect_left(self._boundaries, value)
        self._counts[bucket] += 1
        self._sums[bucket] += value

    @property
    def figures(self) -> dict[str, Any]:
        """``buckets``: number of values up to each boundary, cumulative as in Prometheus; ``count``; ``sum``."""
        names = [f"{boundary:g}" for boundary in self._boundaries] + ["+Inf"]
        total = 0
        buckets = {}
        for name, count in zip(names, self._counts, strict=True):
            total += count
            buckets[name] = total
        return {"buckets": buckets, "count": total, "sum": round(sum(self._sums), 3)}

    def new_values(self) -> list[float]:
        """The values since the last call, each as the mean of the new ones in its bucket: counts and sums are exact."""
        now = list(zip(self._counts, self._sums, strict=True))
        told, self._told = self._told, now
        values: list[float] = []
        for (count, total), (count_before, before) in zip(now, told, strict=True):
            if new := count - count_before:
                values += [(total - before) / new] * new
        return values


class HistogramSum(Histogram):
    """Histograms with the same boundaries, read as one."""

    def __init__(self, parts: Sequence[Histogram]) -> None:
        self._parts = parts

    @property
    def figures(self) -> dict[str, Any]:
        parts = [part.figures for part in self._parts]
        buckets = {name: sum(part["buckets"][name] for part in parts) for name in parts[0]["buckets"]}
        return {"buckets": buckets, **{name: sum(part[name] for part in parts) for name in ("count", "sum")}}

    def new_values(self) -> list[float]:
        return [value for part in self._parts for value in part.new_values()]


class StepHistograms:
    """The histograms of one engine. `EngineCounters` fills them, with one update per engine step."""

    def __init__(self) -> None:
        self._tokens, self._requests, self._kv_use = Histogram(TOKENS), Histogram(REQUESTS), Histogram(SHARES)
        self._lifetime, self._idle, self._reuse_gap = (Histogram(RESIDENCY_S) for _ in range(3))
        self.by_name = {
            "engine_step_tokens": self._tokens,
            "engine_step_requests": self._requests,
            "engine_step_kv_use_ratio": self._kv_use,
            "kv_block_lifetime_seconds": self._lifetime,
            "kv_block_idle_seconds": self._idle,
            "kv_block_reuse_gap_seconds": self._reuse_gap,
        }

    def step(self, tokens: int, requests: int, kv_use: float) -> None:
        """Records a step that computed something.

        Args:
            tokens: tokens that it computed: uncached tokens of prompts, and one for each request that goes on.
            requests: requests in its batch.
            kv_use: share of the KV blocks that requests held.
        """
        self._tokens.observe(tokens)
        self._requests.observe(requests)
        self._kv_use.observe(kv_use)

    def evicted(self, lifetime_s: float, idle_s: float, reuse_gaps_s: Sequence[float]) -> None:
        """Records the end of a block: its age, the time since it was last read, and the times between its last reads.
        vLLM samples blocks, so few of them come here."""
        self._lifetime.observe(lifetime_s)
        # vLLM reads the clock once for each: a block that was never read again is idle a little longer than it lives.
        self._idle.observe(min(idle_s, lifetime_s))
        for gap in reuse_gaps_s:
            self._reuse_gap.observe(gap)
