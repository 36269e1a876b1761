"""The arithmetic of `benchmarks.gpu`, without a GPU."""

from benchmarks.gpu import ARMS, MIB, claims, row, used_mib
from benchmarks.kv_clamp import COUNTERS, Run
from deployments.config import merged
from kvstore.memory.device_memory import Role, split
from kvstore.memory.geometry import KVGeometry, KVGroup

GIB = 1 << 30


def ran(seconds: float = 10.0, **counted: int) -> Run:
    return Run(seconds, [1.0, 2.0, 4.0, 3.0], [], dict.fromkeys(COUNTERS, 0) | counted)


def test_settings_of_the_plan_override_those_of_the_file() -> None:
    given = {"generator": {"model": "a", "replicas": {"max_replicas": 1}}, "cache": {"enabled": True}}
    plan = {"generator": {"replicas": {"num_gpus": 0.5}, "kv_cache_memory_bytes": 7}}
    assert merged(merged(given, plan), ARMS["neither"]) == {
        "generator": {
            "model": "a",
            "replicas": {"max_replicas": 1, "num_gpus": 0.5},
            "kv_cache_memory_bytes": 7,
            "clamp": "off",
        },
        "cache": {"enabled": False},
    }
    assert given["generator"] == {"model": "a", "replicas": {"max_replicas": 1}}


def test_the_output_of_nvidia_smi_is_parsed() -> None:
    assert used_mib("43210\n5\n") == 43_210


def test_a_row_has_the_gains_of_the_counters() -> None:
    found = row("clamp", "beam", ran(recomputed_tokens=50, generated_tokens=200), 500, 42_500)
    assert found["searches_per_s"] == 0.4
    assert found["recomputed_share"] == 0.25
    assert found["device_mib"] == 42_000
    assert row("clamp", "beam", ran(), None, None)["device_mib"] is None
    assert row("clamp", "beam", ran(), None, None)["recomputed_share"] == 0.0


def test_claims_compare_with_the_plan_and_with_plain_vllm() -> None:
    geometry = KVGeometry((KVGroup(28, 32_768, 16),), 28 * 32_768)
    shares = split(
        [Role("generator", 15 * GIB, GIB, geometry, 4096), Role("prm", 15 * GIB, GIB, geometry, 4096)], 80 * GIB
    )
    counted = {"neither": {"preemptions": 9}, "clamp": {}, "clamp and cache": {"external_hits": 3}}
    rows = [row(arm, "beam", ran(**counted[arm]), 0, 70_000) for arm in ARMS]
    as_planned, fewer, hits = claims(rows, shares, 80 * GIB)
    assert as_planned["holds"]
    assert as_planned["asked"] == f"<= {round(sum(share.device for share in shares) * 80 * GIB / MIB)}, as planned"
    assert (fewer["value"], fewer["holds"]) == (0, True)
    assert (hits["value"], hits["holds"]) == (3, True)
    rows = [row(arm, "beam", ran(preemptions=9), 0, 79_000) for arm in ARMS]
    assert [each["holds"] for each in claims(rows, shares, 80 * GIB)] == [False, False, False]
