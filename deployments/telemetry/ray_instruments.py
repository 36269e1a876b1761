"""Metrics through Ray: each node's agent has them for Prometheus. Imports Ray: only replicas import this."""

import asyncio
from typing import Any

from ray.serve import metrics

from deployments.telemetry.catalog import Kind, Metric
from deployments.telemetry.metrics import Labels, Metrics


class RayInstrument:
    """One metric at Ray, with Serve's labels beside its own."""

    def __init__(self, metric: Metric) -> None:
        self._keys = metric.labels
        self._metric: metrics.Counter | metrics.Gauge | metrics.Histogram
        keys: Any = metric.labels  # which Serve's types want to be exactly one
        if metric.kind is Kind.HISTOGRAM:
            self._metric = metrics.Histogram(metric.name, metric.help, list(metric.boundaries), keys)
        else:
            kind = metrics.Counter if metric.kind is Kind.COUNTER else metrics.Gauge
            self._metric = kind(metric.name, metric.help, keys)

    def record(self, value: float, labels: Labels) -> None:
        # Not `inc`, which refuses the 0 that has a counter appear before it first moves: without it neither an alert
        # nor `rate` sees the first failure. Serve's own wrappers add nothing here but the label `route`.
        self._metric._record(value, dict(zip(self._keys, labels, strict=True)))


def publish(numbers: Metrics) -> "asyncio.Task[None]":
    """A task that tells Ray every few seconds, as long as the process runs. Whoever starts it has to keep it."""
    return asyncio.get_running_loop().create_task(numbers.keep_publishing(RayInstrument))
