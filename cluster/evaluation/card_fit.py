"""Fits the card of a reward model on scored solutions of problems with answers.

Weights of votes are fitted by maximum likelihood: the chance that an answer is the right one is the softmax over the
sums of the weights of its votes (McFadden's conditional logit, 1974). So they are calibrated where a vote needs it,
between the answers of one problem, and negative where a score speaks against an answer. That such weights, not the
rewards, make the most likely answer win is shown in arXiv 2510.13918.

Weights are cross-validated: each fold's votes use weights that were fitted on the other folds. The recommended vote is
chosen among eight that are compared on the same problems.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cluster.evaluation.paired_bootstrap import CONFIDENCE, Difference, paired_bootstrap
from cluster.evaluation.prm_metrics import step_auc
from search.answers.voting import Ballot, Candidate, SelectionRule
from search.reward_card import Gain, MeasuredVote, RewardAUC, RewardCard
from search.strategies.path_score import Aggregation, aggregate
from search.strategies.vote_weights import VoteWeights

MIN_PROBLEMS = 20
"""Least number of problems with several solutions."""
MIN_OPEN = 8
"""Least number of them that a vote could get right or wrong: a right answer and another one were given."""
FOLDS = 5
USE_CONFIDENCE = 1 - (1 - CONFIDENCE) / (2 * len(Aggregation))
"""Of the interval by which one of the eight weighted votes is recommended. Bonferroni's: with 95% for each, one of
eight that gain nothing would often be above 0."""
PRIOR = (1e-3, 1.0)
"""Inverse variances around 0 of the weight at the mean log-odds, and of what a standard deviation adds to it. The
second one draws the weights of few problems towards equal ones."""
LEAST_WEIGHT = 0.01
NEWTON_STEPS, CLOSE = 50, 1e-9
LEAST_SPREAD = 1e-3
"""Least standard deviation of log-odds: equal rewards differ by rounding."""
DIGITS, WEIGHT_DIGITS = 4, 6
RIGHT = "right"
FREQUENT, OTHER, NO_ANSWER = "the most frequent wrong answer", "other wrong answers", "no answer"
WRONG = (FREQUENT, OTHER, NO_ANSWER)
"""Kinds of wrong solutions to a problem. A majority vote can only lose to the first."""


class TooFewProblems(ValueError):
    """The solutions do not suffice for a card."""


class VoteSample(NamedTuple):
    """A scored solution of a problem."""

    rewards: tuple[float, ...]
    right: bool
    answer: Hashable | None
    """Equal for equivalent answers; None if the solution has none."""


Pool: TypeAlias = Sequence[VoteSample]
"""The solutions of one problem."""
Matrix: TypeAlias = NDArray[np.float64]
Score: TypeAlias = Callable[[VoteSample], float]


def fit_card(pools: Sequence[Pool], generator: str | None = None, source: str = "") -> RewardCard:
    """The card of the rewards in ``pools``, one for each problem.

    Raises:
        TooFewProblems: fewer than `MIN_PROBLEMS` problems have several solutions, or fewer than `MIN_OPEN` of them have
            a right answer and another one.
    """
    pools = [pool for pool in pools if len(pool) > 1]
    undecided = sum(_is_open(pool) for pool in pools)
    if len(pools) < MIN_PROBLEMS or undecided < MIN_OPEN:
        raise TooFewProblems(
            f"problems with several solutions: {len(pools)}, of which {undecided} have a right answer and another one; "
            f"a card needs at least {MIN_PROBLEMS} and {MIN_OPEN}"
        )
    majority = [voted(pool, SelectionRule.MAJORITY, Aggregation.LAST) for pool in pools]
    judged: list[tuple[MeasuredVote, list[bool]]] = []
    for rule in (SelectionRule.NAIVE, SelectionRule.WEIGHTED):
        for how in Aggregation:
            right = [voted(pool, rule, how) for pool in pools]
            judged.append((MeasuredVote(selection=rule, aggregation=how, gain=gain_over(majority, right)), right))
    for how in Aggregation:
        right = _cross_validated(pools, how)
        weights, gain = fit_weights(pools, how), gain_over(majority, right)
        weighted = MeasuredVote(selection=SelectionRule.WEIGHTED, aggregation=how, vote_weights=weights, gain=gain)
        judged.append((weighted, right))
    card = RewardCard(
        generator=generator,
        source=source,
        problems=len(pools),
        samples=statistics.median_low(map(len, pools)),
        majority=round(statistics.fmean(majority), DIGITS),
        votes=tuple(vote for vote, _ in judged),
        use=_recommended(majority, judged),
        knows=reward_auc(pools, Aggregation.LAST),
    )
    return card.model_copy(update={"knows": reward_auc(pools, card.best.aggregation)})


def _recommended(majority: Sequence[bool], judged: Sequence[tuple[MeasuredVote, Sequence[bool]]]) -> int | None:
    """Index of the vote to use; None: the majority. The simplest that no other is better than by more than chance:
    rewards as they are before calibrated ones, and the last reward, which searches use, before other aggregations."""
    use, best = None, majority
    for index, (vote, right) in enumerate(judged):
        if vote.selection is SelectionRule.WEIGHTED and _difference(best, right, USE_CONFIDENCE).low > 0:
            use, best = index, right
    return use


def gain_over(others: Sequence[bool], votes: Sequence[bool]) -> Gain:
    """The gain of votes over others, in general the majority, both by problem."""
    found = _difference(others, votes)
    figures = {"difference": found.mean, "low": found.low, "high": found.high, "accuracy": statistics.fmean(votes)}
    return Gain.model_validate({name: round(figure, DIGITS) for name, figure in figures.items()})


def _difference(first: Sequence[bool], second: Sequence[bool], confidence: float = CONFIDENCE) -> Difference:
    one, other = ({str(index): float(each) for index, each in enumerate(both)} for both in (first, second))
    return paired_bootstrap(one, other, confidence=confidence)


def fit_weights(pools: Sequence[Pool], how: Aggregation) -> VoteWeights:
    """The weights under which the right answers are most likely."""
    log_odds = VoteWeights(offset=0, scale=1)
    every = [log_odds.raw(aggregate(each.rewards, how)) for pool in pools for each in pool if each.answer is not None]
    mean, spread = float(np.mean(every)), max(float(np.std(every)), LEAST_SPREAD)

    def standard(each: VoteSample) -> float:
        return (log_odds.raw(aggregate(each.rewards, how)) - mean) / spread

    base, slope = _most_likely([_sums(pool, standard) for pool in pools if _is_open(pool)])
    scale, offset = slope / spread, base - slope / spread * mean
    most = max(abs(offset + scale * log_odds.raw(end)) for end in (0.0, 1.0))
    return VoteWeights(offset=round(offset / most, WEIGHT_DIGITS), scale=round(scale / most, WEIGHT_DIGITS))


def _most_likely(problems: Sequence[Matrix]) -> tuple[float, float]:
    """The two parameters with which the answers in the first rows are most likely, by Newton's method with halved
    steps: the loss is convex. The first is at least `LEAST_WEIGHT`: on average votes count for their answers."""
    widest = max(map(len, problems))
    sums = np.array([np.pad(each, ((0, widest - len(each)), (0, 0))) for each in problems])
    absent = np.array([np.arange(widest) >= len(each) for each in problems])
    prior = np.array(PRIOR)

    def loss(parameters: Matrix) -> float:
        weights = np.where(absent, -np.inf, sums @ parameters)
        return float(prior @ parameters**2) / 2 + float((np.logaddexp.reduce(weights, axis=1) - weights[:, 0]).sum())

    def minimized(found: Matrix, free: slice) -> Matrix:
        for _ in range(NEWTON_STEPS):
            weights = np.where(absent, -np.inf, sums @ found)
            chances = np.exp(weights - np.logaddexp.reduce(weights, axis=1)[:, None])
            means = np.einsum("pa,pak->pk", chances, sums)
            gradient = prior * found + (means - sums[:, 0]).sum(axis=0)
            curvature = np.diag(prior) + np.einsum("pa,pak,pal->kl", chances, sums, sums) - means.T @ means
            step = np.zeros_like(found)
            step[free] = np.linalg.solve(curvature[free, free], gradient[free])
            before = loss(found)
            while np.abs(step).max() > CLOSE and loss(found - step) > before:
                step = step / 2
            found = found - step
            if np.abs(step).max() <= CLOSE:
                break
        return found

    found = minimized(np.array([1.0, 0.0]), slice(0, 2))
    if found[0] < LEAST_WEIGHT:
        found = minimized(np.array([LEAST_WEIGHT, 0.0]), slice(1, 2))
    return float(found[0]), float(found[1])


def voted(pool: Pool, rule: SelectionRule, how: Aggregation, weights: VoteWeights | None = None) -> bool:
    """Whether a vote is right."""
    ballot: Ballot[int] = Ballot()
    numbers: dict[Hashable, int] = {}
    for index, each in enumerate(pool):
        score = aggregate(each.rewards, how)
        group = None if each.answer is None else numbers.setdefault(each.answer, len(numbers))
        weight = None if weights is None else weights.weight(score)
        ballot.add(Candidate(index, score, None, group, weight=weight))
    return pool[ballot.selected(rule).node].right


def reward_auc(pools: Sequence[Pool], how: Aggregation) -> RewardAUC:
    """What the scores of whole solutions know."""
    scores = [[aggregate(each.rewards, how) for each in pool] for pool in pools]
    right = [each.right for pool in pools for each in pool]
    kinds = [kinds_of(pool) for pool in pools]
    return RewardAUC(
        aggregation=how,
        all_problems=_rounded(step_auc([score for row in scores for score in row], right)),
        same_problem=auc_within(scores, kinds, WRONG),
        frequent_wrong=auc_within(scores, kinds, (FREQUENT,)),
        rare_wrong=auc_within(scores, kinds, (OTHER,)),
        no_answer=auc_within(scores, kinds, (NO_ANSWER,)),
    )


def kinds_of(pool: Pool) -> list[str]:
    """`RIGHT`, or the kind of wrong solution, for each solution of a problem."""
    wrong = Counter(each.answer for each in pool if not each.right and each.answer is not None)
    frequent = wrong.most_common(1)[0][0] if wrong else None

    def kind(each: VoteSample) -> str:
        if each.right:
            return RIGHT
        if each.answer is None:
            return NO_ANSWER
        return FREQUENT if each.answer == frequent else OTHER

    return [kind(each) for each in pool]


def aucs_within(
    scores: Sequence[Sequence[float]], kinds: Sequence[Sequence[str]], wrong: Collection[str]
) -> list[float]:
    """For each problem with solutions of both sorts, the chance that a right one scores above a wrong one of these
    kinds."""
    found: list[float] = []
    for of_problem, row in zip(kinds, scores, strict=True):
        compared = [
            (score, kind == RIGHT) for score, kind in zip(row, of_problem, strict=True) if kind in (RIGHT, *wrong)
        ]
        auc = step_auc([score for score, _ in compared], [right for _, right in compared])
        if auc is not None:
            found.append(auc)
    return found


def auc_within(
    scores: Sequence[Sequence[float]], kinds: Sequence[Sequence[str]], wrong: Collection[str]
) -> float | None:
    """The mean of `aucs_within`; None without such problems."""
    found = aucs_within(scores, kinds, wrong)
    return _rounded(statistics.fmean(found)) if found else None


def _is_open(pool: Pool) -> bool:
    answers = {each.answer for each in pool if each.answer is not None}
    return len(answers) > 1 and any(each.right and each.answer is not None for each in pool)


def _cross_validated(pools: Sequence[Pool], how: Aggregation) -> list[bool]:
    """Whether each problem's vote is right, with the weights that were fitted on the other folds."""
    right = [False] * len(pools)
    for fold in range(FOLDS):
        weights = fit_weights([pool for index, pool in enumerate(pools) if index % FOLDS != fold], how)
        for index in range(fold, len(pools), FOLDS):
            right[index] = voted(pools[index], SelectionRule.WEIGHTED, how, weights)
    return right


def _sums(pool: Pool, score: Score) -> Matrix:
    """The number of votes, and the sum of their scores, for each answer (rows), the right one first."""
    sums: dict[Hashable, list[float]] = {}
    for each in sorted(pool, key=lambda each: not each.right):
        if each.answer is not None:
            votes = sums.setdefault(each.answer, [0.0, 0.0])
            votes[0] += 1
            votes[1] += score(each)
    return np.array([*sums.values()])


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
