"""A Prometheus, as Debian ships it, finds the application through Ray's file, gets every metric, and answers every
query of the dashboards with data. It is not among the other tests, since it starts Ray's dashboard, and downloads
Prometheus where it is not installed.

    python -m pytest tests/commands/test_prometheus.py -s
"""

import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

import tests.ray_environment  # noqa: F401  # before Ray is imported
from cluster.dashboards.__main__ import FOLDER
from cluster.launch.application import free_port
from tests.debian import program
from tests.serve.application import Application, problems, request, running, until
from tests.serve.test_metrics import MAY_STAY_ZERO

START_S = 120.0
DASHBOARDS_S = 300.0
"""Longest time in which loads go on until every query is answered: rates want two samples in a minute."""
QUIET = ('degraded="true"', 'reason="flex"', 'reason=~"owner|', "ray_serve_deployment_queued_queries")
"""Parts of queries for what does not happen in this load, beside `MAY_STAY_ZERO`."""
QUERIES = (
    "sum by (strategy, ending, degraded) (ray_banyan_searches_total)",
    "histogram_quantile(0.95, sum by (le) (ray_banyan_search_seconds_bucket))",
    "sum by (lane) (ray_banyan_expand_seconds_count)",
    "sum by (source) (ray_banyan_prefix_cached_tokens_total)",
    "sum by (deployment) (ray_banyan_kv_total_blocks)",
    "sum by (key) (ray_banyan_generated_tokens_total)",
)

pytestmark = [
    pytest.mark.timeout(900),
    *(
        pytest.mark.filterwarnings(f"default::{category}")  # Ray's own warning
        for category in ("ResourceWarning", "FutureWarning", "DeprecationWarning")
    ),
]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of the program."""
    found, _ = program("prometheus", ["prometheus"], tmp_path_factory.mktemp("prometheus"))
    return found


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Application, Path]]:
    """The application on a Ray with its dashboard, which writes the file; yields Ray's directory."""
    from ray._private.worker import global_worker

    dashboard: dict[str, Any] = {"include_dashboard": True, "dashboard_port": free_port()}
    # A lone generator would store only what it evicts: nothing here, so that nothing would be counted.
    stored = {"cache": {"store": "prefilled", "least_tokens": 16}, "telemetry": {"engine_metrics": True}}
    with running(stored, tmp_path_factory.mktemp("keys"), address="local", num_cpus=8, **dashboard) as application:
        yield application, Path(global_worker.node.get_session_dir_path())


@contextmanager
def scraping(program: str, session_dir: Path, directory: Path) -> Iterator[httpx.Client]:
    """Prometheus with the configuration of docs/monitoring.md; yields its API."""
    discovery = session_dir / "prom_metrics_service_discovery.json"
    scrape = {"job_name": "banyan", "scrape_interval": "2s", "file_sd_configs": [{"files": [str(discovery)]}]}
    (directory / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": [scrape]}))
    port = free_port()
    options = [f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={directory / 'data'}"]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([program, "--config.file=prometheus.yml", *options], cwd=directory, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
            yield http
    finally:
        process.terminate()
        process.wait(timeout=60)


def query(http: httpx.Client, promql: str) -> list[dict[str, Any]]:
    try:
        reply = http.get("/api/v1/query", params={"query": promql})
    except httpx.ConnectError:  # while it starts
        return []
    if reply.status_code == httpx.codes.SERVICE_UNAVAILABLE:  # while it reads its storage
        return []
    result: list[dict[str, Any]] = reply.raise_for_status().json()["data"]["result"]
    return result


def test_prometheus_has_every_metric(
    prometheus: str, session: tuple[Application, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from deployments.telemetry.catalog import METRICS, Kind

    application, session_dir = session
    application.trees(problems(12, seed=31), seed=1)
    assert httpx.get(f"{application.url}/v1/models", timeout=30).status_code == 401
    wanted = {
        f"ray_{name}_bucket" if metric.kind is Kind.HISTOGRAM else f"ray_{name}" for name, metric in METRICS.items()
    }
    with scraping(prometheus, session_dir, tmp_path) as http:

        def has_all() -> bool:
            found = query(http, 'group by (__name__) ({__name__=~"ray_banyan_.*"})')
            return {each["metric"]["__name__"] for each in found} >= wanted

        until(has_all, f"Prometheus has {len(wanted)} metrics", START_S)
        answers = {promql: query(http, promql) for promql in QUERIES}
        version = http.get("/api/v1/status/buildinfo").raise_for_status().json()["data"]["version"]
    with capsys.disabled():
        print(f"\nPrometheus {version} has all {len(wanted)} metrics")
        for promql, found in answers.items():
            print(promql)
            for each in found:
                print(f"    {each['metric']} {each['value'][1]}")
    assert all(answers.values())
    counted = sum(float(each["value"][1]) for each in answers[QUERIES[0]])
    assert counted >= 12


def panels() -> Iterator[tuple[str, str]]:
    """Every query of every dashboard, after the name of its panel, with Grafana's variables replaced."""
    for file in sorted(FOLDER.glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                expr = target["expr"].replace("$application", ".*").replace("$__rate_interval", "1m")
                yield f"{file.stem}: {panel['title']}", expr


def load(application: Application) -> None:
    """Searches of two keys, one search that its budget ends, a score from memory, and a request without a key."""
    [first, *others] = problems(12, seed=int(time.time()))
    application.trees(others, seed=1)
    application.chat(first, 1, search={"strategy": "beam_search", "n": 4, "m": 2, "budget": {"tokens": 40}})
    scored = {"model": "banyan-arithmetic", "question": "2+2?", "steps": ["It is 4.\n\n"]}
    application.http.post("/v1/score", json=scored).raise_for_status()
    other = {"Authorization": f"Bearer {application.other_key}"}
    application.http.post("/v1/chat/completions", json=request(first, 2), headers=other).raise_for_status()
    assert httpx.get(f"{application.url}/v1/models", timeout=30).status_code == 401


def may_stay_zero(expr: str) -> bool:
    """Whether an ordinary load need not move it; it is answered all the same."""
    return any(f"ray_{name}" in expr for name in MAY_STAY_ZERO) or any(part in expr for part in QUIET)


def test_every_query_of_the_dashboards_is_answered_with_data(
    prometheus: str, session: tuple[Application, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    application, session_dir = session
    load(application)  # so that counters with labels exist before they are scraped first
    best = dict.fromkeys(panels(), (0, -1.0))
    """Number of series, and the largest value, of each query's best answer."""

    def missing() -> list[tuple[str, str]]:
        return [
            asked for asked, (_, value) in best.items() if value < 0 or (value == 0 and not may_stay_zero(asked[1]))
        ]

    with scraping(prometheus, session_dir, tmp_path) as http, ThreadPoolExecutor(1) as pool:
        deadline = time.monotonic() + DASHBOARDS_S
        while missing() and time.monotonic() < deadline:
            loading = pool.submit(load, application)
            while not loading.done():
                for asked in missing():
                    values = [float(each["value"][1]) for each in query(http, asked[1]) if each["value"][1] != "NaN"]
                    best[asked] = max(best[asked], (len(values), max(values, default=-1.0)), key=lambda found: found[1])
            loading.result()
    with capsys.disabled():
        for (where, expr), (count, value) in sorted(best.items()):
            print(f"\n{where}\n    {expr}\n    {count} series, the largest {value:g}", end="")
        answered = sum(value >= 0 for _, value in best.values())
        moved = sum(value > 0 for _, value in best.values())
        print(f"\n{answered} of {len(best)} queries of the dashboards are answered with data, {moved} with more than 0")
    assert missing() == []
