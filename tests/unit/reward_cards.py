"""Cards of reward models, as `banyan check-prm --card` writes them."""

from search.answers.voting import SelectionRule
from search.reward_card import Gain, MeasuredVote, RewardAUC, RewardCard
from search.strategies.path_score import Aggregation
from search.strategies.vote_weights import VoteWeights

LOSS = Gain(accuracy=0.3, difference=-0.08, low=-0.12, high=-0.04)
GAIN = Gain(accuracy=0.5, difference=0.1, low=0.04, high=0.16)
KNOWS = RewardAUC(
    aggregation=Aggregation.MIN,
    all_problems=0.7,
    same_problem=0.6,
    frequent_wrong=0.5,
    rare_wrong=0.7,
    no_answer=None,
)


def card(use: int | None, gain: Gain = LOSS, weights: VoteWeights | None = None) -> RewardCard:
    votes = (
        MeasuredVote(selection=SelectionRule.NAIVE, aggregation=Aggregation.LAST, gain=LOSS),
        MeasuredVote(selection=SelectionRule.WEIGHTED, aggregation=Aggregation.MIN, vote_weights=weights, gain=gain),
    )
    return RewardCard(generator="g", problems=200, samples=16, majority=0.38, votes=votes, use=use, knows=KNOWS)


def worthless_card() -> RewardCard:
    """The card of a reward model that costs accuracy."""
    return card(None)
