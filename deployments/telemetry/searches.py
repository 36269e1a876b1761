"""Telemetry of a controller's searches: metrics, traces, and a log line when a search ends."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

from opentelemetry.trace import INVALID_SPAN, Span

from deployments.service.searches import SearchJob
from deployments.telemetry import catalog
from deployments.telemetry.context import CLIENT_KEY, SEARCH_ID
from deployments.telemetry.metrics import Metrics
from deployments.telemetry.search_log import SearchLog
from deployments.telemetry.tracing import Traces
from search.errors import LimitReached
from search.run.report import EventSink, RoundStarted, SearchCost, SearchEvent, SearchFinished
from search.tree import SearchTree

CANCELLED = "cancelled"
"""Ending of a search whose caller cancelled it."""


@dataclass
class SearchRecord:
    """Telemetry of one search, from its start to any ending."""

    job: SearchJob
    cost: SearchCost
    key: str
    started: float = field(default_factory=time.monotonic)
    ending: str = CANCELLED
    """A stop reason, or `ending_of` the error."""
    degraded: bool = False
    seconds: float = 0.0
    rounds: int = 0
    nodes: int = 0
    answer: str | None = None
    answered: bool = False

    @property
    def strategy(self) -> str:
        return self.job.settings.strategy.name

    @property
    def n(self) -> int:
        return int(getattr(self.job.settings.strategy, "n", 1))


class SearchTelemetry:
    """Records every search, reported by the service (`observed`), and its calls, reported by `deployments.calls`."""

    def __init__(self, metrics: Metrics, traces: Traces | None = None, log: SearchLog | None = None) -> None:
        self.metrics = metrics
        self._traces = traces
        self._log = log

    def call(self, name: str, search_id: str) -> AbstractContextManager[Span]:
        """The span of one call."""
        return self._traces.call(name, search_id) if self._traces else nullcontext(INVALID_SPAN)

    @contextmanager
    def observed(self, job: SearchJob, tree: SearchTree, cost: SearchCost) -> Iterator[EventSink]:
        """Records the search that runs in the block. Yields the sink for the search's events."""
        SEARCH_ID.set(job.search_id)
        record = SearchRecord(job, cost, CLIENT_KEY.get())
        spans = self._traces.begin(record) if self._traces else None

        def record_event(event: SearchEvent) -> None:
            if isinstance(event, RoundStarted):
                record.rounds += 1
                if spans is not None:
                    spans.round(event)
            elif isinstance(event, SearchFinished):
                record.ending = event.outcome.stop_reason.value
                record.answer = event.outcome.selection.answer
                record.answered = True

        try:
            yield record_event
        except asyncio.CancelledError:
            record.ending = CANCELLED
            raise
        except Exception as error:
            record.ending = ending_of(error)
            raise
        finally:
            record.seconds = time.monotonic() - record.started
            record.nodes = len(tree)
            record.degraded = tree.degraded
            self._ended(record, tree.repeated)

    def _ended(self, record: SearchRecord, repeated: int) -> None:
        self.metrics.add(catalog.SEARCHES, 1, record.strategy, record.ending, str(record.degraded).lower())
        self.metrics.observe(catalog.SEARCH_SECONDS, record.seconds, record.strategy)
        self.metrics.add(catalog.SEARCH_ROUNDS, record.rounds, record.strategy)
        self.metrics.add(catalog.STEPS_REPEATED, repeated)
        if record.answered:
            self._count_cost(record.strategy, record.cost)
        self.metrics.add(catalog.PATHS_WANDERING, record.cost.wandering_paths)
        if self._traces is not None:
            self._traces.end(record)
        if self._log is not None:
            self._log.write(record)

    def _count_cost(self, strategy: str, cost: SearchCost) -> None:
        """Counts what a search cost beside what one sample would have."""
        for subject, read, written, seconds in (
            ("search", cost.read_tokens, cost.written_tokens, cost.seconds),
            ("sample", cost.prompt_tokens, cost.sample_tokens, cost.sample_seconds),
        ):
            self.metrics.add(catalog.COST_TOKENS, read, strategy, subject, "read")
            self.metrics.add(catalog.COST_TOKENS, written, strategy, subject, "written")
            self.metrics.add(catalog.COST_SECONDS, seconds, strategy, subject)


def ending_of(error: Exception) -> str:
    """Ending of a search that failed: the class of the error, and for a limit also its kind."""
    return f"{type(error).__name__}:{error.kind}" if isinstance(error, LimitReached) else type(error).__name__
