"""Publishes metrics through Ray: each node's agent exports them to Prometheus. Imports Ray: for replicas only."""

import asyncio
from typing import Any

from ray.serve import metrics

from deployments.telemetry.catalog import Kind, Metric
from deployments.telemetry.metrics import Labels, Metrics


class RayInstrument:
    """One Ray metric, with Serve's labels and its own."""

    def __init__(self, metric: Metric) -> None:
        self._keys = metric.labels
        self._metric: metrics.Counter | metrics.Gauge | metrics.Histogram
        keys: Any = metric.labels  # Serve's types allow exactly one label
        if metric.kind is Kind.HISTOGRAM:
            self._metric = metrics.Histogram(metric.name, metric.help, list(metric.boundaries), keys)
        else:
            kind = metrics.Counter if metric.kind is Kind.COUNTER else metrics.Gauge
            self._metric = kind(metric.name, metric.help, keys)

    def record(self, value: float, labels: Labels) -> None:
        # Not `inc`, which refuses 0: a counter is published as 0 before its first increase, since else neither an alert
        # nor `rate` sees the first failure. All that Serve's wrappers would add is the label `route`.
        self._metric._record(value, dict(zip(self._keys, labels, strict=True)))


def publish(numbers: Metrics) -> "asyncio.Task[None]":
    """Starts a task that publishes to Ray every few seconds. The caller must keep a reference to the task."""
    return asyncio.get_running_loop().create_task(numbers.keep_publishing(RayInstrument))
