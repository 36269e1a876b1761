"""The computations behind the tables of `benchmarks.accuracy`."""

import json
from pathlib import Path

import pytest

from benchmarks.accuracy.pairs import paired_difference
from benchmarks.accuracy.report import compared, kept_comparison, pairs_table
from benchmarks.accuracy.searches import searches
from benchmarks.record import write_result
from cluster.evaluation.search_field import SearchFieldError
from search.strategies.catalog import STRATEGIES


def sides(both: int, lost: int, won: int, neither: int) -> tuple[list[bool], list[bool]]:
    pairs = [(True, True)] * both + [(True, False)] * lost + [(False, True)] * won + [(False, False)] * neither
    return [first for first, _ in pairs], [second for _, second in pairs]


def test_a_published_paired_difference_is_reproduced() -> None:
    """Agresti, "Categorical data analysis", table 10.1: of 1,600 people asked twice, -0.04 (-0.06 to -0.02)."""
    found = paired_difference(*sides(794, 150, 86, 570))
    assert found.difference == pytest.approx(-0.04)
    assert (found.low, found.high) == pytest.approx((-0.0587, -0.0212), abs=2e-4)
    assert found.p < 1e-4


def test_without_differing_pairs_the_interval_is_not_empty() -> None:
    found = paired_difference(*sides(10, 0, 0, 10))
    assert found.low < 0.0 < found.high
    assert found.p == 1.0


def test_pairs_need_the_same_problems() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired_difference([True, False], [True])
    with pytest.raises(ValueError, match="no problems"):
        paired_difference([], [])


def test_a_budget_sets_the_width_or_the_tokens() -> None:
    fields = {each.name: each.field for each in searches(["dvts:m=2", "mcts", "ab_mcts:paths=2"], [240, 3840])}
    assert fields["dvts:m=2 @ 240"] == {"strategy": "dvts", "n": 4, "m": 2}
    assert fields["dvts:m=2 @ 3840"]["n"] == 64
    assert "width" not in fields["mcts @ 240"]
    assert (fields["mcts @ 3840"]["width"], fields["mcts @ 3840"]["paths"]) == (8, 8)
    assert fields["mcts @ 3840"]["budget"] == {"tokens": 3840}
    assert fields["ab_mcts:paths=2 @ 3840"]["paths"] == 2


def test_all_strategies_are_measured_and_greedy_once() -> None:
    names = [each.name for each in searches([], [240, 960])]
    assert names.count("greedy") == 1
    assert len(names) == 2 * len(STRATEGIES) - 1


def test_an_unknown_search_is_refused_before_anything_starts() -> None:
    with pytest.raises(SearchFieldError, match="unknown strategy"):
        searches(["bests"], [960])


def test_two_runs_are_compared_problem_by_problem(tmp_path: Path) -> None:
    columns = ("search", "problem", "right")
    before = {"columns": columns, "rows": [["a", "1", True], ["a", "2", False], ["b", "1", False], ["b", "2", False]]}
    searches = [{"search": "a", "finished_early": 0.5}]
    after = {"columns": columns, "rows": [["a", "2", True], ["a", "1", True]], "searches": searches}
    first = write_result("test", before, tmp_path / "before.json")
    second = write_result("test", after, tmp_path / "after.json")
    assert json.loads(first.read_text())["rows"] == before["rows"]
    [same] = _lines(pairs_table(compared(first, second, None)))
    assert same[:5] == ["a", "2", "50.0%", "100.0%", "+50.0"]
    [other] = _lines(pairs_table(compared(first, second, "b")))
    assert other[:5] == ["a", "2", "0.0%", "100.0%", "+100.0"]
    kept = kept_comparison(first, second, compared(first, second, None), ["a"])
    assert [(claim["asked"], claim["holds"]) for claim in kept["claims"]] == [
        ("> 0", False),  # two problems prove nothing
        (">= 0", True),
        ("<= 0.01", False),
    ]
    third = write_result("test", {"columns": columns, "rows": [["a", "3", True]]}, tmp_path / "third.json")
    with pytest.raises(ValueError, match="different problems"):
        compared(first, third, None)


def _lines(table: object) -> list[list[str]]:
    from rich.table import Table

    assert isinstance(table, Table)
    return [list(map(str, line)) for line in zip(*(column.cells for column in table.columns), strict=True)]
