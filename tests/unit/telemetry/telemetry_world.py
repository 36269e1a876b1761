"""Searches over the fakes of the unit tests, with the telemetry of a controller."""

from typing import Any

from deployments.calls.handles import HandleGenerator, HandleScorer
from deployments.calls.serve_calls import Retries
from deployments.service.searches import SearchJob, SearchService
from deployments.service.slots import Owner, Slots
from deployments.telemetry.catalog import Metric
from deployments.telemetry.metrics import Labels, Metrics
from deployments.telemetry.search_log import SearchLog
from deployments.telemetry.searches import SearchTelemetry
from deployments.telemetry.tracing import Traces
from search.answers.equivalence import AnswerMatcher
from search.ports import TokenBeamReply, TokenBeamRequest
from search.prompt import Prompt
from search.run.environment import SearchEnvironment
from search.run.report import SearchOutcome
from search.settings import parse_search
from tests.unit.handle_fakes import HandleOf
from tests.unit.search.search_fakes import PROMPT, FakeGenerator, FakeScorer

QUESTION = "How many seconds has the secret question?"


class Published:
    """Everything that was published: values by name and labels."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, Labels], list[float]] = {}

    def __call__(self, metric: Metric) -> "RecordingInstrument":
        return RecordingInstrument(self, metric)

    def record(self, metric: Metric, value: float, labels: Labels) -> None:
        assert len(labels) == len(metric.labels)
        self._values.setdefault((metric.name, labels), []).append(value)

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self._values}

    def all(self, metric: Metric, *labels: str) -> list[float]:
        return self._values.get((metric.name, labels), [])

    def sum(self, metric: Metric, *labels: str) -> float:
        return sum(self.all(metric, *labels))

    def last(self, metric: Metric, *labels: str) -> float:
        return self.all(metric, *labels)[-1]

    def forget(self) -> None:
        self._values.clear()


class RecordingInstrument:
    def __init__(self, published: Published, metric: Metric) -> None:
        self._published = published
        self._metric = metric

    def record(self, value: float, labels: Labels) -> None:
        self._published.record(self._metric, value, labels)


class BeamingGenerator(FakeGenerator):
    async def token_beam(self, request: TokenBeamRequest) -> TokenBeamReply:
        return TokenBeamReply((), 11)


class World:
    """A service whose searches are observed."""

    def __init__(self, traces: Traces | None = None, log: SearchLog | None = None, attempts: int = 1) -> None:
        self.metrics, self.published = Metrics(), Published()
        self.generator = BeamingGenerator()
        self.scorer = FakeScorer()
        self.telemetry = SearchTelemetry(self.metrics, traces, log)
        retries = Retries(attempts, backoff_s=0.0, backoff_max_s=0.0, silence_s=5.0)
        self.calls = HandleGenerator(HandleOf(self.generator), retries, telemetry=self.telemetry)
        environment = SearchEnvironment(
            generator=self.calls,
            scorer=HandleScorer(HandleOf(self.scorer), retries, 15.0, telemetry=self.telemetry),
            context_tokens=1000,
            matcher=AnswerMatcher(),
        )
        self.slots = Slots(4)
        self.service = SearchService(environment, self.slots, 60.0, self.telemetry.observed)

    async def search(self, search_id: str = "s1", **settings: Any) -> SearchOutcome:
        wanted = parse_search({"strategy": "beam_search", "n": 8, "m": 4, "seed": 7} | settings)
        async with self.slots.hold(Owner("one")) as slot:
            return await self.service.search(SearchJob(search_id, QUESTION, Prompt(PROMPT), wanted), slot)

    def publish(self) -> Published:
        """Publishes, and returns the values that are new."""
        self.published.forget()
        self.metrics.publish(self.published)
        return self.published
