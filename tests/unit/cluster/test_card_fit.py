"""The card of a reward model: what it recommends is what was measured, on other problems than those of the fit."""

import json
import math
import random
from pathlib import Path

import pytest
from endpoint_stand_in import Endpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from cluster.cli.main import app
from cluster.evaluation import card_fit
from cluster.evaluation.card_fit import Pool, TooFewProblems, VoteSample, fit_card, fit_weights, voted
from cluster.evaluation.prm_metrics import Solution, best_of_n
from search.answers.voting import SelectionRule
from search.reward_card import RewardCard
from search.strategies.path_score import Aggregation
from search.strategies.vote_weights import VoteWeights


def pools_of(problems: int, knows: float, seed: int = 0, minority: float = 0.4) -> list[Pool]:
    """Problems with eight solutions, of which a share is right and the others have one of two wrong answers. The reward
    of a right one is higher by ``knows``."""
    rng = random.Random(seed)

    def sample() -> VoteSample:
        right = rng.random() < minority
        reward = min(0.98, max(0.02, rng.gauss(0.4 + knows * right, 0.15)))
        return VoteSample((0.5, reward), right, "right" if right else rng.choice(["a", "a", "b"]))

    return [[sample() for _ in range(8)] for _ in range(problems)]


def test_a_reward_model_that_knows_nothing_is_not_recommended() -> None:
    card = fit_card(pools_of(80, knows=0.0), "some-model", "some.jsonl")
    assert (card.problems, card.samples, card.helps) == (80, 8, False)
    assert card.verdict.startswith("The reward model ")
    assert card.verdict.endswith("on 80 problems with some-model. Strategy self_consistency needs no rewards.")
    assert card.knows.same_problem == pytest.approx(0.5, abs=0.06)


def test_a_reward_model_that_knows_what_is_right_is_recommended() -> None:
    card = fit_card(pools_of(80, knows=0.4))
    assert card.helps
    assert card.best.selection is SelectionRule.WEIGHTED
    assert card.best.aggregation is Aggregation.LAST  # not the mean with a first reward that is always the same
    assert card.best.gain.low > 0
    assert card.verdict.startswith(f"The reward model helps a vote: the majority of 8 was right in {card.majority:.1%}")
    assert RewardCard.model_validate_json(card.model_dump_json()) == card


def test_weights_of_low_rewards_are_negative_where_they_speak_against_an_answer() -> None:
    """Wrong samples that agree have low rewards; without rewards they win."""
    pools = [[VoteSample((0.9,), True, "right"), *[VoteSample((0.05,), False, "wrong")] * 7]] * 30
    weights = fit_weights(pools, Aggregation.LAST)
    assert weights.weight(0.05) < 0 < weights.weight(0.9)
    assert voted(pools[0], SelectionRule.WEIGHTED, Aggregation.LAST, weights)
    assert not voted(pools[0], SelectionRule.MAJORITY, Aggregation.LAST)


def test_no_other_weights_are_more_likely() -> None:
    """Beside the likelihood written out, along both parameters."""
    pools = pools_of(60, knows=0.1)
    fitted = fit_weights(pools, Aggregation.LAST)

    def loss(offset: float, scale: float) -> float:
        found = 0.0
        for pool in pools:
            weights: dict[object, float] = {}
            for each in pool:
                log_odds = math.log(each.rewards[-1] / (1 - each.rewards[-1]))
                weights[each.answer] = weights.get(each.answer, 0.0) + offset + scale * log_odds
            if "right" in weights and len(weights) > 1:
                found += math.log(sum(map(math.exp, weights.values()))) - weights["right"]
        return found

    sizes = [number / 20 for number in range(1, 200)]  # only the ratio of the two is kept
    best, size = min((loss(size * fitted.offset, size * fitted.scale), size) for size in sizes)
    for offset, scale in ((0.2, 0.0), (-0.2, 0.0), (0.0, 0.3), (0.0, -0.3), (0.2, -0.3), (-0.2, 0.3)):
        assert loss(size * fitted.offset + offset, size * fitted.scale + scale) > best


