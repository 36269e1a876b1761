"""Spans of a search, its rounds and its calls, by OpenTelemetry.

search
└── round            what the strategy decided at one time
    ├── expand       an attempt of a call to the generator
    └── score        an attempt of a call to the process reward model, in the round that is current when it begins
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from deployments.config import TracingSettings
from search.run.report import RoundStarted, StopReason

if TYPE_CHECKING:
    from deployments.telemetry.searches import SearchRecord

EXPORT_S = 2.0
"""Timeout of sending spans, seconds, retries included: a stopping replica waits for the last attempt."""
ANSWERED = frozenset(reason.value for reason in StopReason)


class SearchSpans:
    """The span of one search, and of its current round."""

    def __init__(self, tracer: Tracer, record: "SearchRecord") -> None:
        self._tracer = tracer
        self._search = tracer.start_span(
            "search",
            attributes={
                "banyan.search_id": record.job.search_id,
                "banyan.strategy": record.strategy,
                "banyan.n": record.n,
                "banyan.key": record.key,
                "banyan.prompt_tokens": record.job.prompt.size,
            },
        )
        self._round: Span | None = None

    @property
    def current(self) -> Span:
        """Parent span of a call that begins now."""
        return self._round or self._search

    def round(self, event: RoundStarted) -> None:
        """Begins a round's span and ends the previous one."""
        if self._round is not None:
            self._round.end()
        attributes = {"banyan.round": event.number, "banyan.branches": event.branches}
        self._round = self._tracer.start_span("round", set_span_in_context(self._search), attributes=attributes)

    def end(self, record: "SearchRecord") -> None:
        if self._round is not None:
            self._round.end()
        self._search.set_attributes(
            {
                "banyan.ending": record.ending,
                "banyan.degraded": record.degraded,
                "banyan.nodes": record.nodes,
                "banyan.generated_tokens": record.cost.generated_tokens,
            }
        )
        if record.ending not in ANSWERED:
            self._search.set_status(Status(StatusCode.ERROR, record.ending))
        self._search.end()


class Traces:
    """The spans of all searches of a process."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._searches: dict[str, SearchSpans] = {}

    def begin(self, record: "SearchRecord") -> SearchSpans:
        spans = self._searches[record.job.search_id] = SearchSpans(self._tracer, record)
        return spans

    def end(self, record: "SearchRecord") -> None:
        self._searches.pop(record.job.search_id).end(record)

    @contextmanager
    def call(self, name: str, search_id: str) -> Iterator[Span]:
        """The span of a call, below its search's current round. Without a search it is a trace of its own."""
        spans = self._searches.get(search_id)
        parent = set_span_in_context(spans.current) if spans else None
        span = self._tracer.start_span(name, parent, attributes={"banyan.search_id": search_id})
        try:
            yield span
        except Exception as error:
            # Only its class: the message may quote a user.
            span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise
        finally:
            span.end()


def tracer_provider(settings: TracingSettings) -> TracerProvider:
    """Returns a provider that sends spans in the background, in batches, until its ``shutdown``."""
    # Imported here: its HTTP client is needed only where tracing is on.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    exporter: SpanExporter = OTLPSpanExporter(endpoint=settings.endpoint, timeout=EXPORT_S)
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(settings.ratio)), resource=Resource.create({"service.name": "banyan"})
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
