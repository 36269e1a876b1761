"""Plain numbers, told to Ray as what is new."""

import asyncio
import re
from pathlib import Path

import pytest

from deployments.telemetry import catalog
from deployments.telemetry.catalog import METRICS, Kind, Metric
from deployments.telemetry.engine_telemetry import EngineFigures
from deployments.telemetry.metrics import Instrument, Metrics, NoMetrics
from tests.unit.telemetry.telemetry_world import Told

ROW = re.compile(r"\| `(?P<name>ray_banyan_\w+)` \| (?P<kind>\w+) \| (?P<labels>[^|]*) \| (?P<help>[^|]+) \|")
OPERATING = Path(__file__).parents[3] / "docs" / "operating.md"
UNITS = ("_seconds", "_total", "_tokens", "_ratio", "_blocks", "_branches", "_calls", "_requests", "_places", "_bytes")


def test_the_documentation_has_every_metric_and_no_other() -> None:
    rows = {row["name"]: row for row in ROW.finditer(OPERATING.read_text(encoding="utf-8"))}
    assert rows.keys() == {f"ray_{name}" for name in METRICS}
    for name, metric in METRICS.items():
        row = rows[f"ray_{name}"]
        assert (row["kind"], row["help"]) == (metric.kind.value, metric.help)
        assert re.findall(r"`(\w+)`", row["labels"]) == list(metric.labels)


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_names_have_units(metric: Metric) -> None:
    if metric.kind is Kind.COUNTER:
        assert metric.name.endswith("_total")
    if metric.kind is Kind.HISTOGRAM:
        assert metric.name.endswith("_seconds")
        assert list(metric.boundaries) == sorted(metric.boundaries)
    assert metric.name.endswith((*UNITS, "_taken", "_entries", "_up"))


def test_gauges_are_told_every_time_counters_when_they_moved() -> None:
    metrics = Metrics()
    metrics.set(catalog.PLACES, 64)
    metrics.add(catalog.STEPS_SCORED, 0)
    metrics.total(catalog.PREEMPTIONS, 3)
    told = Told()
    metrics.publish(told)
    assert (told.last(catalog.PLACES), told.last(catalog.STEPS_SCORED), told.last(catalog.PREEMPTIONS)) == (64, 0, 3)
    metrics.total(catalog.PREEMPTIONS, 5)
    told.forget()
    metrics.publish(told)
    assert told.names == {catalog.PLACES.name, catalog.PREEMPTIONS.name}
    assert (told.all(catalog.PLACES), told.all(catalog.PREEMPTIONS)) == ([64], [2])


def test_nothing_is_kept_where_nothing_is_published() -> None:
    metrics = NoMetrics()
    metrics.add(catalog.STEPS_SCORED)
    metrics.set(catalog.PLACES, 1)
    metrics.observe(catalog.SCORE_SECONDS, 0.5)
    metrics.total(catalog.PREEMPTIONS, 1)
    told = Told()
    metrics.publish(told)
    assert told.names == set()


async def test_publishing_goes_on_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.telemetry.metrics.PUBLISH_S", 0.001)
    metrics, told = Metrics(), Told()
    metrics.add(catalog.STEPS_SCORED, 2)
    done = asyncio.Event()
    metrics.read(lambda: done.set() if told.names else None)
    failing = [True]

    def instrument(metric: Metric) -> Instrument:
        if failing:
            failing.clear()
            raise RuntimeError("Ray is gone")
        return told(metric)

    publishing = asyncio.create_task(metrics.keep_publishing(instrument))
    async with asyncio.timeout(30):
        await done.wait()
    publishing.cancel()
    assert told.sum(catalog.STEPS_SCORED) == 2


def test_an_engines_figures() -> None:
    metrics, told = Metrics(), Told()
    stats = {"running": 3, "waiting": 1, "total_blocks": 100, "free_blocks": 60, "preemptions": 0}
    stats |= {"prefix_hits": 7, "external_hits": 5, "engine_steps": 10, "engine_step_requests": 160}
    figures = EngineFigures(metrics, lambda: stats, 64)
    metrics.read(figures.read)
    metrics.publish(told)
    assert told.last(catalog.KV_USED) == 40
    assert told.last(catalog.KV_FREE) == 60
    assert told.last(catalog.BATCH_FILL) == 0.25
    assert (told.sum(catalog.CACHED_TOKENS, "engine"), told.sum(catalog.CACHED_TOKENS, "lmcache")) == (7, 5)
    assert told.all(catalog.PREEMPTIONS) == [0]
    stats |= {"engine_steps": 12, "engine_step_requests": 288}
    metrics.publish(told)
    assert told.last(catalog.BATCH_FILL) == 1.0
    metrics.publish(told)
    assert told.last(catalog.BATCH_FILL) == 0.0  # it did nothing


def test_a_function_in_place_of_a_model_has_few_figures() -> None:
    metrics, told = Metrics(), Told()
    figures = EngineFigures(metrics, lambda: {"running": 2, "waiting": 0, "calls": 9}, 64)
    metrics.read(figures.read)
    metrics.publish(told)
    assert told.names == {catalog.RUNNING.name, catalog.WAITING.name}