def test_no_vote_is_judged_by_weights_that_were_fitted_on_its_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[list[Pool]] = []
    judged: list[Pool] = []

    def fit(pools: list[Pool], how: Aggregation) -> VoteWeights:
        fits.append(pools)
        return VoteWeights(offset=len(fits) - 1, scale=0)

    def vote(pool: Pool, rule: SelectionRule, how: Aggregation, weights: VoteWeights | None = None) -> bool:
        if weights is not None:
            judged.append(pool)
            assert not any(pool is other for other in fits[int(weights.offset)])
        return False

    monkeypatch.setattr(card_fit, "fit_weights", fit)
    monkeypatch.setattr(card_fit, "voted", vote)
    pools = pools_of(24, knows=0.0)
    fit_card(pools)
    assert [sum(pool is each for each in judged) for pool in pools] == [len(Aggregation)] * 24


@settings(deadline=None, max_examples=20)
@given(
    st.lists(
        st.lists(
            st.builds(
                VoteSample,
                st.tuples(st.floats(0, 1)),
                st.just(False),
                st.sampled_from([None, "a", "b", "c"]),
            ),
            min_size=2,
            max_size=6,
        ),
        min_size=1,
        max_size=6,
    )
)
def test_votes_are_those_of_the_other_tables(given_pools: list[list[VoteSample]]) -> None:
    """The card and `banyan check-prm`'s table count the same votes."""
    pools = [[each._replace(right=each.answer == "a") for each in pool] for pool in given_pools]
    table = best_of_n([[Solution(each.rewards[-1], each.right, each.answer) for each in pool] for pool in pools])
    assert table is not None
    for rule, share in ((SelectionRule.WEIGHTED, table.weighted), (SelectionRule.MAJORITY, table.majority)):
        right = [voted(pool, rule, Aggregation.LAST) for pool in pools]
        assert math.isclose(sum(right) / len(right), share or 0.0)


def test_rewards_that_are_all_the_same_have_weights_too() -> None:
    pools = [[each._replace(rewards=(0.3 + 0.1 * 2,)) for each in pool] for pool in pools_of(24, knows=0.0)]
    assert not fit_card(pools).helps
    weights = fit_weights(pools, Aggregation.LAST)
    assert (weights.scale, weights.offset) == (0, 1)


def test_too_few_problems_make_no_card() -> None:
    with pytest.raises(TooFewProblems, match="problems with several solutions: 19, of which"):
        fit_card(pools_of(19, knows=0.4))
    certain = [[VoteSample((0.5,), True, "right")] * 4] * 40
    with pytest.raises(TooFewProblems, match="of which 0 have a right answer and another one"):
        fit_card(certain)


def test_check_prm_writes_the_card(endpoint: Endpoint, tmp_path: Path) -> None:
    """The stand-in knows which steps are wrong, and two of three solutions are."""
    lines = []
    for number in range(24):
        right = {"question": f"p{number}?", "steps": ["one", r"\boxed{1}"], "correct": True}
        wrong = {"question": f"p{number}?", "steps": ["one", r"wrong \boxed{2}"], "correct": False}
        lines += [json.dumps(each) for each in (right, wrong, wrong)]
    solutions = tmp_path / "in.jsonl"
    solutions.write_text("\n".join(lines))
    card = tmp_path / "card.json"
    options = ("--url", endpoint.url, "--card", str(card))
    done = CliRunner().invoke(app, ["check-prm", str(solutions), *options])
    assert done.exit_code == 0, done.output
    found = RewardCard.model_validate_json(card.read_text())
    assert (found.generator, found.source, found.problems, found.samples) == ("stand-in", "in.jsonl", 24, 3)
    assert (found.majority, found.best.gain.accuracy, found.helps) == (0.0, 1.0, True)
    assert "The reward model helps a vote" in done.output
    few = CliRunner().invoke(app, ["check-prm", str(solutions), "--limit", "6", *options])
    assert few.exit_code == 2
    assert "no card: problems with several solutions: 2" in few.output
