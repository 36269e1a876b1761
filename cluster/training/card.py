"""The card of a trained reward model: what it knows about held-out problems, and whether it is worth serving."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

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
from search.answers.equivalence import AnswerMatcher
from search.answers.extraction import extract_answer

Z = 1.96
"""Standard errors of a 95% interval."""
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
    gain_low: float
    """Bounds of the 95% interval of ``weighted`` - ``majority``, paired by problem."""
    gain_high: float

    @property
    def recommended(self) -> bool:
        """Whether the model beats the majority vote on the held-out problems, by more than chance."""
        return self.gain_low > 0

    @property
    def verdict(self) -> str:
        """One or two sentences for people."""
        gain = 100 * (self.weighted - self.majority)
        found = (
            f"its weighted vote is right in {self.weighted:.1%} of {self.problems:,} held-out problems, the majority "
            f"in {self.majority:.1%} (difference {gain:+.1f} points, 95% interval {100 * self.gain_low:+.1f} to "
            f"{100 * self.gain_high:+.1f})"
        )
        if self.recommended:
            return f"Recommended: {found}."
        if gain > 0:
            return f"Not recommended yet: {found}. The interval includes 0: measure on more problems."
        return f"Not recommended: {found}."


async def measure(problems: Sequence[SolvedProblem], scored: Sequence[ScoredSolution]) -> Metrics:
    """Metrics of the ``scored`` solutions of ``problems``."""
    matcher = AnswerMatcher()
    try:
        voted = [
            await _votes(problem, [each for each in scored if each.problem == index], matcher)
            for index, problem in enumerate(problems)
        ]
    finally:
        matcher.close()
    by_problem = [solutions for solutions in voted if solutions]
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
    gains = [_right([each], weighted=True) - _right([each], weighted=False) for each in by_problem]
    mean = statistics.fmean(gains)
    error = Z * statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 1.0
    rewards, rights = zip(*steps.values(), strict=True)
    of_ends, ends = zip(*outcomes, strict=True)
    return Metrics(
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
        gain_low=mean - error,
        gain_high=mean + error,
    )


async def _votes(problem: SolvedProblem, scored: Sequence[ScoredSolution], matcher: AnswerMatcher) -> list[Solution]:
    """The problem's solutions for a vote, each as often as it was written."""
    solutions = [problem.solutions[each.solution] for each in scored]
    answers = [extract_answer("\n\n".join(solution.steps)) for solution in solutions]
    known = sorted({answer for answer in answers if answer is not None})
    group = {known[member]: number for number, members in enumerate(await matcher.group(known)) for member in members}
    return [
        Solution(each.rewards[-1], solution.right, None if answer is None else group[answer])
        for each, solution, answer in zip(scored, solutions, answers, strict=True)
        for _ in range(solution.count)
    ]


def _right(problems: Sequence[Sequence[Solution]], *, weighted: bool) -> float:
    found = best_of_n(problems)
    assert found is not None
    return (found.weighted if weighted else found.majority) or 0.0


def card_text(metrics: Metrics, settings: TrainingSettings, layout: Layout, fitted: Fitted, directory: str) -> str:
    """The card, in Markdown."""
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

{metrics.verdict}

Backbone: `{settings.backbone}`; trained: {trained}, {epoch}, seed {settings.seed}.

| on {metrics.problems:,} held-out problems, {metrics.solutions:,} solutions, {metrics.steps:,} steps | |
|---|---|
{table}

A step counts as right if a right answer was reached from it. What the figures mean: `docs/rewards.md` of Banyan. All
of them are in `metrics.json`.

Serve it with:

```yaml
args:
  prm:
    family: {layout.form}
    model: {directory}
    dtype: {layout.dtype}
    max_model_len: {min(settings.max_tokens, layout.context)}
```
"""
