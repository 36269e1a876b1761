"""The computations behind the figures of `benchmarks.soak`."""

from typing import Any

import httpx
import psutil
import pytest

from benchmarks.soak import MAX_MB, REWARD_CACHE, Sample, Samples, Trend, claims, end_of


def trend(mb_a_minute: float, descriptors: int = 20, gained: int = 0, role: str = "engine", mb: float = 110.0) -> Trend:
    samples = [
        Sample(index / 6, mb + mb_a_minute * index / 6, 100.0, descriptors + gained * (index > 90), mb)
        for index in range(120)
    ]
    return Trend.of(role, 7, samples)


def figures(*trends: Trend, **changed: Any) -> dict[str, Any]:
    return {
        "trends": list(trends),
        "rewards_kept_when_it_began": [REWARD_CACHE],
        "chunks_evicted_when_it_began": [400],
        "kv_blocks_in_use_when_idle": [0, 0],
        "integrity_when_idle": [],
        "searches": {"status 200": 9, "hung up": 1},
    } | changed


def broken(figures: dict[str, Any]) -> list[str]:
    return [each["name"] for each in claims(figures) if not each["holds"]]


def test_growth_is_the_slope_of_a_line_through_the_samples() -> None:
    assert trend(2.5).mb_per_minute == pytest.approx(2.5)
    assert trend(-1).mb_per_minute == pytest.approx(-1)
    assert trend(0, gained=5).descriptors_gained == 5
    assert len(trend(0).json["minutes"]) <= 120


def test_all_claims_hold_without_growth() -> None:
    assert broken(figures(trend(0.1), trend(-3), trend(0, role="lmcache server", mb=660.0))) == []


@pytest.mark.parametrize(
    ("lost", "name"),
    [
        (figures(trend(0), trend(MAX_MB + 0.1)), "MB a minute"),
        (figures(trend(0, gained=9)), "descriptors gained"),
        (figures(trend(0), trend(0, role="lmcache server", mb=680.0)), "MB of LMCache"),
        (figures(trend(0), kv_blocks_in_use_when_idle=[0, 1]), "KV blocks"),
        (figures(trend(0), integrity_when_idle=["a branch"]), "nothing is left"),
        (figures(trend(0), rewards_kept_when_it_began=[9]), "reward cache"),
        (figures(trend(0), chunks_evicted_when_it_began=[0]), "chunks that LMCache"),
        (figures(trend(0), searches={"status 200": 9, "status 500": 1}), "every search"),
    ],
)
def test_a_leak_breaks_its_claim(lost: dict[str, Any], name: str) -> None:
    assert [each.startswith((name, "the " + name)) for each in broken(lost)] == [True]


@pytest.mark.parametrize(
    ("reply", "end"),
    [
        (httpx.Response(200, text="data: [DONE]"), "status 200"),
        (
            httpx.Response(429, json={"error": {"message": "the server is 1.2 s behind its work"}}),
            "status 429: the server is # s behind its work",
        ),
        (httpx.Response(502, text="Bad Gateway"), "status 502: Bad Gateway"),
        (httpx.Response(500, json={"error": None}), 'status 500: {"error":null}'),
    ],
)
def test_refusals_are_counted_by_their_reason(reply: httpx.Response, end: str) -> None:
    assert end_of(reply) == end


def test_processes_are_sampled_with_memory_and_descriptors() -> None:
    samples = Samples()
    with psutil.Popen(["sleep", "30"]) as child:
        samples.take(0.5)
        child.kill()
    [sample] = next(of for process, of in samples.of.items() if process.pid == child.pid)
    assert sample.minute == 0.5
    assert min(sample.rss_mb, sample.pss_mb, sample.descriptors) > 0
