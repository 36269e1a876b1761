"""Dashboards and alerts: the committed files are the program's, every query can be read by Prometheus and asks for
metrics and labels that exist, and every alert fires."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import pytest
import yaml

from cluster.dashboards.__main__ import FOLDER
from cluster.dashboards.boards import DASHBOARDS
from cluster.dashboards.layout import Dashboard, as_json
from cluster.dashboards.metrics import COMMON, FOREIGN
from deployments.telemetry.catalog import METRICS, Kind

ROOT = Path(__file__).parents[3]
ALERTS = FOLDER.with_name("alerts.yaml")
RAY_ASKS_FOR = (7, 8, 15, 20, 21, 22, 23, 24, 25)
"""Panels of the Serve page in Ray's dashboard, by their ids."""


class Asked(NamedTuple):
    """A query, with the name of its dashboard or alert."""

    where: str
    expr: str


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def queries() -> Iterator[Asked]:
    for dashboard in DASHBOARDS:
        for panel in json.loads((FOLDER / f"{dashboard.uid}.json").read_text())["panels"]:
            for target in panel["targets"]:
                yield Asked(f"{dashboard.uid}: {panel['title']}", as_prometheus_gets_it(target["expr"]))
    for rule in rules():
        yield Asked(rule["alert"], rule["expr"])


def as_prometheus_gets_it(expr: str) -> str:
    """Grafana's variables replaced."""
    return expr.replace("$application", ".*").replace("$__rate_interval", "1m")


@cache
def labels() -> dict[str, frozenset[str]]:
    """Labels of each metric, by the name that Prometheus has for it."""
    known = dict(FOREIGN)
    for name, metric in METRICS.items():
        own = frozenset({"application", "deployment", "replica", *metric.labels})
        if metric.kind is Kind.HISTOGRAM:
            known |= {f"ray_{name}_bucket": own | {"le"}, f"ray_{name}_count": own}
        else:
            known[f"ray_{name}"] = own
    return known


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.uid)
def test_the_committed_dashboard_is_what_the_program_makes(dashboard: Dashboard) -> None:
    """`python -m cluster.dashboards` writes it."""
    assert (FOLDER / f"{dashboard.uid}.json").read_text() == as_json(dashboard)


def test_no_other_dashboard_is_committed() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {dashboard.uid for dashboard in DASHBOARDS}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.uid)
def test_panels_have_ids_of_their_own(dashboard: Dashboard) -> None:
    ids = [panel["id"] for panel in json.loads(as_json(dashboard))["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_dashboard_that_rays_serve_page_shows_has_the_panels_that_it_asks_for() -> None:
    environment = (ROOT / "scripts" / "environment").read_text()
    [uid] = re.findall("^export RAY_GRAFANA_SERVE_DASHBOARD_UID=(.*)$", environment, re.MULTILINE)
    panels = json.loads((FOLDER / f"{uid}.json").read_text())["panels"]
    assert {panel["id"] for panel in panels} >= set(RAY_ASKS_FOR)
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    [page] = Path(spec.origin).parent.glob("dashboard/client/build/static/js/main.*.js")
    text = page.read_text(encoding="utf-8")
    asked = re.findall(
        r'title:"(?:QPS per application|Error QPS per application|P90 latency per application|Ongoing HTTP '
        r'Requests|Number of Control Loops)",pathParams:"panelId=(\d+)"',
        text,
    )
    assert sorted(map(int, asked)) == [7, 8, 15, 20, 25]


@pytest.mark.parametrize("asked", [*queries()], ids=lambda asked: asked.where)
def test_a_query_is_promql_over_metrics_and_labels_that_exist(asked: Asked) -> None:
    used: set[str] = set()
    selectors: list[Any] = []
    grouped: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            selectors.append(node)
        elif isinstance(node, promql_parser.AggregateExpr) and node.modifier:
            grouped.update(node.modifier.labels)
        elif isinstance(node, promql_parser.BinaryExpr) and node.modifier and node.modifier.matching:
            grouped.update(node.modifier.matching.labels)

    promql_parser.walk(promql_parser.parse(asked.expr), visit)
    assert selectors
    for selector in selectors:
        known = labels()[selector.name] | COMMON
        assert {matcher.name for matcher in selector.matchers.matchers} <= known
        used |= known
    assert grouped <= used


@pytest.mark.parametrize("name", sorted(FOREIGN.keys() - {"up"}))
def test_metrics_of_ray_and_vllm_are_in_their_code(name: str) -> None:
    """Found as text: the packages have no list of them. `tests/commands/test_prometheus.py` sees them published."""
    package, found = ("vllm", "v1/metrics/loggers.py") if name.startswith("ray_vllm_") else ("ray", "")
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    written = name.removeprefix("ray_").removesuffix("_bucket").removesuffix("_total").replace("vllm_", "vllm:", 1)
    folder = Path(spec.origin).parent
    files = (
        [folder / found]
        if found
        else [*folder.glob("serve/_private/*.py"), *folder.glob("dashboard/modules/reporter/*.py")]
    )
    assert any(
        written.replace("http", part) in file.read_text() for file in files for part in ("http", "{protocol_name}")
    )


def promtool(*arguments: str, cwd: Path) -> None:
    if (program := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed (Debian, Ubuntu: the package prometheus)")
    done = subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_itself_accepts_every_query(tmp_path: Path) -> None:
    recorded = [{"record": f"query{index}", "expr": asked.expr} for index, asked in enumerate(queries())]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": recorded}]}))
    promtool("check", "rules", "rules.yaml", cwd=tmp_path)
    promtool("check", "rules", str(ALERTS), cwd=tmp_path)


def test_every_alert_fires_and_none_where_all_is_well(tmp_path: Path) -> None:
    fired = Path(__file__).with_name("fired_alerts.yaml")
    tests = yaml.safe_load(fired.read_text())["tests"]
    for expected in (True, False):
        tested = {
            rule["alertname"]
            for test in tests
            for rule in test["alert_rule_test"]
            if bool(rule["exp_alerts"]) is expected
        }
        assert tested == {rule["alert"] for rule in rules()}
    for file in (ALERTS, fired):
        shutil.copy(file, tmp_path)
    promtool("test", "rules", fired.name, cwd=tmp_path)


def test_every_alert_is_explained() -> None:
    _, _, section = (ROOT / "docs" / "monitoring.md").read_text().partition("\n## Alerts\n")
    explained = re.findall(r"^\*\*`(Banyan\w+)`\*\*", section.partition("\n## ")[0], re.MULTILINE)
    assert explained == [rule["alert"] for rule in rules()]
