"""Runs both searches on the same problems and seeds, and compares the KV that they hold."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.ets_kv.held import Round, rounds_of
from benchmarks.record import claim
from search.run.environment import SearchEnvironment
from search.run.report import SearchOutcome
from search.run.runner import run_search
from search.settings import parse_search

RESAMPLED = 2_000
PAPER_FACTOR = 1.8


class Row(NamedTuple):
    """One problem under one search."""

    side: str
    problem: str
    score: float
    """1 for a right answer; for a tree without a model, the true quality of the answering path."""
    prompt_tokens: int
    rounds: list[Round]
    generated_tokens: int
    seconds: float

    def held(self, figure: str, with_prompt: bool) -> int:
        """Tokens summed over all rounds; ``figure`` is a field of `Round`."""
        held: int = sum(getattr(each, figure) for each in self.rounds)
        return held + with_prompt * self.prompt_tokens * len(self.rounds)


class Interval(NamedTuple):
    """A figure with its 95% interval over problems."""

    value: float
    low: float
    high: float


async def measured(
    side: str,
    settings: dict[str, Any],
    problem: str,
    question: str,
    prompt: Sequence[int],
    environment: SearchEnvironment,
    score: Callable[[SearchOutcome], float],
) -> Row:
    began = time.monotonic()
    outcome = await run_search(
        question, prompt, parse_search(settings), environment, search_id=f"{problem}:{side}:{time.monotonic_ns()}"
    )
    seconds = time.monotonic() - began
    spent = outcome.cost.generated_tokens
    return Row(side, problem, score(outcome), len(prompt), rounds_of(outcome.tree), spent, seconds)


def compared(rebase: Sequence[Row], other: Sequence[Row]) -> dict[str, Any]:
    """KV, scores and trees of the other side relative to REBASE. Both sides have the same problems in the same
    order."""
    assert [row.problem for row in rebase] == [row.problem for row in other]
    figures: dict[str, Any] = {
        "problems": len(rebase),
        "score": [_mean(row.score for row in rebase), _mean(row.score for row in other)],
        "score_difference": _difference(rebase, other)._asdict(),
    }
    for figure in ("by_node", "by_path"):
        for with_prompt in (False, True):
            name = f"factor_{figure}" + "_with_prompt" * with_prompt
            figures[name] = _factor(
                [row.held(figure, with_prompt) for row in rebase], [row.held(figure, with_prompt) for row in other]
            )._asdict()
    both = [rebase, other]
    figures |= {
        "held_by_node": [_mean(row.held("by_node", False) for row in rows) for rows in both],
        "held_by_path": [_mean(row.held("by_path", False) for row in rows) for rows in both],
        "held_by_path_at_least": [_mean(row.held("one_parent", False) for row in rows) for rows in both],
        "rounds": [_mean(len(row.rounds) for row in rows) for rows in both],
        "samples": [_mean(row.held("samples", False) for row in rows) for rows in both],
        "texts": [_mean(row.held("texts", False) for row in rows) for rows in both],
        "prompt_tokens": _mean(row.prompt_tokens for row in rebase),
        "generated_tokens": [_mean(row.generated_tokens for row in rows) for rows in both],
        "seconds": [_mean(row.seconds for row in rows) for rows in both],
    }
    return figures


def claims_of(about: str, figures: dict[str, Any]) -> list[dict[str, Any]]:
    """The claims of ETS's paper, and whether each holds here."""
    difference = figures["score_difference"]
    return [
        *(
            claim(
                f"{about}: REBASE holds {PAPER_FACTOR} times ETS's KV, {words}",
                round(figures[name]["value"], 3),
                PAPER_FACTOR,
                figures[name]["value"] >= PAPER_FACTOR,
            )
            for name, words in (("factor_by_node", "by node"), ("factor_by_path", "by distinct token path"))
        ),
        claim(
            f"{about}: ETS's answers are no worse than REBASE's, within the interval of the difference",
            [round(difference[bound], 4) for bound in ("value", "low", "high")],
            0,
            difference["high"] >= 0,
        ),
    ]


def _factor(first: Sequence[float], second: Sequence[float]) -> Interval:
    return _resampled(np.array([first, second], float), lambda sums: sums[0] / sums[1])


def _difference(first: Sequence[Row], second: Sequence[Row]) -> Interval:
    scores = np.array([[row.score for row in first], [row.score for row in second]])
    return _resampled(scores, lambda sums: (sums[1] - sums[0]) / scores.shape[1])


def _resampled(values: Any, statistic: Callable[[Any], Any]) -> Interval:
    """Bootstrap interval of a statistic of sums over problems; always the same resampling."""
    count = values.shape[1]
    drawn = np.random.default_rng(0).integers(0, count, (RESAMPLED, count))
    low, high = np.percentile(statistic(values[:, drawn].sum(axis=2)), [2.5, 97.5])
    return Interval(round(float(statistic(values.sum(axis=1))), 4), round(float(low), 4), round(float(high), 4))


def _mean(values: Any) -> float:
    return round(statistics.fmean(values), 4)
