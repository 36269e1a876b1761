"""The computations behind the tables of `benchmarks.kv_clamp`."""

from typing import Any

from benchmarks import kv_clamp
from benchmarks.served_overhead import Searched

NOTHING = dict.fromkeys(kv_clamp.COUNTERS, 0)


def clamped(seconds: float, answers: str = "12") -> kv_clamp.Run:
    return kv_clamp.Run(seconds, [seconds] * 2, [Searched(answer, 3, 30) for answer in answers], NOTHING, right=1)


def clamp_row(arm: str, load: float, *seconds: tuple[float, float], answers: str = "12") -> dict[str, Any]:
    """``seconds``: of ours and of the arm, for each pair."""
    ours, theirs = [clamped(here) for here, _ in seconds], [clamped(there, answers) for _, there in seconds]
    return kv_clamp.row_of("beam", load, arm, ours, theirs)


def broken(claims: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for each in claims if not each["holds"]]


def test_runs_are_compared_pair_by_pair() -> None:
    row = clamp_row("default", 4.0, (1.0, 1.3), (2.0, 2.8), (10.0, 30.0))
    assert (row["ours_over_it"], row["its_p95_over_ours"], row["other_trees"]) == (1.4, 1.4, 0)
    assert row["ours_over_it_each"] == [1.3, 1.4, 3.0]
    assert broken(kv_clamp.claims([row])) == []


def test_the_best_static_setting_is_chosen_over_all_loads() -> None:
    rows = [
        clamp_row("16 sequences", 1.0, (1.0, 0.8)),
        clamp_row("16 sequences", 4.0, (1.0, 2.0)),
        clamp_row("watermark 0.05", 1.0, (1.0, 1.0)),
        clamp_row("watermark 0.05", 4.0, (1.0, 1.1)),
        clamp_row("default", 4.0, (1.0, 1.2)),
    ]
    assert kv_clamp.best_static(rows) == "watermark 0.05"
    assert broken(kv_clamp.claims(rows)) == [
        "beam at 4: throughput over the default",
        "beam at 4: p95 over the default",
    ]


def test_a_tree_that_differs_breaks_its_claim() -> None:
    rows = [clamp_row("without limit", 4.0, (1.0, 1.0), answers="13")]
    assert broken(kv_clamp.claims(rows)) == ["beam at 4: trees other than with memory for all"]
