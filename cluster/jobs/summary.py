"""Summary of a job, computed from its output files alone, line by line: a resumed job gets the same summary."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from cluster.client.printable import printable
from cluster.evaluation.statistics import CONFIDENCE, wilson
from cluster.jobs.samples import Sample, pass_at, powers_of_two, shuffled, vote
from search.answers.voting import ANSWER_RULES, SelectionRule
from search.run.report import SearchCost

FORMAT = 1
MAX_LEVELS = 100
MAX_PATHS = 256
"""Largest number of paths at which votes are counted."""
OTHER_LEVELS = "others"
PERCENTILES = (50, 90, 99)
BUCKETS = 100
"""Latency buckets for each factor of e: a resolution of 1%."""


class Latencies:
    """Histogram of latencies with logarithmic buckets, for percentiles in bounded memory."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        self._counts[round(BUCKETS * math.log(max(seconds, 1e-6)))] += 1

    def percentile(self, percent: float) -> float | None:
        """The percentile in seconds, to 1% (nearest rank); None without durations."""
        wanted, seen = percent / 100 * self._counts.total(), 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return math.exp(bucket / BUCKETS)
        return None


@dataclass
class Share:
    """A proportion: ``right`` out of ``of``."""

    right: float = 0.0
    of: int = 0

    def add(self, right: float) -> None:
        self.right += right
        self.of += 1

    @property
    def mean(self) -> float:
        return self.right / self.of if self.of else 0.0

    def as_json(self) -> dict[str, Any]:
        low, high = wilson(round(self.right), self.of)
        interval = {"low": low, "high": high, "confidence": CONFIDENCE, "method": "wilson"}
        return {"accuracy": self.mean, "right": round(self.right), "problems": self.of, "interval": interval}


@dataclass
class Votes:
    """Outcome of votes over k paths of each search, or over all where it has fewer."""

    passed: Share = field(default_factory=Share)
    """pass@k."""
    selected: dict[SelectionRule, Share] = field(default_factory=lambda: {rule: Share() for rule in ANSWER_RULES})

    def as_json(self) -> dict[str, Any]:
        shares = {str(rule): share.mean for rule, share in self.selected.items()}
        return {"problems": self.passed.of, "pass": self.passed.mean, **shares}


