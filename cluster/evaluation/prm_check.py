"""What a served reward model knows: its rewards for solutions of which it is known what is right, summarized."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field

from cluster.client.errors import ClientError, ProtocolError
from cluster.client.replies import Usage
from cluster.client.wire import validated
from cluster.evaluation.card_fit import VoteSample
from cluster.evaluation.prm_metrics import (
    DECISION_THRESHOLD,
    BestOfN,
    FirstMistakes,
    ReliabilityBin,
    Solution,
    best_of_n,
    best_threshold,
    expected_calibration_error,
    first_mistake_f1,
    reliability_bins,
    roc_curve,
    step_auc,
)
from cluster.evaluation.step_files import LabelledSolution
from search.answers.equivalence import AnswerMatcher
from search.answers.extraction import extract_answer
from search.strategies.path_score import Aggregation, aggregate

FORMAT = 1
MAX_CURVE_POINTS = 200
"""Most points of the ROC curve in a report."""

Post = Callable[[str, dict[str, object]], Awaitable[dict[str, Any]]]


class _ScoreReply(BaseModel):
    rewards: list[Annotated[float, Field(ge=0.0, le=1.0)]]
    usage: Usage


class ScoredSolution(NamedTuple):
    """A solution with the rewards of its steps, or with the reason why it has none."""

    position: int
    """Index among the solutions of the file."""
    solution: LabelledSolution
    rewards: tuple[float, ...] = ()
    tokens: int = 0
    """Tokens of question and steps, by the generator's tokenizer."""
    error: str | None = None


@dataclass(frozen=True)
class OutcomeAgreement:
    """How well the scores of whole solutions agree with their final answers."""

    auc: float | None
    """Probability that a right solution has a higher score than a wrong one; None unless there are both."""
    best_of_n: BestOfN | None
    """Over the problems with several solutions; None if there are none."""


@dataclass(frozen=True)
class PrmSummary:
    """What a reward model knows."""

    solutions: int
    failed: int
    """Solutions without rewards; they are in no other figure."""
    steps: int
    right_steps: int
    """Steps that are known to be right."""
    wrong_steps: int
    """Steps that are known to be wrong."""
    right_solutions: int
    wrong_solutions: int
    auc: float | None
    """Of the steps."""
    roc: list[tuple[float, float]]
    calibration_error: float | None
    bins: list[ReliabilityBin]
    threshold: float
    first_mistakes: FirstMistakes
    """At ``threshold``."""
    with_mistake: int
    """Solutions whose first mistake is known."""
    without_mistake: int
    """Solutions of which it is known that every step is right."""
    best_threshold: float | None
    best_first_mistakes: FirstMistakes | None
    """At ``best_threshold``, which was chosen on the same solutions: an upper bound."""
    outcomes: Mapping[Aggregation, OutcomeAgreement]
    elapsed_s: float
    tokens: int

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def best_of_n(self) -> BestOfN | None:
        """Best-of-n by the last reward. Its majority and its pool are those of every other score."""
        return self.outcomes[Aggregation.LAST].best_of_n

    def as_json(self) -> dict[str, Any]:
        fields = asdict(self) | {
            "bins": [each._asdict() for each in self.bins],
            "first_mistakes": self.first_mistakes._asdict(),
            "best_first_mistakes": self.best_first_mistakes._asdict() if self.best_first_mistakes else None,
            "outcomes": {
                how: {"auc": each.auc, "best_of_n": each.best_of_n._asdict() if each.best_of_n else None}
                for how, each in self.outcomes.items()
            },
        }
        return fields | {"steps_per_s": self.steps_per_s, "tokens_per_s": self.tokens_per_s}


async def score_all(
    post: Post, solutions: Sequence[LabelledSolution], in_flight: int, on_scored: Callable[[ScoredSolution], None]
) -> None:
    """Has every solution scored once, ``in_flight`` at a time, and passes each to ``on_scored`` as it arrives.

    A failed one has an error and does not end the check.
    """
    waiting = iter(enumerate(solutions))

    async def work() -> None:
        for index, solution in waiting:  # shared: each worker takes the next solution
            on_scored(await _scored(post, index, solution))

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(in_flight, len(solutions))):
            workers.create_task(work())


async def _scored(post: Post, index: int, solution: LabelledSolution) -> ScoredSolution:
    body: dict[str, object] = {"question": solution.problem, "steps": list(solution.steps)}
    try:
        reply = validated(_ScoreReply, await post("/v1/score", body))
        if len(reply.rewards) != len(solution.steps):
            raise ProtocolError(f"the reply has {len(reply.rewards)} rewards for {len(solution.steps)} steps")
    except ClientError as error:
        return ScoredSolution(index, solution, error=f"{type(error).__name__}: {error}")
    return ScoredSolution(index, solution, tuple(reply.rewards), reply.usage.prompt_tokens)


