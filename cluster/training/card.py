"""The card of a trained reward model: what it knows about held-out problems, and whether it is worth serving."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from cluster.evaluation.card_fit import TooFewProblems, VoteSample, fit_card
from cluster.evaluation.prm_metrics import (
    Solution,
    best_of_n,
    expected_calibration_error,
    first_mistake_f1,
    step_auc,
)
from cluster.training.backbone import Layout
from cluster.training.fit import Fitted
from cluster.training.settings import TrainingSettings
from cluster.training.solutions import SolvedProblem
from deployments.engines.rewards.card_file import CARD_FILE
from search.answers.equivalence import AnswerMatcher
from search.answers.extraction import extract_answer
from search.reward_card import RewardCard

TEMPLATE_TOKENS = 64
"""Context beside the longest path, as the family reserves it."""


class ScoredSolution(NamedTuple):
    """A solution of a held-out problem with the rewards of its steps."""

    problem: int
    """Index of the problem."""
    solution: int
    """Index among the problem's solutions."""
    rewards: list[float]
    labels: list[float]
    """Share of right final answers among the problem's solutions that begin with the same steps."""


class Metrics(BaseModel):
    """Measured on held-out problems. A step counts as right if a right answer was reached from it."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    problems: int
    solutions: int
    steps: int
    """Each once, however many solutions share it."""
    share_right: float
    """Of the steps."""
    step_auc: float | None
    calibration_error: float | None
    """Mean distance between reward and share of right final answers, over ten bins."""
    first_mistake_accuracy: float | None
    """Share of wrong solutions in which the first reward below a half is that of the first wrong step."""
    first_mistake_f1: float | None
    """As ProcessBench counts it."""
    best_of_n: float
    """Accuracy of the solution with the highest last reward."""
    weighted: float
    """Accuracy of the answer with the highest sum of last rewards."""
    majority: float
    """Accuracy of the most frequent answer."""
    any_right: float
    """Accuracy of a perfect choice."""


class Measured(NamedTuple):
    """What a trained model knows."""

    metrics: Metrics
    card: RewardCard | None
    """What it is worth in a vote; None if the held-out problems do not suffice."""
    verdict: str
    """The card's; or why there is none."""


async def measure(problems: Sequence[SolvedProblem], scored: Sequence[ScoredSolution]) -> Measured:
    """What the ``scored`` solutions of ``problems`` say of the model."""
    matcher = AnswerMatcher()
    try:
        voted = [
            await _votes(problem, [each for each in scored if each.problem == index], matcher)
            for index, problem in enumerate(problems)
        ]
    finally:
        matcher.close()
    pools = [samples for samples in voted if samples]
    by_problem = [[Solution(each.rewards[-1], each.right, each.answer) for each in pool] for pool in pools]
    steps: dict[tuple[object, ...], tuple[float, bool]] = {}
    outcomes: list[tuple[float, bool]] = []
    mistakes: list[int] = []
    for each in scored:
        solution = problems[each.problem].solutions[each.solution]
        for index, (reward, label) in enumerate(zip(each.rewards, each.labels, strict=True)):
            steps[each.problem, solution.steps[: index + 1]] = (reward, label > 0)
            outcomes += [(reward, solution.right)] * solution.count
        mistakes.append(next((index for index, label in enumerate(each.labels) if label == 0), -1))
    found = first_mistake_f1([each.rewards for each in scored], mistakes)
    whole = best_of_n(by_problem)
    assert whole is not None
    rewards, rights = zip(*steps.values(), strict=True)
    of_ends, ends = zip(*outcomes, strict=True)
    metrics = Metrics(
        problems=len(by_problem),
        solutions=sum(map(len, by_problem)),
        steps=len(steps),
        share_right=statistics.fmean(rights),
        step_auc=step_auc(rewards, rights),
        calibration_error=expected_calibration_error(of_ends, ends),
        first_mistake_accuracy=found.erroneous,
        first_mistake_f1=found.f1,
        best_of_n=whole.best,
        weighted=whole.weighted or 0.0,
        majority=whole.majority or 0.0,
        any_right=whole.any_right,
    )
    try:
        card = fit_card(pools, source="held-out problems of the training")
    except TooFewProblems as error:
        return Measured(metrics, None, f"Not judged: {error}.")
    return Measured(metrics, card, card.verdict)


async def _votes(problem: SolvedProblem, scored: Sequence[ScoredSolution], matcher: AnswerMatcher) -> list[VoteSample]:
    """The problem's solutions for a vote, each as often as it was written."""
    solutions = [problem.solutions[each.solution] for each in scored]
    answers = [extract_answer("\n\n".join(solution.steps)) for solution in solutions]
    known = sorted({answer for answer in answers if answer is not None})
    group = {known[member]: number for number, members in enumerate(await matcher.group(known)) for member in members}
    return [
        VoteSample(tuple(each.rewards), solution.right, None if answer is None else group[answer])
        for each, solution, answer in zip(scored, solutions, answers, strict=True)
        for _ in range(solution.count)
    ]


def card_text(measured: Measured, settings: TrainingSettings, layout: Layout, fitted: Fitted, directory: str) -> str:
    """The card, in Markdown."""
    metrics = measured.metrics
    rows = {
        "AUC of steps": metrics.step_auc,
        "calibration error": metrics.calibration_error,
        "first mistake found, of wrong solutions": metrics.first_mistake_accuracy,
        "first mistakes, F1": metrics.first_mistake_f1,
        "best of n": metrics.best_of_n,
        "weighted vote": metrics.weighted,
        "majority vote": metrics.majority,
        "right answer among the n": metrics.any_right,
    }
    table = "\n".join(f"| {name} | {'–' if value is None else f'{value:.3f}'} |" for name, value in rows.items())
    trained = f"its top {settings.layers} layers and the head" if settings.layers else "the head alone"
    epoch = f"best epoch {fitted.best_epoch} of {fitted.epochs}"
    return f"""# A process reward model

{measured.verdict}

Backbone: `{settings.backbone}`; trained: {trained}, {epoch}, seed {settings.seed}.

| on {metrics.problems:,} held-out problems, {metrics.solutions:,} solutions, {metrics.steps:,} steps | |
|---|---|
{table}

A step counts as right if a right answer was reached from it. What the figures mean: `docs/rewards.md` of Banyan. All
of them are in `metrics.json`, and what it is worth in a vote in `{CARD_FILE}`.

Serve it with:

```yaml
args:
  prm:
    family: {layout.form}
    model: {directory}
    dtype: {layout.dtype}
    max_model_len: {min(settings.max_tokens, layout.context)}
{"" if measured.card is None else f"    card: {directory}"}
```
"""
