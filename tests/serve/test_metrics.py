"""Published metrics are scraped after a load from the node's own port, as Prometheus would."""

import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from uuid import uuid4

import httpx
import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families

from deployments.admission.keys import key_digest
from deployments.telemetry.catalog import METRICS, Kind
from tests.serve.application import Application, problems, request, until

SCRAPED_S = 60.0
"""Replicas publish every five seconds, and Ray's agent has it after two; a busy machine takes longer."""
MAY_STAY_ZERO = {
    "banyan_retries_total",  # no replica fails in this load
    "banyan_harmful_requests_total",  # and no request ends one
    "banyan_preemptions_total",  # and memory suffices
    "banyan_clamp_held_back_branches_total",
    "banyan_clamp_given_back_branches_total",
    "banyan_recomputed_tokens_total",
    "banyan_engine_waiting_requests",
    "banyan_search_queue_waiting_requests",  # no queue is configured
    "banyan_wandering_paths_total",  # no search has `patience`
}
"""Metrics that an ordinary load need not change; they are published all the same."""
OF_EVICTIONS = {"banyan_kv_block_lifetime_seconds", "banyan_kv_block_idle_seconds", "banyan_kv_block_reuse_gap_seconds"}
"""Metrics that have no value before KV memory is full once."""
OF_OTHER_APPLICATIONS = {
    name
    for name in METRICS
    if name.startswith(("banyan_answer_cache_", "banyan_step_hook_", "banyan_critiques_", "banyan_cut_critiques_"))
}
"""Metrics of the answer cache, the step hook and generative verifiers, which this application does not have."""
PUBLISHED = METRICS.keys() - OF_EVICTIONS - OF_OTHER_APPLICATIONS


class Sample(NamedTuple):
    labels: dict[str, str]
    value: float


Scrape = dict[str, list[Sample]]
"""Samples by metric name: values of counters and gauges, counts of histograms."""


def scrape() -> Scrape:
    """All metrics that Banyan's replicas have published on any node."""
    found: Scrape = defaultdict(list)
    for node in ray.nodes():
        reply = httpx.get(f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics", timeout=30)
        for family in text_string_to_metric_families(reply.raise_for_status().text):
            for sample in family.samples:
                name = sample.name.removeprefix("ray_")
                if name.removesuffix("_count") in METRICS:
                    found[name.removesuffix("_count")].append(Sample(sample.labels, sample.value))
    return found


def total(samples: list[Sample], **labels: str) -> float:
    return sum(sample.value for sample in samples if sample.labels.items() >= labels.items())


def load(application: Application) -> None:
    """Runs searches, one with a new prompt that is long enough to store, cached rewards, and refused requests."""
    asked = problems(24, seed=900)
    new = [{"role": "system", "content": f"{uuid4()} " * 8}, {"role": "user", "content": asked[0].text}]
    application.chat(asked[0], seed=1, messages=new)
    with ThreadPoolExecutor(len(asked)) as pool:
        list(pool.map(lambda problem: application.chat(problem, seed=1), asked))
    scored = {"model": "banyan-arithmetic", "question": "2+2?", "steps": ["It is 4.\n\n"]}
    for _ in range(2):
        application.http.post("/v1/score", json=scored).raise_for_status()
    refused = application.http.post("/v1/chat/completions", json=request(asked[0], 1, search={"n": 0}))
    assert refused.status_code == 400
    assert httpx.get(f"{application.url}/v1/models", timeout=30).status_code == 401


@pytest.fixture(scope="module")
def scrapes(application: Application) -> list[Scrape]:
    """Scrapes before a load, repeatedly during it, and once everything must have been published."""
    application.wait_until_whole()
    taken = [scrape()]
    with ThreadPoolExecutor(1) as pool:
        deadline = time.monotonic() + SCRAPED_S
        while not (seen := moved(taken)) >= PUBLISHED - MAY_STAY_ZERO and time.monotonic() < deadline:
            loading = pool.submit(load, application)
            while not loading.done():
                time.sleep(0.5)
                taken.append(scrape())
            loading.result()
    application.wait_until_whole()
    assert seen
    return taken


def moved(taken: list[Scrape]) -> set[str]:
    """Metrics that changed: counters that grew, and gauges that were not 0."""
    before = taken[0]
    found = set()
    for name, metric in METRICS.items():
        first = total(before.get(name, [])) if metric.kind is not Kind.GAUGE else 0.0
        if any(total(each.get(name, [])) != first for each in taken[1:]):
            found.add(name)
    return found


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_every_metric_that_is_documented_is_published(name: str, scrapes: list[Scrape]) -> None:
    """`tests/unit/telemetry` compares them with docs/monitoring.md."""
    assert scrapes[-1].get(name)
    for sample in scrapes[-1][name]:
        assert sample.labels.keys() >= {"application", "deployment", "replica", *METRICS[name].labels}
        assert sample.labels["deployment"] in METRICS[name].owner.value


@pytest.mark.parametrize("name", sorted(PUBLISHED - MAY_STAY_ZERO))
def test_a_load_changes_every_metric(name: str, scrapes: list[Scrape]) -> None:
    assert name in moved(scrapes)


def test_labels_name_the_key_and_the_reason(application: Application, scrapes: list[Scrape]) -> None:
    last = scrapes[-1]
    key = key_digest(application.key)[:8]
    assert total(last["banyan_generated_tokens_total"], key=key) > 0
    assert total(last["banyan_searches_total"], strategy="beam_search", ending="finished", degraded="false") >= 24
    assert total(last["banyan_refused_requests_total"], status="401", reason="invalid_api_key") >= 1
    assert total(last["banyan_refused_requests_total"], status="400") >= 1
    assert total(last["banyan_search_places"]) == application.config.controller.searches


def test_engine_metrics_match_the_engines_own_counters(application: Application) -> None:
    application.wait_until_whole()
    tokens = application.generated_tokens()
    name = "banyan_engine_generated_tokens_total"
    until(lambda: total(scrape()[name], deployment="Generator") >= tokens, f"{name} is {tokens} or more", SCRAPED_S)
    idle = scrape()
    for deployment in ("Generator", "ProcessRewardModel"):
        used, free, blocks = (
            total(idle[f"banyan_kv_{which}_blocks"], deployment=deployment) for which in ("used", "free", "total")
        )
        assert used + free == blocks > 0