async def summarize(
    scored: Sequence[ScoredSolution], elapsed_s: float, threshold: float = DECISION_THRESHOLD
) -> PrmSummary:
    """The summary of scored solutions. ``threshold``: reward below which a step counts as a mistake."""
    done = sorted((each for each in scored if each.error is None), key=lambda each: each.position)
    known = [
        (reward, label)
        for each in done
        for reward, label in zip(each.rewards, each.solution.labels, strict=True)
        if label is not None
    ]
    rewards, labels = [reward for reward, _ in known], [label for _, label in known]
    located = [(each.rewards, each.solution.first_mistake) for each in done if each.solution.first_mistake is not None]
    paths, mistakes = [path for path, _ in located], [mistake for _, mistake in located]
    ended = [(each, each.solution.right) for each in done if each.solution.right is not None]
    outcomes = [right for _, right in ended]
    best = best_threshold(paths, mistakes)
    groups = await _groups([each for each, _ in ended])
    return PrmSummary(
        solutions=len(scored),
        failed=len(scored) - len(done),
        steps=sum(len(each.rewards) for each in done),
        right_steps=sum(labels),
        wrong_steps=len(labels) - sum(labels),
        right_solutions=sum(outcomes),
        wrong_solutions=len(outcomes) - sum(outcomes),
        auc=step_auc(rewards, labels),
        roc=_thinned(roc_curve(rewards, labels)),
        calibration_error=expected_calibration_error(rewards, labels),
        bins=reliability_bins(rewards, labels),
        threshold=threshold,
        first_mistakes=first_mistake_f1(paths, mistakes, threshold),
        with_mistake=sum(mistake >= 0 for mistake in mistakes),
        without_mistake=sum(mistake < 0 for mistake in mistakes),
        best_threshold=best,
        best_first_mistakes=None if best is None else first_mistake_f1(paths, mistakes, best),
        outcomes={
            how: OutcomeAgreement(
                step_auc([aggregate(each.rewards, how) for each, _ in ended], outcomes),
                best_of_n([_solutions(group, how) for group in groups]),
            )
            for how in Aggregation
        },
        elapsed_s=elapsed_s,
        tokens=sum(each.tokens for each in done),
    )


async def vote_pools(scored: Sequence[ScoredSolution]) -> list[list[VoteSample]]:
    """The solutions of each problem that was solved several times, as a card is fitted on them."""
    done = sorted((each for each in scored if each.error is None), key=lambda each: each.position)
    return [
        [
            VoteSample(each.rewards, bool(each.solution.right), answer)
            for each, answer in group
            for _ in range(each.solution.times)
        ]
        for group in await _groups([each for each in done if each.solution.right is not None])
    ]


async def _groups(ended: Sequence[ScoredSolution]) -> list[list[tuple[ScoredSolution, int | None]]]:
    """The solutions of each problem that was solved several times, each with the number of its answer: equivalent
    answers have one number, and a solution without an answer has none."""
    by_problem: dict[str, list[ScoredSolution]] = {}
    for each in ended:
        by_problem.setdefault(each.solution.problem, []).append(each)
    matcher = AnswerMatcher()
    try:
        return [
            list(zip(each, await _answers(each, matcher), strict=True))
            for each in by_problem.values()
            if sum(one.solution.times for one in each) > 1
        ]
    finally:
        matcher.close()


async def _answers(solutions: Sequence[ScoredSolution], matcher: AnswerMatcher) -> list[int | None]:
    texts = [extract_answer("\n\n".join(map(str.strip, each.solution.steps))) for each in solutions]
    answered = [index for index, text in enumerate(texts) if text is not None]
    groups = await matcher.group([text for text in texts if text is not None])
    numbers = {answered[member]: number for number, members in enumerate(groups) for member in members}
    return [numbers.get(index) for index in range(len(solutions))]


def _solutions(group: Sequence[tuple[ScoredSolution, int | None]], how: Aggregation) -> list[Solution]:
    return [
        Solution(aggregate(each.rewards, how), bool(each.solution.right), answer)
        for each, answer in group
        for _ in range(each.solution.times)
    ]


def _thinned(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most ``MAX_CURVE_POINTS`` points of a curve, both ends included."""
    most = min(len(curve), MAX_CURVE_POINTS)
    return [curve[round(index * (len(curve) - 1) / max(1, most - 1))] for index in range(most)]
