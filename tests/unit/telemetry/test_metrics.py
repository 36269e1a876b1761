"""Metrics are plain numbers; Ray gets their changes."""

import asyncio
import re
from pathlib import Path

import pytest

from deployments.engines.histograms import REQUESTS, Histogram
from deployments.telemetry import catalog
from deployments.telemetry.catalog import METRICS, Kind, Metric
from deployments.telemetry.engine_telemetry import EngineFigures
from deployments.telemetry.metrics import Instrument, Metrics, NoMetrics
from tests.unit.telemetry.telemetry_world import Published

ROW = re.compile(r"\| `(?P<name>ray_banyan_\w+)` \| (?P<kind>\w+) \| (?P<labels>[^|]*) \| (?P<help>[^|]+) \|")
MONITORING = Path(__file__).parents[3] / "docs" / "monitoring.md"
UNITS = ("_seconds", "_total", "_tokens", "_ratio", "_blocks", "_branches", "_calls", "_requests", "_places", "_bytes")


def test_the_documentation_lists_exactly_the_metrics() -> None:
    rows = {row["name"]: row for row in ROW.finditer(MONITORING.read_text(encoding="utf-8"))}
    assert rows.keys() == {f"ray_{name}" for name in METRICS}
    for name, metric in METRICS.items():
        row = rows[f"ray_{name}"]
        assert (row["kind"], row["help"]) == (metric.kind.value, metric.help)
        assert re.findall(r"`(\w+)`", row["labels"]) == list(metric.labels)


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_metric_names_have_units(metric: Metric) -> None:
    if metric.kind is Kind.COUNTER:
        assert metric.name.endswith("_total")
    if metric.kind is Kind.HISTOGRAM:
        assert metric.name.endswith(("_seconds", "_tokens", "_requests", "_ratio"))
        assert list(metric.boundaries) == sorted(metric.boundaries)
    assert metric.name.endswith((*UNITS, "_taken", "_entries", "_up"))


def test_gauges_are_always_published_and_counters_when_they_changed() -> None:
    metrics = Metrics()
    metrics.set(catalog.PLACES, 64)
    metrics.add(catalog.STEPS_SCORED, 0)
    metrics.total(catalog.PREEMPTIONS, 3)
    published = Published()
    metrics.publish(published)
    assert (
        published.last(catalog.PLACES),
        published.last(catalog.STEPS_SCORED),
        published.last(catalog.PREEMPTIONS),
    ) == (64, 0, 3)
    metrics.total(catalog.PREEMPTIONS, 5)
    published.forget()
    metrics.publish(published)
    assert published.names == {catalog.PLACES.name, catalog.PREEMPTIONS.name}
    assert (published.all(catalog.PLACES), published.all(catalog.PREEMPTIONS)) == ([64], [2])


def test_without_publishing_nothing_is_kept() -> None:
    metrics = NoMetrics()
    metrics.add(catalog.STEPS_SCORED)
    metrics.set(catalog.PLACES, 1)
    metrics.observe(catalog.SCORE_SECONDS, 0.5)
    metrics.total(catalog.PREEMPTIONS, 1)
    published = Published()
    metrics.publish(published)
    assert published.names == set()


async def test_publishing_goes_on_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.telemetry.metrics.PUBLISH_S", 0.001)
    metrics, published = Metrics(), Published()
    metrics.add(catalog.STEPS_SCORED, 2)
    done = asyncio.Event()
    metrics.read(lambda: done.set() if published.names else None)
    failing = [True]

    def instrument(metric: Metric) -> Instrument:
        if failing:
            failing.clear()
            raise RuntimeError("Ray is gone")
        return published(metric)

    publishing = asyncio.create_task(metrics.keep_publishing(instrument))
    async with asyncio.timeout(30):
        await done.wait()
    publishing.cancel()
    assert published.sum(catalog.STEPS_SCORED) == 2


def test_the_figures_of_an_engine_are_published() -> None:
    metrics, published = Metrics(), Published()
    stats = {"running": 3, "waiting": 1, "total_blocks": 100, "free_blocks": 60, "preemptions": 0}
    stats |= {"prefix_hits": 7, "external_hits": 5, "engine_steps": 10, "engine_step_requests": 160}
    requests = Histogram(REQUESTS)
    requests.observe(3)
    requests.observe(4)
    figures = EngineFigures(metrics, lambda: stats, 64, {"engine_step_requests": requests})
    metrics.read(figures.read)
    metrics.publish(published)
    assert published.last(catalog.KV_USED) == 40
    assert published.last(catalog.KV_FREE) == 60
    assert published.last(catalog.BATCH_FILL) == 0.25
    assert published.all(catalog.STEP_REQUESTS) == [3.5, 3.5], "in the same bucket"
    assert (published.sum(catalog.CACHED_TOKENS, "engine"), published.sum(catalog.CACHED_TOKENS, "lmcache")) == (7, 5)
    assert published.all(catalog.PREEMPTIONS) == [0]
    stats |= {"engine_steps": 12, "engine_step_requests": 288}
    metrics.publish(published)
    assert published.last(catalog.BATCH_FILL) == 1.0
    assert published.all(catalog.STEP_REQUESTS) == [3.5, 3.5], "no steps since"
    metrics.publish(published)
    assert published.last(catalog.BATCH_FILL) == 0.0  # no steps since


def test_a_reward_function_has_only_some_figures() -> None:
    metrics, published = Metrics(), Published()
    figures = EngineFigures(metrics, lambda: {"running": 2, "waiting": 0, "calls": 9}, 64, {})
    metrics.read(figures.read)
    metrics.publish(published)
    assert published.names == {catalog.RUNNING.name, catalog.WAITING.name}
