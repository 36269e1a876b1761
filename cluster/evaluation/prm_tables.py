"""Report of a reward model's check as tables for a terminal."""

from collections.abc import Iterator

from rich.table import Table

from cluster.evaluation.prm_check import PrmSummary
from cluster.evaluation.prm_metrics import FirstMistakes, ReliabilityBin

BAR = 20
"""Characters of a bar for a share of 100%."""


def summary_table(summary: PrmSummary) -> Table:
    """One row for each figure that the file allows, narrow enough for 80 columns."""
    table = Table(box=None, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column("measure")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("over")
    for measure, value, over in _rows(summary):
        table.add_row(measure, value, over)
    return table


def reliability_table(summary: PrmSummary) -> Table:
    """The bins of equal rewards: a calibrated model's mean rewards equal the shares of right steps."""
    table = Table(box=None, padding=(0, 1), collapse_padding=True, pad_edge=False)
    for heading in ("reward", "steps", "mean", "right"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("share of right steps (█); | is the mean reward", no_wrap=True)
    for each in summary.bins:
        row = f"{each.low:.1f} to {each.high:.1f}", f"{each.steps:,}", f"{each.reward:.2f}", f"{each.right:.0%}"
        table.add_row(*row, _bar(each))
    return table


def _rows(summary: PrmSummary) -> Iterator[tuple[str, str, str]]:
    if summary.right_steps or summary.wrong_steps:
        steps = f"{summary.right_steps:,} right and {summary.wrong_steps:,} wrong steps"
        yield "step AUC", _figure(summary.auc), steps
        yield "calibration error", _figure(summary.calibration_error), "the same steps"
    if summary.with_mistake or summary.without_mistake:
        over = f"{summary.with_mistake:,} solutions with a mistake, {summary.without_mistake:,} without"
        yield f"first-mistake F1 at {summary.threshold:.2f}", _figure(summary.first_mistakes.f1), over
        yield from _accuracies(summary.first_mistakes)
        if summary.best_threshold is not None and summary.best_first_mistakes is not None:
            best = summary.best_first_mistakes.f1
            yield f"  at most, at {summary.best_threshold:.2f}", _figure(best), "threshold chosen on the same solutions"
    outcomes = f"{summary.right_solutions:,} right and {summary.wrong_solutions:,} wrong final answers"
    if summary.right_solutions or summary.wrong_solutions:
        for how, agreement in summary.outcomes.items():
            yield f"outcome AUC, {how}", _figure(agreement.auc), outcomes
            outcomes = ""
    if (votes := summary.best_of_n) is not None:
        over = f"{votes.problems:,} problems with several solutions"
        for how, agreement in summary.outcomes.items():
            if agreement.best_of_n is not None:
                yield f"best of n, {how}", _share(agreement.best_of_n.best), over
                yield f"  weighted vote, {how}", _share(agreement.best_of_n.weighted), ""
                over = ""
        yield "majority vote", _share(votes.majority), "the same problems; asks no reward model"
        yield "any right", _share(votes.any_right), "the same problems; what a perfect choice would get"
    yield "steps a second", f"{summary.steps_per_s:,.0f}", f"{summary.steps:,} steps in {summary.elapsed_s:.1f} s"
    yield "tokens a second", f"{summary.tokens_per_s:,.0f}", "questions and steps, by the generator's tokenizer"


def _accuracies(found: FirstMistakes) -> Iterator[tuple[str, str, str]]:
    yield "  mistakes found", _share(found.erroneous), "exactly the first mistake is the first low reward"
    yield "  correct accepted", _share(found.correct), "no low reward"


def _bar(each: ReliabilityBin) -> str:
    filled = round(BAR * each.right)
    bar = list("█" * filled + " " * (BAR + 1 - filled))
    bar[round(BAR * each.reward)] = "|"
    return "".join(bar)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
