"""The result of a run: its JSON and its tables."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks.accuracy.measuring import Row
from benchmarks.accuracy.pairs import PairedDifference, paired_difference
from benchmarks.accuracy.searches import Measured
from benchmarks.record import claim
from cluster.evaluation.statistics import wilson
from search.run.report import SearchCost, StopReason

SHOWN = {
    "tokens": ("generated_tokens", ",.0f"),
    "KV peak": ("kv_tokens_peak", ",.0f"),
    "KV sum": ("kv_tokens_sum", ",.0f"),
    "PRM calls": ("prm_calls", ".1f"),
    "expand calls": ("expand_calls", ".1f"),
    "seconds": ("seconds", ".1f"),
}
"""Cost columns: heading, field of `SearchCost`, format."""
COLUMNS = ("search", "problem", "answer", "right", "in_pool", "stop_reason", *SearchCost.model_fields)


def summary(asked: Measured, rows: Sequence[Row]) -> dict[str, Any]:
    """Summary of one search's rows; costs are means."""
    right, in_pool = sum(row.right for row in rows), sum(row.in_pool for row in rows)
    finished = sum(row.stop_reason == StopReason.FINISHED for row in rows)
    return {
        "search": asked.name,
        "field": asked.field,
        "problems": len(rows),
        "right": right,
        "accuracy": right / len(rows),
        "interval": [round(bound, 4) for bound in wilson(right, len(rows))],
        "pool": in_pool / len(rows),
        "finished_early": None if asked.budget_tokens is None else finished / len(rows),
        "cost": {
            name: round(statistics.fmean(getattr(row.cost, name) for row in rows), 3)
            for name in SearchCost.model_fields
        },
    }


def table(summaries: Sequence[dict[str, Any]]) -> Table:
    headings = ("search", "accuracy", "95% interval", "pool", *SHOWN, "finished early")
    shown = Table(*headings, caption="costs are means per problem; finished early: with some of its token budget left")
    for each in summaries:
        low, high = each["interval"]
        early = each["finished_early"]
        shown.add_row(
            each["search"],
            f"{each['accuracy']:.1%}",
            f"{100 * low:.1f} to {100 * high:.1f}",
            f"{each['pool']:.1%}",
            *(f"{each['cost'][figure]:{form}}" for figure, form in SHOWN.values()),
            "" if early is None else f"{early:.0%}",
        )
    return shown


def rows_as_json(rows: Sequence[Row]) -> dict[str, Any]:
    """All rows, each as a list with the entries that `COLUMNS` names."""
    return {
        "columns": COLUMNS,
        "rows": [[*row[:-1], *(getattr(row.cost, name) for name in SearchCost.model_fields)] for row in rows],
    }


class Compared(NamedTuple):
    """One search in two runs."""

    search: str
    before: float
    """Accuracy in the first run."""
    after: float
    pairs: PairedDifference


def compared(before: Path, after: Path, against: str | None) -> list[Compared]:
    """Compares each search that is in both files, or each search of ``after`` with the search ``against`` of
    ``before``.

    Raises:
        ValueError: two searches that are compared have different problems.
    """
    first, second = _right(before), _right(after)
    found: list[Compared] = []
    for name, right in second.items():
        other = first.get(against or name)
        if other is None:
            continue
        if other.keys() != right.keys():
            raise ValueError(f"{name}: the two files have different problems")
        pairs = paired_difference([other[problem] for problem in right], list(right.values()))
        found.append(Compared(name, sum(other.values()) / pairs.problems, sum(right.values()) / pairs.problems, pairs))
    return found


def pairs_table(found: Sequence[Compared]) -> Table:
    shown = Table(
        *("search", "problems", "before", "after", "difference", "95% interval", "only before", "only after", "p"),
        caption="right answers on the same problems; Agresti and Min's interval, McNemar's exact p",
    )
    for name, before, after, pairs in found:
        shown.add_row(
            name,
            str(pairs.problems),
            f"{before:.1%}",
            f"{after:.1%}",
            f"{100 * pairs.difference:+.1f}",
            f"{100 * pairs.low:+.1f} to {100 * pairs.high:+.1f}",
            str(pairs.lost),
            str(pairs.won),
            f"{pairs.p:.3f}",
        )
    return shown


def kept_comparison(before: Path, after: Path, found: Sequence[Compared], better: Sequence[str]) -> dict[str, Any]:
    """Both runs without their rows, the paired differences in percentage points, and claims: a search in ``better``
    has an interval wholly above 0, no search has one wholly below 0, and no search with a token budget ends before the
    budget is used."""
    runs = [json.loads(path.read_text()) for path in (before, after)]
    claims: list[dict[str, Any]] = []
    for each in found:
        low, high = round(100 * each.pairs.low, 1), round(100 * each.pairs.high, 1)
        if each.search in better:
            claims.append(claim(f"{each.search}: lower bound of the difference", low, "> 0", low > 0))
        claims.append(claim(f"{each.search}: upper bound of the difference", high, ">= 0", high >= 0))
    claims += [
        claim(f"{each['search']}: ended with budget left", round(early, 3), "<= 0.01", early <= 0.01)
        for each in runs[1]["searches"]
        if (early := each["finished_early"]) is not None
    ]
    differences = [
        {
            "search": each.search,
            "before": each.before,
            "after": each.after,
            "difference": round(100 * each.pairs.difference, 2),
            "interval": [round(100 * each.pairs.low, 2), round(100 * each.pairs.high, 2)],
            "only_before": each.pairs.lost,
            "only_after": each.pairs.won,
            "p": round(each.pairs.p, 5),
        }
        for each in found
    ]
    sides = [{name: value for name, value in run.items() if name not in ("rows", "columns")} for run in runs]
    return {"claims": claims, "differences": differences, "before": sides[0], "after": sides[1]}


def _right(path: Path) -> dict[str, dict[str, bool]]:
    """Whether each problem was right, by search and problem id."""
    kept = json.loads(path.read_text())
    search, problem, right = (kept["columns"].index(name) for name in ("search", "problem", "right"))
    found: dict[str, dict[str, bool]] = {}
    for row in kept["rows"]:
        found.setdefault(row[search], {})[row[problem]] = row[right]
    return found
