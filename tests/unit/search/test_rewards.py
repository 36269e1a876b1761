"""Validation of rewards."""

import asyncio
import math
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from search.errors import ScorerError
from search.ports import ScoreItem, ScoreRequest
from search.rewards import RewardRows, ScoringCost, check_rewards, is_reward
from search.run.environment import Fallback
from search.run.report import SearchCost
from search.run.scorer import SearchScorer


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, 0.5, True, np.float32(0.25), np.float64(0.25)])
def test_every_real_number_in_0_1_is_accepted_and_becomes_a_float(value: Any) -> None:
    assert is_reward(value)
    assert check_rewards([[value]], [1], "a model") == [[float(value)]]
    assert type(check_rewards([[value]], [1], "a model")[0][0]) is float


ODD = [math.nan, math.inf, -0.1, 1.1, None, "0.5", 10**400, 0.5j, [0.5], np.float32("nan"), Decimal("0.5")]


@pytest.mark.parametrize("value", ODD, ids=lambda value: str(value)[:8])
def test_anything_else_is_refused(value: Any) -> None:
    assert not is_reward(value)
    with pytest.raises(ScorerError, match=r"a model returned the reward .*, which is not a number in") as refused:
        check_rewards([[0.5], [value]], [1, 1], "a model")
    assert len(str(refused.value)) < 150


@pytest.mark.parametrize(
    ("rewards", "complaint"),
    [
        (None, "returned None instead of rewards"),
        ([0.5, 0.5], "instead of rewards"),
        ([[0.5]], "returned rewards for 1 of 2 paths"),
        ([[0.5], []], "returned 0 rewards for 2 steps"),
        ([[0.5], [0.5, 0.5, 0.5]], "returned 3 rewards for 2 steps"),
    ],
)
def test_the_number_of_rewards_must_match_the_request(rewards: Any, complaint: str) -> None:
    with pytest.raises(ScorerError, match=complaint):
        check_rewards(rewards, [1, 2], "a model")


def test_what_rewards_cost_the_reward_model_reaches_the_cost_of_the_search() -> None:
    """Through two processes: the replica's rows are checked where they were made and where they arrive."""

    class Scorer:
        async def score(self, request: ScoreRequest) -> RewardRows:
            rows = RewardRows([[0.5]])
            rows.cost = ScoringCost(900, 700, 64, 150, 4, 1)
            arrived: RewardRows = pickle.loads(pickle.dumps(rows))
            return check_rewards(arrived, [1], "a replica")

    cost = SearchCost()
    scorer = SearchScorer(Scorer(), Fallback.FAIL, cost)
    request = ScoreRequest("search", "2 + 2?", (ScoreItem(("It is 4.",)),), 1.0)
    for _ in range(2):
        assert asyncio.run(scorer.rewards(request)).rows == [[0.5]]
    assert (cost.prm_prompt_tokens, cost.prm_cached_tokens, cost.prm_recomputed_tokens) == (1800, 1400, 128)
    assert (cost.prm_generated_tokens, cost.prm_critiques, cost.prm_cut_critiques) == (300, 8, 2)
