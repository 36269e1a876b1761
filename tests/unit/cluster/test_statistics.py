"""Accuracy counts every problem, and its interval is Wilson's."""

from dataclasses import replace

import pytest

from cluster.evaluation.reports import error_lines, paired_table, report, summary_table
from cluster.evaluation.statistics import Row, StrategySummary, summarize, wilson
from search.run.report import SearchCost


def row(problem: str, right: bool, strategy: str = "greedy", tokens: int = 10, error: str | None = None) -> Row:
    cost = SearchCost(generated_tokens=tokens, seconds=0.5) if error is None else None
    return Row(problem, 1, strategy, 0, "2", right=right, cost=cost, seconds=1.0, error=error)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (100, 200, 0.4314, 0.5686)],
)
def test_wilson_gives_the_published_bounds(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=1e-4)


def test_without_trials_the_interval_is_0_to_1() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="within"):
        wilson(3, 2)


def test_a_failed_problem_counts_as_wrong_but_not_in_mean_costs() -> None:
    rows = [row("a", True, tokens=10), row("b", False, tokens=30), row("c", False, tokens=0, error="Refused: no")]
    summary = summarize("greedy", [*rows, row("a", True, "beam_search")], elapsed_s=2.5)
    assert (summary.problems, summary.right, summary.failed) == (3, 1, 1)
    assert summary.accuracy == pytest.approx(1 / 3)
    assert (summary.cost["generated_tokens"], summary.cost["seconds"], summary.seconds) == (20, 0.5, 1.0)
    assert summary.cost.keys() == SearchCost().model_dump().keys()
    assert summary.interval == wilson(1, 3)


def test_kv_usage_is_a_mean_over_the_searches_that_reported_it() -> None:
    costs = [SearchCost(kv_tokens_peak=10), SearchCost(kv_tokens_peak=20), SearchCost()]
    asked = summarize("greedy", [replace(row("a", True), cost=cost) for cost in costs], elapsed_s=1.0)
    plain = summarize("greedy", [row("a", True)], elapsed_s=1.0)
    assert asked.cost["kv_tokens_peak"] == 15
    assert asked.cost.keys() - plain.cost.keys() == {"kv_tokens_peak"}
    assert "KV\npeak" in headings(asked, plain)
    assert not [heading for heading in headings(plain) if "KV" in heading]


def headings(*summaries: StrategySummary) -> list[str]:
    return [str(column.header) for column in summary_table(summaries).columns]


def test_strategies_are_compared_problem_by_problem_with_the_first_and_by_what_they_read_too() -> None:
    rows = [row(problem, right) for problem, right in (("a", True), ("b", False), ("c", False), ("d", False))]
    more = SearchCost(written_tokens=30, read_tokens=50)
    read = [replace(row(problem, problem != "d", "select"), cost=more) for problem in "abcd"]
    rows = [replace(each, cost=SearchCost(written_tokens=10, read_tokens=10)) for each in rows] + read
    summaries = [summarize(strategy, rows, elapsed_s=1.0) for strategy in ("greedy", "select")]
    name, points, interval, times = (list(column.cells) for column in paired_table(summaries, rows).columns)
    assert (str(name[0]), points, times) == ("select", ["+50.0"], ["4.00"])
    assert interval == ["+0.0 to +100.0"]
    assert "read" in headings(*summaries)


def test_the_report_does_not_depend_on_the_order_of_arrival() -> None:
    rows = [row("b", True), row("a", False), row("a", True, "beam_search")]
    assert report({}, [], rows, True) == report({}, [], rows[::-1], True)


def test_errors_are_counted_by_kind_the_most_frequent_first() -> None:
    rows = [row("a", False, error=error) for error in ["x", "y", "y", "z", "w"]]
    assert error_lines(rows, most=2) == ["2 × y", "1 × x", "and 2 more kinds of error"]
    assert error_lines([row("a", True)]) == []