class Summary:
    """Summary of a job. ``add`` and ``add_error`` take its lines."""

    def __init__(self, lines: int, paths: int = MAX_PATHS) -> None:
        """``lines``: number of input lines. ``paths``: most paths that a search grows."""
        self.lines = lines
        self._ks = list(powers_of_two(paths))
        self._most_samples = 0
        self.results = 0
        self.degraded = 0
        self.errors: Counter[str] = Counter()
        """Number of errors by kind."""
        self.accuracy = Share()
        self.pool = Share()
        self.levels: dict[str, Share] = {}
        self._votes = {k: Votes() for k in self._ks}
        self.tokens: Counter[str] = Counter()
        self._cost: Counter[str] = Counter()
        """Sum of every field of `SearchCost`."""
        self._searches = 0
        """Number of results with a cost. An answer from the cache has none."""
        self.latencies = Latencies()

    @property
    def missing(self) -> int:
        """Lines that are not done."""
        return self.lines - self.results - self.errors.total()

    def add(self, line: Mapping[str, Any]) -> None:
        """Adds a result."""
        self.results += 1
        self.latencies.add(line["seconds"])
        if "paths" in line:
            self._add_problem(line)
        else:
            body = line["response"]["body"]
            usage = body.get("usage") or {}
            self._count(usage.get("prompt_tokens"), usage.get("completion_tokens"))
            if (search := body.get("search")) and not search.get("cached"):
                self._add_cost({name: search[name] for name in SearchCost.model_fields.keys() & search.keys()})

    def add_error(self, line: Mapping[str, Any]) -> None:
        """Adds an error. A failed problem counts as not solved; an unreadable line does not count as a problem."""
        self.errors[str(line["kind"])] += 1
        if "problem_id" in line:
            self._grade(line["level"], False, False, [])

    def _add_problem(self, line: Mapping[str, Any]) -> None:
        self.degraded += line["degraded"]
        self._count(line["prompt_tokens"], line["cost"]["generated_tokens"])
        self._add_cost(line["cost"])
        self._grade(line["level"], line["right"], line["in_pool"], shuffled(line["paths"], line["seed"]))

    def _add_cost(self, cost: Mapping[str, Any]) -> None:
        self._searches += 1
        self._cost.update(cost)

    @property
    def cost(self) -> dict[str, float]:
        """Mean of every field of `SearchCost`; empty without searches."""
        return {name: total / self._searches for name, total in self._cost.items()}

    def _grade(self, level: object, right: bool, in_pool: bool, samples: list[Sample]) -> None:
        name = "none" if level is None else str(level)
        if name not in self.levels and len(self.levels) >= MAX_LEVELS:
            name = OTHER_LEVELS
        self.levels.setdefault(name, Share()).add(right)
        self.accuracy.add(right)
        self.pool.add(in_pool)
        self._most_samples = max(self._most_samples, len(samples))
        for k in self._ks:
            votes = self._votes[k]
            votes.passed.add(pass_at(min(k, len(samples)), samples))
            for rule, share in votes.selected.items():
                share.add(vote(samples[:k], rule))

    @property
    def votes(self) -> dict[int, Votes]:
        """Votes by number of paths, up to the first number that no search exceeds."""
        enough = next((k for k in self._ks if k >= self._most_samples), self._ks[-1])
        return {k: votes for k, votes in self._votes.items() if k <= enough}

    def _count(self, prompt: object, generated: object) -> None:
        for name, number in (("prompt", prompt), ("generated", generated)):
            if isinstance(number, int) and not isinstance(number, bool):
                self.tokens[name] += number

    def as_json(self, elapsed_s: float, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The summary for a JSON file. ``elapsed_s``: duration of the last run alone."""
        graded = {
            **self.accuracy.as_json(),
            "pool": self.pool.mean,
            "degraded": self.degraded,
            "cost": self.cost,
            "levels": {level: share.as_json() for level, share in sorted(self.levels.items())},
            "votes": {str(k): votes.as_json() for k, votes in sorted(self.votes.items())},
        }
        return {
            "format": FORMAT,
            "complete": not self.missing,
            "settings": dict(settings),
            "lines": {"all": self.lines, "results": self.results, "errors": dict(self.errors), "missing": self.missing},
            "elapsed_s": elapsed_s,
            "tokens": dict(self.tokens),
            "latency_s": {f"p{percent}": self.latencies.percentile(percent) for percent in PERCENTILES},
            **({"graded": graded} if self.accuracy.of else {"cost": self.cost} if self.cost else {}),
        }


def summarize(
    lines: int, results: Iterable[Mapping[str, Any]], errors: Iterable[Mapping[str, Any]], paths: int = MAX_PATHS
) -> Summary:
    """Returns the summary of a job with ``lines`` input lines, whose searches grow at most ``paths`` paths."""
    summary = Summary(lines, paths)
    for line in results:
        summary.add(line)
    for line in errors:
        summary.add_error(line)
    return summary


def summary_tables(summary: Summary) -> Iterator[Table]:
    """Tables of accuracy by level and of votes by number of paths; none if nothing was graded."""
    if not summary.accuracy.of:
        return
    levels = _table("level", "problems", "accuracy", "95% interval")
    for level, share in [*sorted(summary.levels.items()), ("all", summary.accuracy)]:
        low, high = wilson(round(share.right), share.of)
        interval = f"{100 * low:.1f} to {100 * high:.1f}"
        levels.add_row(Text(printable(level)), f"{share.of:,}", f"{share.mean:.1%}", interval)
    yield levels
    votes = _table("paths", "problems", "pass@k", *map(str, ANSWER_RULES))
    for k, at in sorted(summary.votes.items()):
        shares = (f"{at.selected[rule].mean:.1%}" for rule in ANSWER_RULES)
        votes.add_row(f"{k:,}", f"{at.passed.of:,}", f"{at.passed.mean:.1%}", *shares)
    yield votes


def summary_lines(summary: Summary, elapsed_s: float) -> Iterator[str]:
    """Lines of text about results, errors, tokens and latency."""
    failed = "".join(f", {count:,} with an error ({kind})" for kind, count in sorted(summary.errors.items()))
    missing = f", {summary.missing:,} not done" if summary.missing else ""
    yield f"{summary.lines:,} lines: {summary.results:,} results{failed}{missing}"
    if summary.results:
        times = ", ".join(f"p{percent} {summary.latencies.percentile(percent):.2f} s" for percent in PERCENTILES)
        tokens = ", ".join(f"{count:,} {name}" for name, count in sorted(summary.tokens.items()))
        yield f"tokens: {tokens or 'unknown'}; latency: {times}; {elapsed_s:.0f} s"
    if summary.cost.get("sample_tokens"):
        yield f"mean of a search: {SearchCost.model_construct(**summary.cost).bill}"  # type: ignore[arg-type]


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
