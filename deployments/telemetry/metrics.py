"""The metrics of one process: plain numbers, which are told to Ray every few seconds.

Ray's own objects cost microseconds a call, these a fraction of one.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from deployments.telemetry.catalog import Metric

logger = logging.getLogger("banyan.metrics")

PUBLISH_S = 5.0
"""Ray's agent takes what it is told every ten seconds, its scrapers rarely more often."""

Labels = tuple[str, ...]
Series = tuple[Metric, Labels]


class Instrument(Protocol):
    """One metric at whoever publishes it."""

    def record(self, value: float, labels: Labels) -> None:
        """Adds to a counter, sets a gauge, enters into a histogram."""
        ...


class Metrics:
    """Numbers by metric and labels. Single-threaded."""

    def __init__(self) -> None:
        self._totals: dict[Series, float] = {}
        self._told: dict[Series, float] = {}
        self._gauges: dict[Series, float] = {}
        self._observed: dict[Series, list[float]] = {}
        self._readers: list[Callable[[], None]] = []
        self._instruments: dict[Metric, Instrument] = {}

    def add(self, metric: Metric, amount: float = 1, *labels: str) -> None:
        """Counts. An ``amount`` of 0 has a counter published that may never move."""
        series = (metric, labels)
        self._totals[series] = self._totals.get(series, 0) + amount

    def total(self, metric: Metric, value: float, *labels: str) -> None:
        """Says what somebody else has counted."""
        self._totals[metric, labels] = value

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        self._gauges[metric, labels] = value

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        self._observed.setdefault((metric, labels), []).append(value)

    def read(self, reader: Callable[[], None]) -> None:
        """``reader`` is called before every publishing, to set what is only looked at."""
        self._readers.append(reader)

    def publish(self, instrument: Callable[[Metric], Instrument]) -> None:
        """Tells what is new. ``instrument`` makes the publisher of a metric; it is asked once for each."""
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
        """Publishes until cancelled. What goes wrong is logged: it must not end what is measured."""
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
    """Where none are published: what is counted is forgotten."""

    def add(self, metric: Metric, amount: float = 1, *labels: str) -> None: ...

    def total(self, metric: Metric, value: float, *labels: str) -> None: ...

    def set(self, metric: Metric, value: float, *labels: str) -> None: ...

    def observe(self, metric: Metric, value: float, *labels: str) -> None: ...
