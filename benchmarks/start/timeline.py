"""Timeline of processes for the console: a row per process, with a bar from its beginning to its end."""

from collections.abc import Sequence

from rich.table import Table

from benchmarks.start.processes import ProcessRow

FULL = "█"
MIN_BAR = 10
COLUMNS = 28
"""Width of all columns but the names and the bars."""


def timeline(title: str, rows: Sequence[ProcessRow], seconds: float, width: int) -> Table:
    """The rows over the first ``seconds``, in a table of at most ``width`` characters where the names leave room."""
    labels = [f"{row.name} ({row.processes})" if row.processes > 1 else row.name for row in rows]
    bars = max(MIN_BAR, width - COLUMNS - max(map(len, labels), default=0))
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("process", no_wrap=True)
    table.add_column(f"0 to {seconds:.0f} s", no_wrap=True, min_width=bars)
    for name in ("began", "CPU s", "nice"):
        table.add_column(name, justify="right", no_wrap=True)
    for label, row in zip(labels, rows, strict=True):
        shown = bar(row.began, row.ended, seconds, bars)
        table.add_row(label, shown, f"{row.began:.1f}", f"{row.cpu_s:.1f}", str(row.nice))
    return table


def bar(began: float, ended: float | None, seconds: float, width: int) -> str:
    """At least one block, from the beginning to the end; without an end, to the end of the line."""

    def column(at: float) -> int:
        return round(min(max(at / seconds, 0.0), 1.0) * width) if seconds > 0 else 0

    first = min(column(began), width - 1)
    last = width if ended is None else max(column(ended), first + 1)
    return " " * first + FULL * (last - first)
