"""How many different answers a search ends with, and whether a right one is among them, beside sampled solutions."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.published.rows import Row

Solutions = Sequence[Mapping[str, Any]]


def answers_left(searches: Sequence[Row], sampled: Mapping[str, Solutions]) -> list[dict[str, Any]]:
    """One entry for each strategy and width: means over its problems. Answers differ if their texts do.

    Args:
        searches: rows of `search`.
        sampled: the pool's solutions by problem; the first ``n`` are compared with a search of width ``n``.
    """
    found: dict[tuple[str, int], list[Row]] = {}
    for row in searches:
        if row["problem"] in sampled:
            found.setdefault((row["strategy"], row["n"]), []).append(row)
    return [
        {
            "strategy": strategy,
            "n": n,
            "problems": len(rows),
            "search": _summary([row["paths"] for row in rows]),
            "sampled": _summary([sampled[row["problem"]][:n] for row in rows]),
        }
        for (strategy, n), rows in sorted(found.items(), key=lambda item: (item[0][1], item[0][0]))
    ]


def _summary(solutions: Sequence[Solutions]) -> dict[str, float]:
    answers = [len({each["answer"] for each in part} - {None}) for part in solutions]
    right = [any(each["correct"] for each in part) for part in solutions]
    return {"answers": round(statistics.fmean(answers), 2), "any_right": round(statistics.fmean(right), 4)}
