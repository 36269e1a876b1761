"""Telemetry of a controller: its metrics, traces and logs."""

import asyncio
import logging
from contextlib import suppress

from deployments.config import TelemetrySettings
from deployments.loop.delay import LoopDelay
from deployments.service.answer_cache import AnswerCache
from deployments.service.slots import Slots
from deployments.telemetry import catalog, logs
from deployments.telemetry.metrics import Metrics, NoMetrics
from deployments.telemetry.search_log import SearchLog
from deployments.telemetry.searches import SearchTelemetry
from deployments.telemetry.tracing import Traces, tracer_provider
from search.run.step_hook import HookCall

logger = logging.getLogger("banyan.step_hook")

CALLS = ("expand", "score", "token_beam")


class ControllerFigures:
    """Reads slots and event-loop delay whenever metrics are published."""

    def __init__(self, metrics: Metrics, slots: Slots, delay: LoopDelay, answers: AnswerCache | None = None) -> None:
        self._metrics = metrics
        self._answers = answers
        self._slots = slots
        self._delay = delay
        # Publish 0 before the first event: a counter that first appears at 1 shows no increase.
        steps = catalog.STEPS_WRITTEN, catalog.STEPS_REPEATED, catalog.STEPS_SCORED
        for metric in (*steps, catalog.PATHS_WANDERING, catalog.HARMFUL):
            metrics.add(metric, 0)
        for call in CALLS:
            metrics.add(catalog.RETRIES, 0, call)

    def read(self) -> None:
        metrics = self._metrics
        metrics.set(catalog.PLACES, self._slots.count)
        metrics.set(catalog.PLACES_TAKEN, self._slots.held)
        metrics.set(catalog.QUEUE_WAITING, self._slots.waiting)
        metrics.set(catalog.LOOP_DELAY, self._delay.take_longest())
        if (answers := self._answers) is not None:
            for found, count in answers.lookups.items():
                metrics.total(catalog.ANSWERS_LOOKED_UP, count, found)
            metrics.total(catalog.ANSWERS_EVICTED, answers.evictions)
            metrics.total(catalog.EMBEDDINGS_FAILED, answers.embedding_failures)
            metrics.set(catalog.ANSWERS_KEPT, len(answers))
            metrics.set(catalog.ANSWERS_BYTES, answers.memory_bytes)


class ControllerTelemetry:
    """Telemetry of one controller. Create it before the searches, start it when they can begin."""

    def __init__(self, settings: TelemetrySettings, log_level: str) -> None:
        logs.configure(settings, log_level)
        self.metrics = Metrics() if settings.metrics else NoMetrics()
        self._provider = tracer_provider(settings.tracing) if settings.tracing else None
        traces = Traces(self._provider.get_tracer("banyan")) if self._provider else None
        log = SearchLog(settings.log_texts) if settings.search_log else None
        self.searches = SearchTelemetry(self.metrics, traces, log)
        self._publishing: asyncio.Task[None] | None = None
        self._hook_failing = False

    def start(self, slots: Slots, delay: LoopDelay, answers: AnswerCache | None = None) -> None:
        if isinstance(self.metrics, NoMetrics):
            return
        from deployments.telemetry.ray_instruments import publish

        self.metrics.read(ControllerFigures(self.metrics, slots, delay, answers).read)
        self._publishing = publish(self.metrics)

    def found_harmful(self) -> None:
        """Counts a request that ended two engines."""
        self.metrics.add(catalog.HARMFUL, 1)

    def hook_called(self, call: HookCall) -> None:
        """Counts a call of the step hook, and logs the first of a row of failures."""
        self.metrics.add(catalog.HOOK_CALLS, 1, call.result)
        self.metrics.observe(catalog.HOOK_SECONDS, call.seconds)
        if call.error is not None and not self._hook_failing:
            logger.warning("%s", call.error, exc_info=call.error)
        self._hook_failing = call.error is not None

    def refused(self, status: int, reason: str, count: int) -> None:
        """Counts ``count`` requests that were answered with an error."""
        self.metrics.add(catalog.REFUSED, count, str(status), reason)

    def close(self) -> None:
        if self._publishing is not None:
            with suppress(RuntimeError):  # its loop is closed
                self._publishing.cancel()
        if self._provider is not None:
            self._provider.shutdown()
