"""Histograms of engine steps keep exact counts and sums."""

import pytest

from deployments.engines.histograms import Histogram, StepHistograms
from deployments.telemetry.catalog import METRICS, Kind, Owner

DECLARED = {
    name.removeprefix("banyan_"): metric
    for name, metric in METRICS.items()
    if metric.kind is Kind.HISTOGRAM and metric.owner is Owner.ENGINES
}


def test_a_boundary_belongs_to_its_bucket_and_buckets_are_cumulative() -> None:
    histogram = Histogram((1.0, 4.0, 16.0))
    for value in (0.5, 1.0, 4.0, 5.0, 100.0):
        histogram.observe(value)
    assert histogram.figures == {"buckets": {"1": 2, "4": 3, "16": 4, "+Inf": 5}, "count": 5, "sum": 110.5}


def test_new_values_have_the_counts_and_sums_of_those_observed_since() -> None:
    histogram = Histogram((1.0, 4.0))
    assert histogram.new_values() == []
    histogram.observe(0.25)
    histogram.observe(3)
    assert histogram.new_values() == [0.25, 3]
    histogram.observe(2)
    histogram.observe(4)
    assert histogram.new_values() == [3, 3]
    assert histogram.new_values() == []
    assert histogram.figures["sum"] == pytest.approx(9.25)


def test_each_has_a_metric_with_its_boundaries() -> None:
    histograms = StepHistograms()
    assert histograms.by_name.keys() == DECLARED.keys()
    for name, histogram in histograms.by_name.items():
        *boundaries, infinite = histogram.figures["buckets"]
        assert (boundaries, infinite) == ([f"{each:g}" for each in DECLARED[name].boundaries], "+Inf")


def test_a_step_and_an_eviction_reach_their_histograms() -> None:
    histograms = StepHistograms()
    histograms.step(tokens=70, requests=7, kv_use=0.25)
    histograms.evicted(3.0, 1.0, (0.5, 1.5))
    sums = {name: (each.figures["count"], each.figures["sum"]) for name, each in histograms.by_name.items()}
    assert sums == {
        "engine_step_tokens": (1, 70),
        "engine_step_requests": (1, 7),
        "engine_step_kv_use_ratio": (1, 0.25),
        "kv_block_lifetime_seconds": (1, 3),
        "kv_block_idle_seconds": (1, 1),
        "kv_block_reuse_gap_seconds": (2, 2),
    }


def test_no_block_is_idle_for_longer_than_it_lives() -> None:
    histograms = StepHistograms()
    histograms.evicted(4.1414, 4.1416, ())
    lifetime, idle = (histograms.by_name[f"kv_block_{name}_seconds"].figures for name in ("lifetime", "idle"))
    assert idle == lifetime
