"""Telemetry of an engine's replica: the engine's statistics as metrics."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from deployments.config import TelemetrySettings
from deployments.engines.histograms import Histogram
from deployments.telemetry import catalog, logs
from deployments.telemetry.metrics import Metrics

GAUGES = {
    "running": catalog.RUNNING,
    "waiting": catalog.WAITING,
    "total_blocks": catalog.KV_BLOCKS,
    "free_blocks": catalog.KV_FREE,
    "reserved_blocks": catalog.KV_RESERVED,
    "reward_cache_entries": catalog.REWARD_CACHE_ENTRIES,
    "lmcache_up": catalog.LMCACHE_UP,
    "lmcache_used_bytes": catalog.LMCACHE_USED,
}
TOTALS = {
    "preemptions": catalog.PREEMPTIONS,
    "branches_held_back": catalog.HELD_BACK,
    "items_held_back": catalog.HELD_BACK,
    "branches_given_back": catalog.GIVEN_BACK,
    "recomputed_tokens": catalog.RECOMPUTED,
    "ahead_begun": catalog.AHEAD_BEGUN,
    "ahead_adopted": catalog.AHEAD_ADOPTED,
    "ahead_unused_tokens": catalog.AHEAD_UNUSED,
    "prompt_tokens": catalog.PROMPT_TOKENS,
    "generated_tokens": catalog.ENGINE_TOKENS,
    "critiques": catalog.CRITIQUES,
    "cut_critiques": catalog.CUT_CRITIQUES,
    "reward_cache_hits": catalog.REWARD_CACHE_HITS,
}
BY_LABEL = {
    catalog.CACHED_TOKENS: {"prefix_hits": "engine", "external_hits": "lmcache"},
    catalog.LMCACHE_CHUNKS: {
        f"lmcache_{event}_chunks": event
        for event in ("written", "read", "evicted", "second_tier_written", "second_tier_read")
    },
}


class EngineFigures:
    """Reads an engine's ``stats`` and histograms whenever metrics are published. A reward function has few of them."""

    def __init__(
        self,
        metrics: Metrics,
        stats: Callable[[], Mapping[str, int]],
        max_num_seqs: int | None,
        histograms: Mapping[str, Histogram],
    ) -> None:
        self._metrics = metrics
        self._stats = stats
        self._max_num_seqs = max_num_seqs
        self._histograms = histograms
        self._steps = self._step_requests = 0

    def read(self) -> None:
        stats = self._stats()
        for name, metric in GAUGES.items():
            if name in stats:
                self._metrics.set(metric, stats[name])
        for name, metric in TOTALS.items():
            if name in stats:
                self._metrics.total(metric, stats[name])
        for metric, labels in BY_LABEL.items():
            for name, label in labels.items():
                if name in stats:
                    self._metrics.total(metric, stats[name], label)
        for name, histogram in self._histograms.items():
            for value in histogram.new_values():
                self._metrics.observe(catalog.METRICS[f"banyan_{name}"], value)
        if "total_blocks" in stats:
            self._metrics.set(catalog.KV_USED, stats["total_blocks"] - stats["free_blocks"])
        if "engine_steps" in stats and self._max_num_seqs:
            self._metrics.set(catalog.BATCH_FILL, self._batch(stats) / self._max_num_seqs)

    def _batch(self, stats: Mapping[str, int]) -> float:
        """Mean number of requests per engine step since the last call; 0 without a step."""
        steps, requests = stats["engine_steps"] - self._steps, stats["engine_step_requests"] - self._step_requests
        self._steps, self._step_requests = stats["engine_steps"], stats["engine_step_requests"]
        return requests / steps if steps else 0.0


class EngineTelemetry:
    """Telemetry of a replica with an engine, or with a reward function in place of one."""

    def __init__(self, settings: TelemetrySettings, log_level: str) -> None:
        logs.configure(settings, log_level)
        self._settings = settings
        self._publishing: asyncio.Task[None] | None = None

    @property
    def stat_loggers(self) -> list[Any]:
        """vLLM stat loggers to use in addition to our own counters."""
        if not self._settings.engine_metrics:
            return []
        from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger

        return [RayPrometheusStatLogger]

    def start(
        self,
        stats: Callable[[], Mapping[str, int]],
        max_num_seqs: int | None,
        histograms: Mapping[str, Histogram],
    ) -> None:
        """Starts publishing what ``stats`` returns, and the histograms."""
        if not self._settings.metrics:
            return
        from deployments.telemetry.ray_instruments import publish

        metrics = Metrics()
        metrics.read(EngineFigures(metrics, stats, max_num_seqs, histograms).read)
        self._publishing = publish(metrics)

    def close(self) -> None:
        """Stops reading ``stats``. Call it before the engine ends."""
        if self._publishing is not None:
            with suppress(RuntimeError):  # its loop is closed
                self._publishing.cancel()
