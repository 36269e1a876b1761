"""The thesis benchmark measures each point once, counts what grew, and draws what it measured."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from benchmarks.thesis.__main__ import claims
from benchmarks.thesis.measuring import KV_USE, Counted, figures, growth
from benchmarks.thesis.plots import charts, compared, write_charts
from benchmarks.thesis.points import COMPARISONS, Application, Point, Sweeps, by_application, config_of
from benchmarks.thesis.svg import line_chart
from deployments.config import AppConfig
from deployments.engines.histograms import StepHistograms

SWEEPS = Sweeps((0.2, 0.5), (16, 64), (1, 16), ("cache",))
PAGE = Path(__file__).parents[2] / "docs" / "performance.md"


class Engine:
    """The counters of an engine, and its histograms."""

    def __init__(self) -> None:
        self.steps = StepHistograms()
        self.counters = dict.fromkeys(
            ("prompt_tokens", "generated_tokens", "prefix_queries", "prefix_hits", "external_hits", "engine_steps"), 0
        )
        self.counters |= dict.fromkeys(("engine_step_requests", "recomputed_tokens", "preemptions"), 0)
        self.counters |= {"total_blocks": 128, "running": 2}

    def stats(self) -> dict[str, int]:
        return dict(self.counters)

    @property
    def histograms(self) -> dict[str, Any]:
        return dict(self.steps.by_name)


def grown() -> dict[str, Any]:
    engine = Engine()
    engine.steps.step(tokens=500, requests=1, kv_use=1.0)
    before = Counted.of(engine)
    engine.steps.step(tokens=70, requests=7, kv_use=0.2)
    engine.steps.step(tokens=3, requests=3, kv_use=0.4)
    engine.counters |= {"engine_steps": 2, "engine_step_requests": 10, "prompt_tokens": 80, "prefix_queries": 80}
    engine.counters |= {"prefix_hits": 20, "generated_tokens": 20, "recomputed_tokens": 10}
    return growth(before, Counted.of(engine))


def row(point: Point, rate: float, fill: float) -> dict[str, Any]:
    of = figures(grown(), 2.0, 16)
    return {
        **point.application._asdict(),
        "clients": point.clients,
        "searches": 4,
        "searches_per_s": rate,
        "generated_tokens": 100,
        "generator": {**of, "batch_fill": fill},
        "prm": of,
        "kv_use": [[0.1, 0.5, 0.25], [0.2, 0.75, 0.0]],
    }


def test_each_point_is_measured_once_and_applications_are_started_once() -> None:
    base = Application(0.5, 64)
    assert by_application(SWEEPS.points) == {
        base: [Point(base, 1), Point(base, 16)],
        Application(0.2, 64): [Point(Application(0.2, 64), 16)],
        Application(0.5, 16): [Point(Application(0.5, 16), 16)],
        Application(0.5, 64, "without cache"): [Point(Application(0.5, 64, "without cache"), 16)],
    }


def test_a_split_divides_the_memory_and_keeps_the_configuration() -> None:
    given = AppConfig.model_validate({"generator": {"served_name": "mine"}, "cache": {"l1_size_gb": 0.5}})
    config = config_of(given, Application(0.25, 32), 64 << 20)
    prm: Any = config.prm
    assert (config.generator.kv_cache_memory_bytes, prm.kv_cache_memory_bytes) == (16 << 20, 48 << 20)
    assert (config.generator.max_num_seqs, config.generator.served_name, config.cache.l1_size_gb) == (32, "mine", 0.5)


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_comparison_changes_its_settings_alone(name: str) -> None:
    base = Application(0.5, 64)
    here = config_of(AppConfig(), base, 64 << 20).model_dump()
    without = config_of(AppConfig(), base._replace(side=f"without {name}"), 64 << 20).model_dump()
    differ = {
        f"{part}.{key}"
        for part in here
        if isinstance(here[part], dict)
        for key in here[part]
        if here[part][key] != without[part][key]
    }
    assert differ == {f"{part}.{key}" for part, of in COMPARISONS[name].items() for key in of}


def test_growth_leaves_out_what_was_before() -> None:
    of = figures(grown(), 2.0, 16)
    assert (of["batch_fill"], of["hit_rate"], of["tokens_per_s"]) == (10 / 2 / 16, 0.25, 10.0)
    assert of["recomputed_share"] == 0.1
    assert of["mean_kv_use"] == pytest.approx(0.3)
    assert of["histograms"]["engine_step_tokens"]["counts"] == [0, 1, 0, 0, 1, 0, 0, 0, 0]
    assert sum(of["histograms"][KV_USE]["counts"]) == 2
    assert "running" not in of["counters"], "no counter"


def test_the_charts_are_drawn_and_the_page_shows_all_of_them(tmp_path: Path) -> None:
    rows = [row(point, 1.0 + point.clients, 0.1 * point.clients) for point in SWEEPS.points]
    paths = write_charts(json.loads(json.dumps(rows)), SWEEPS, tmp_path)
    assert {path.name for path in paths} == charts(rows, SWEEPS).keys()
    for path in paths:
        lines = ET.parse(path).getroot().iter("{http://www.w3.org/2000/svg}polyline")
        assert all("nan" not in line.attrib["points"] for line in lines)
        assert f"(performance/{path.name})" in PAGE.read_text(encoding="utf-8")


def test_claims_compare_batch_fills_and_what_was_written() -> None:
    rows = [row(point, 1.0, 0.1 if point.clients == 1 else 0.4) for point in SWEEPS.points]
    assert [each["holds"] for each in claims(rows, SWEEPS)] == [True, True]
    rows[-1]["generated_tokens"] += 1
    rows[1]["generator"]["batch_fill"] = 0.15
    assert [each["holds"] for each in claims(rows, SWEEPS)] == [False, False]


def test_a_comparison_is_the_rate_over_that_without() -> None:
    rows = [row(point, 3.0, 0.1) for point in SWEEPS.points]
    rows[-1]["searches_per_s"] = 2.0
    assert rows[-1]["side"] == "without cache"
    assert compared(rows, SWEEPS) == {"cache": 1.5}


def test_a_chart_places_points_between_its_axes() -> None:
    svg = line_chart("t", "x", "y", {"a<b": [(1, 0), (4, 2), (16, 10)]}, doubles=True)
    root = ET.fromstring(svg)
    [line] = root.iter("{http://www.w3.org/2000/svg}polyline")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert (y0 - y1) / (y0 - y2) == pytest.approx(0.2, abs=0.01)
    assert "a<b" in {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
