"""Report of a reward model's check as tables for a terminal."""

from collections.abc import Iterator

from rich.table import Table

from cluster.evaluation.prm_check import PrmSummary
from cluster.evaluation.prm_metrics import FirstMistakes, ReliabilityBin
from search.reward_card import Gain, RewardCard
from search.strategies.path_score import Aggregation

BAR = 20
"""Characters of a bar for a share of 100%."""


def tables(summary: PrmSummary) -> list[Table]:
    """The tables for which the file has labels, each narrow enough for 80 columns."""
    found = [_steps(summary)]
    if summary.right_solutions or summary.wrong_solutions:
        found.append(_outcomes(summary))
    if summary.bins:
        found.append(_reliability(summary))
    return found


def card_table(card: RewardCard) -> Table:
    """Every vote that a card has measured, beside the majority."""
    table = _table()
    table.add_column("vote")
    for heading in ("right", "less the majority", "95% interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row("majority", _share(card.majority), "", "")
    for vote in card.votes:
        table.add_row(str(vote), *_gain(vote.gain))
    knows = card.knows
    against = {
        "of any problem": knows.all_problems,
        "of its problem": knows.same_problem,
        "with the most frequent wrong answer": knows.frequent_wrong,
        "with another wrong answer": knows.rare_wrong,
        "without an answer": knows.no_answer,
    }
    shares = ", ".join(f"{wrong} {_figure(share)}" for wrong, share in against.items())
    table.caption = f"{card.problems:,} problems; a right solution is above a wrong one ({knows.aggregation}) {shares}"
    table.caption_justify = "left"
    return table


def _gain(gain: Gain) -> tuple[str, str, str]:
    return (
        _share(gain.accuracy),
        f"{100 * gain.difference:+.1f}",
        f"{100 * gain.low:+.1f} to {100 * gain.high:+.1f}",
    )


def _steps(summary: PrmSummary) -> Table:
    table = _table()
    table.add_column("measure")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("over")
    for measure, value, over in _rows(summary):
        table.add_row(measure, value, over)
    return table


def _outcomes(summary: PrmSummary) -> Table:
    """One row for each score of a solution, and below them what is had without a reward model."""
    over = [f"{summary.right_solutions:,} right and {summary.wrong_solutions:,} wrong final answers"]
    table = _table()
    table.add_column("a solution's score")
    for heading in ("outcome AUC", "best of n", "weighted vote"):
        table.add_column(heading, justify="right", no_wrap=True)
    for how, agreement in summary.outcomes.items():
        votes = agreement.best_of_n
        shares = (_share(votes.best), _share(votes.weighted)) if votes else ("–", "–")
        table.add_row(f"{how} reward" if how is not Aggregation.PROD else "product", _figure(agreement.auc), *shares)
    if (votes := summary.best_of_n) is not None:
        table.add_row("none: majority vote", "", "", _share(votes.majority))
        table.add_row("a perfect choice", "", _share(votes.any_right), "")
        over.append(f"shares are of the {votes.problems:,} problems with several solutions")
    table.caption, table.caption_justify = "; ".join(over), "left"
    return table


def _reliability(summary: PrmSummary) -> Table:
    table = _table()
    for heading in ("reward", "steps", "mean", "right"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("share of right steps (█); | is the mean reward", no_wrap=True)
    for each in summary.bins:
        row = f"{each.low:.1f} to {each.high:.1f}", f"{each.steps:,}", f"{each.reward:.2f}", f"{each.right:.0%}"
        table.add_row(*row, _bar(each))
    return table


def _table() -> Table:
    return Table(box=None, padding=(0, 1), collapse_padding=True, pad_edge=False)


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
            yield f"  at most, at {summary.best_threshold:.3f}", _figure(best), "threshold chosen on the same solutions"
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
