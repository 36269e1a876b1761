"""Reports of an evaluation: a table for people, JSON for programs."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from cluster.client.printable import printable
from cluster.evaluation.paired_bootstrap import paired_bootstrap
from cluster.evaluation.statistics import Row, StrategySummary

FORMAT = 2

SHOWN = {
    "tokens": ("generated_tokens", ",.0f"),
    "read": ("read_tokens", ",.0f"),
    "one\nsample": ("sample_tokens", ",.0f"),
    "KV\npeak": ("kv_tokens_peak", ",.0f"),
    "KV\nsum": ("kv_tokens_sum", ",.0f"),
    "PRM\ncalls": ("prm_calls", ",.1f"),
}
"""Cost columns: heading, field of `SearchCost`, format. Shown if a search reported the field. The JSON report has all
fields."""


def summary_table(summaries: Sequence[StrategySummary]) -> Table:
    """Table with one row per strategy, narrow enough for 80 columns."""
    shown = {heading: column for heading, column in SHOWN.items() if any(column[0] in each.cost for each in summaries)}
    kv = "KV tokens held (most at a time, and summed over a search's rounds), " if "KV\npeak" in shown else ""
    done = ", ".join(f"{each.strategy} {each.right}/{each.problems} in {each.elapsed_s:.1f} s" for each in summaries)
    table = Table(
        box=None,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
        caption=(
            "pool: problems for which some answer that was voted on is right; "
            f"tokens, those read by the models, those of one sample, {kv}PRM calls and seconds are means per problem; "
            f"right answers and wall clock: {done}"
        ),
        caption_justify="left",
    )
    table.add_column("strategy", overflow="fold")  # with settings it may be longer than a line
    any_failed = any(summary.failed for summary in summaries)
    headings = ["accuracy", "95% interval", "pool", *shown, "seconds"]
    for heading in headings + ["failed"] * any_failed:
        table.add_column(heading, justify="right", no_wrap=True)
    for summary in summaries:
        low, high = summary.interval
        table.add_row(
            Text(printable(summary.strategy)),
            f"{summary.accuracy:.1%}",
            f"{100 * low:.1f} to {100 * high:.1f}",
            f"{summary.pool:.1%}",
            *(f"{summary.cost[figure]:{form}}" if figure in summary.cost else "" for figure, form in shown.values()),
            f"{summary.seconds:.2f}",
            *([Text(str(summary.failed), style="red" if summary.failed else "")] * any_failed),
        )
    return table


def paired_table(summaries: Sequence[StrategySummary], rows: Sequence[Row]) -> Table:
    """Every other strategy less the first one, on the problems that both have, and how many tokens it takes."""
    first, *others = summaries
    table = Table(box=None, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column(Text(printable(f"less {first.strategy}")), overflow="fold")
    for heading in ("points", "95% interval", "times its tokens, written and read"):
        table.add_column(heading, justify="right", no_wrap=True)
    right: dict[str, dict[str, float]] = {each.strategy: {} for each in summaries}
    for row in rows:
        right[row.strategy][row.problem_id] = float(row.right)
    for other in others:
        if not right[first.strategy].keys() & right[other.strategy].keys():
            continue  # interrupted before
        found = paired_bootstrap(right[first.strategy], right[other.strategy])
        table.add_row(
            Text(printable(other.strategy)),
            f"{100 * found.mean:+.1f}",
            f"{100 * found.low:+.1f} to {100 * found.high:+.1f}",
            f"{other.tokens / first.tokens:.2f}" if first.tokens else "",
        )
    return table


def error_lines(rows: Sequence[Row], most: int = 3) -> list[str]:
    """The most frequent errors with their counts; empty without errors."""
    return most_frequent([row.error for row in rows if row.error is not None], most)


def most_frequent(errors: Iterable[str], most: int = 3) -> list[str]:
    """The most frequent of these errors with their counts; empty without errors."""
    ranked = Counter(errors).most_common()
    lines = [f"{count} × {message}" for message, count in ranked[:most]]
    return lines + ([f"and {len(ranked) - most} more kinds of error"] if len(ranked) > most else [])


def report(
    settings: dict[str, Any], summaries: Sequence[StrategySummary], rows: Sequence[Row], complete: bool
) -> dict[str, Any]:
    """The evaluation as one JSON object; ``complete`` is false when it was interrupted."""
    ordered = sorted(rows, key=lambda row: (row.strategy, row.problem_id))
    return {
        "format": FORMAT,
        "complete": complete,
        "settings": settings,
        "strategies": [summary.as_json() for summary in summaries],
        "rows": [row.as_json() for row in ordered],
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes the file atomically."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, content: str) -> None:
    """Writes the file atomically."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(content, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
