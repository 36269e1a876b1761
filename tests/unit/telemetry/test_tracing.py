"""Spans of a search, its rounds and its calls."""

from collections import Counter

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from deployments.config import AppConfig, TracingSettings
from deployments.service.searches import ScoreJob
from deployments.service.slots import Owner, Slot
from deployments.telemetry.tracing import Traces, tracer_provider
from search.errors import GeneratorError, ScorerError
from search.ports import ScoreItem, ScoreRequest
from tests.unit.search.search_fakes import broken
from tests.unit.telemetry.telemetry_world import QUESTION, World


class Traced(World):
    def __init__(self, attempts: int = 1) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        super().__init__(Traces(provider.get_tracer("test")), attempts=attempts)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())


def by_id(spans: list[ReadableSpan]) -> dict[int, ReadableSpan]:
    return {span.context.span_id: span for span in spans if span.context}


async def test_a_search_its_rounds_and_its_calls_are_one_trace() -> None:
    world = Traced()
    outcome = await world.search()
    spans = by_id(world.spans)
    assert len({span.context.trace_id for span in spans.values() if span.context}) == 1
    [search] = [span for span in spans.values() if span.name == "search"]
    assert search.parent is None
    counts = Counter(span.name for span in spans.values())
    assert counts["expand"] == outcome.cost.expand_calls
    assert counts["score"] == outcome.cost.prm_calls
    assert counts["round"] >= 2
    above = {"round": "search", "expand": "round", "score": "round"}
    for span in spans.values():
        if span.parent is not None:
            assert spans[span.parent.span_id].name == above[span.name]
        assert span.end_time is not None
    assert search.attributes is not None
    assert search.attributes["banyan.search_id"] == "s1"
    assert search.attributes["banyan.ending"] == "finished"
    assert search.attributes["banyan.generated_tokens"] == outcome.cost.generated_tokens
    numbers = [span.attributes["banyan.round"] for span in spans.values() if span.name == "round" and span.attributes]
    assert numbers == list(range(1, counts["round"] + 1))


async def test_spans_contain_no_text_of_a_user() -> None:
    world = Traced()
    await world.search()
    assert QUESTION not in "".join(span.to_json() for span in world.spans)


async def test_failed_spans_have_an_error_status() -> None:
    world = Traced()
    world.generator.fail_after = 0
    with pytest.raises(GeneratorError):
        await world.search()
    status = {span.name: (span.status.status_code, span.status.description) for span in world.spans}
    assert status["search"] == status["expand"] == (StatusCode.ERROR, "GeneratorError")


async def test_every_attempt_of_a_call_has_a_span() -> None:
    world = Traced(attempts=20)
    world.generator.interruptions = 4
    outcome = await world.search()
    calls = [span for span in world.spans if span.name == "expand"]
    assert len(calls) == outcome.cost.expand_calls + 4 - world.generator.interruptions > outcome.cost.expand_calls
    failed = [span for span in calls if span.status.status_code is StatusCode.ERROR]
    assert {span.status.description for span in failed} == {"ConnectionResetError"}
    assert len(calls) - len(failed) == outcome.cost.expand_calls
    attributes = [span.attributes for span in calls if span.attributes]
    written = [each.get("banyan.generated_tokens", 0) for each in attributes]
    assert sum(written) == outcome.cost.generated_tokens  # type: ignore[arg-type]
    assert {each["banyan.lane"] for each in attributes} == {"first_steps", "demand"}


async def test_a_call_outside_of_a_search_is_a_trace_of_its_own() -> None:
    world = Traced()
    world.scorer.spoil = broken
    job = ScoreJob(ScoreRequest("alone", "?", (ScoreItem(("step",)),), 1.0), prompt_tokens=1)
    with pytest.raises(ScorerError):
        await world.service.score(job, Slot(Owner("a")))
    [span] = world.spans
    assert (span.name, span.parent) == ("score", None)


def test_traces_are_off_by_default_and_sent_to_the_configured_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    assert AppConfig().telemetry.tracing is None
    sent: list[str | None] = []

    class Exporter(InMemorySpanExporter):
        def __init__(self, endpoint: str | None, timeout: float) -> None:
            sent.append(endpoint)
            super().__init__()

    monkeypatch.setattr("opentelemetry.exporter.otlp.proto.http.trace_exporter.OTLPSpanExporter", Exporter)
    endpoint = "http://127.0.0.1:4318/v1/traces"
    provider = tracer_provider(TracingSettings(endpoint=endpoint, ratio=0.0))
    try:
        assert not provider.get_tracer("test").start_span("search").is_recording()
    finally:
        provider.shutdown()
    assert sent == [endpoint]
