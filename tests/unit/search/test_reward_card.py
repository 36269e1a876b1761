"""What a reward model's card makes of a search: weights of votes, defaults, notes."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.answers.voting import Ballot, Candidate, SelectionRule, decisive_shares
from search.settings import STRATEGIES, parse_search
from search.strategies.solutions.best_of_n import BestOfN
from search.strategies.vote_weights import VoteWeights
from search.tree import SearchTree, Step, StepEnd
from tests.unit.reward_cards import GAIN, card

SCORES = st.lists(st.tuples(st.floats(0, 1), st.sampled_from([None, 0, 1, 2])), min_size=1, max_size=12)


def selected(given: list[tuple[float, int | None]], weights: list[float] | None, rule: SelectionRule) -> Any:
    ballot: Ballot[int] = Ballot()
    for index, (score, group) in enumerate(given):
        answer = None if group is None else str(group)
        weight = None if weights is None else weights[index]
        ballot.add(Candidate(index, score, answer, group, Fraction(1), weight))
    return ballot.selected(rule)


@given(SCORES)
def test_equal_weights_are_the_majority_and_scores_as_weights_the_weighted_vote(
    given: list[tuple[float, int | None]],
) -> None:
    flat = VoteWeights(offset=3.0, scale=0.0)
    equal = selected(given, [flat.weight(score) for score, _ in given], SelectionRule.WEIGHTED)
    assert equal.answer == selected(given, None, SelectionRule.MAJORITY).answer
    own = selected(given, [score for score, _ in given], SelectionRule.WEIGHTED)
    assert own == selected(given, None, SelectionRule.WEIGHTED)


@given(SCORES, st.floats(-5, 5), st.floats(-5, 5))
def test_the_winner_has_the_largest_share_whatever_the_weights(
    given: list[tuple[float, int | None]], offset: float, scale: float
) -> None:
    weights = VoteWeights(offset=offset, scale=scale)
    found = [weights.weight(score) for score, _ in given]
    assert all(weights.lowest <= weight <= 1 and weight >= -1 for weight in found)
    groups = selected(given, found, SelectionRule.WEIGHTED).groups
    shares = decisive_shares(groups, SelectionRule.WEIGHTED)
    assert all(0 <= share <= 1 for share in shares)
    assert shares == [] or shares[0] == max(shares)


def test_negative_weights_do_not_stop_a_vote_early() -> None:
    tree = SearchTree(7)
    for node in tree.request(tree.root, 8):
        tree.write(node, Step((1,), r"\boxed{1}", StepEnd.END_OF_SEQUENCE), ends=True)
        tree.complete(node, 0.9)
    for offset, stops in ((1.0, True), (0.3, False)):
        weights = VoteWeights(offset=offset, scale=0.1)
        assert (weights.lowest >= 0) == stops
        strategy = BestOfN(n=12, risk=0.05, rounds=(8,), vote_weights=weights)
        assert (sum(each.count for each in strategy.select(tree)) == 0) == stops


@pytest.mark.parametrize(
    ("given", "decided"),
    [
        ({}, {"selection": "weighted", "aggregation": "min", "vote_weights": {"offset": 0.3, "scale": 0.1}}),
        ({"selection": "majority"}, {}),
        ({"aggregation": "last"}, {}),
        ({"vote_weights": None}, {}),
        ({"risk": 0.05}, {}),  # the vote would never stop
        ({"n": 4}, {"selection": "weighted", "aggregation": "min", "vote_weights": {"offset": 0.3, "scale": 0.1}}),
    ],
)
def test_a_card_decides_where_nothing_is_said(given: dict[str, Any], decided: dict[str, Any]) -> None:
    helps = card(1, GAIN, VoteWeights(offset=0.3, scale=0.1))
    assert helps.defaults(BestOfN, given) == decided
    parse_search({"strategy": "best_of_n", **helps.defaults(BestOfN, given), **given})


def test_a_card_decides_votes_over_whole_solutions_alone() -> None:
    decided = {name: card(None).defaults(strategy, {}) for name, strategy in STRATEGIES.items()}
    assert {name: given for name, given in decided.items() if given} == {"best_of_n": {"selection": "majority"}}


def test_searches_that_score_get_the_note_of_a_reward_model_that_is_worth_nothing() -> None:
    strategies = {name: parse_search({"strategy": name}).strategy for name in STRATEGIES}
    noted = {name: card(None).note(strategy) for name, strategy in strategies.items()}
    assert noted["greedy"] is None
    assert noted["self_consistency"] is None
    assert noted["beam_search"] == (
        "The reward model costs accuracy here: the majority of 16 was right in 38.0%, a vote weighted by the min "
        "reward in 30.0% (difference -8.0 points, 95% interval -12.0 to -4.0), on 200 problems with g; "
        "strategy self_consistency needs no rewards"
    )
    assert all(note for name, note in noted.items() if strategies[name].is_scored)
    naive = parse_search({"strategy": "best_of_n", "selection": "naive"}).strategy
    assert "the solution with the highest last reward in 30.0%" in (card(None).note(naive) or "")
    assert all(card(1, GAIN).note(parse_search({"strategy": name}).strategy) is None for name in STRATEGIES)


def test_a_card_that_recommends_a_vote_which_it_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="use is 2, but there are 2 votes"):
        card(2)
    with pytest.raises(ValueError, match="use must be a weighted vote"):
        card(0)
