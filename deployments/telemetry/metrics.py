"""Metrics of one process: plain numbers that are published to Ray every few seconds.

A call to Ray's own metric objects costs microseconds; an update here costs a fraction of one.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from deployments.telemetry.catalog import Metric

logger = logging.getLogger("banyan.metrics")

PUBLISH_S = 5.0
"""Publishing interval, seconds. Ray's agent collects every ten seconds, scrapers rarely more often."""

Labels = tuple[str, ...]
Series = tuple[Metric, Labels]


class Instrument(Protocol):
    """One metric of a publisher such as Ray."""

    def record(self, value: float, labels: Labels) -> None:
        """Adds to a counter, sets a gauge, or adds an observation to a histogram."""
        ...


class Metrics:
    """Values by metric and labels. Not thread-safe."""

    def __init__(self) -> None:
        self._totals: dict[Series, float] = {}
        self._told: dict[Series, float] = {}
        self._gauges: dict[Series, float] = {}
        self._observed: dict[Series, list[float]] = {}
        self._readers: list[Callable[[], None]] = []
        self._instruments: dict[Metric, Instrument] = {}

    def add(self, metric: Metric, amount: float = 1, *labels: str) -> None:
        """Adds to a counter. An ``amount`` of 0 publishes the counter before its first increase."""
        series = (metric, labels)
        self._totals[series] = self._totals.get(series, 0) + amount

    def total(self, metric: Metric, value: float, *labels: str) -> None:
        """Sets a counter to a total that is counted elsewhere."""
        self._totals[metric, labels] = value

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        self._gauges[metric, labels] = value

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        self._observed.setdefault((metric, labels), []).append(value)

    def read(self, reader: Callable[[], None]) -> None:
        """Registers ``reader``, which is called before every publishing to set gauges and totals."""
        self._readers.append(reader)

    def publish(self, instrument: Callable[[Metric], Instrument]) -> None:
        """Publishes increases, gauges and new observations. ``instrument`` is called once for each metric."""
        for reader in self._readers:
            reader()
        for series, total in self._totals.items():
            new = total - self._told.get(series, 0)
            if new or series not in self._told:
                self._tell(series, new, instrument)
                self._told[series] = total
        for series, value in self._gauges.items():
            self._tell(series, value, instrument)
        observed, self._observed = self._observed, {}
        for series, values in observed.items():
            for value in values:
                self._tell(series, value, instrument)

    async def keep_publishing(self, instrument: Callable[[Metric], Instrument]) -> None:
        """Publishes until cancelled. Errors are logged: they must not end the process that is measured."""
        while True:
            try:
                self.publish(instrument)
            except Exception:
                logger.exception("the metrics were not published")
            await asyncio.sleep(PUBLISH_S)

    def _tell(self, series: Series, value: float, instrument: Callable[[Metric], Instrument]) -> None:
        metric, labels = series
        if metric not in self._instruments:
            self._instruments[metric] = instrument(metric)
        self._instruments[metric].record(value, labels)


class NoMetrics(Metrics):
    """Discards all values; used where metrics are off."""

    def add(self, metric: Metric, amount: float = 1, *labels: str) -> None: ...

    def total(self, metric: Metric, value: float, *labels: str) -> None: ...

    def set(self, metric: Metric, value: float, *labels: str) -> None: ...

    def observe(self, metric: Metric, value: float, *labels: str) -> None: ...
