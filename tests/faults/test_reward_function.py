"""A reward model that returns nonsense, is slow, or is gone: searches end in time and are marked, without internal
details."""

from typing import Any

import pytest

from tests.faults.misbehaviour import Misbehaviour
from tests.faults.variants import Variant
from tests.serve.application import BEAM, problems, request, until

SECRET = "10.9.8.7"
"""Message of the function's error when it is gone."""


@pytest.fixture
def searches(with_reward_function: Variant) -> Any:
    until(with_reward_function.is_idle, "nothing runs", 60.0)
    yield with_reward_function
    until(with_reward_function.is_idle, "nothing runs", 60.0)


def search(variant: Variant, **fields: Any) -> Any:
    reply = variant.post("/v1/search", request(problems(1, seed=81, level=2)[0], 1, **fields))
    assert SECRET not in reply.text
    return reply


@pytest.mark.parametrize("behaviour", ["nan", "negative", "gone"])
def test_a_search_without_usable_rewards_is_answered_and_degraded(
    searches: Variant, misbehaviour: Misbehaviour, behaviour: str
) -> None:
    well = search(searches).json()
    assert not well["search"]["degraded"]
    with misbehaviour(behaviour):
        reply = search(searches)
    assert reply.status_code == 200, reply.text
    assert reply.json()["search"]["degraded"]
    assert reply.json()["search"]["answer"] is not None
    assert all(node["reward"] in (None, 0.5) for node in reply.json()["tree"]["nodes"])
    assert search(searches).json()["tree"] == well["tree"], "and all is as before when the rewards are back"


@pytest.mark.parametrize("behaviour", ["nan", "gone"])
def test_a_failed_score_request_does_not_quote_the_internal_error(
    searches: Variant, misbehaviour: Misbehaviour, behaviour: str
) -> None:
    with misbehaviour(behaviour):
        scored = {"model": "banyan-arithmetic", "question": "1 + 1?", "steps": ["1 + 1 = 2"]}
        reply = searches.post("/v1/score", scored)
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "scorer_unavailable"
    assert SECRET not in reply.text


def test_a_slow_reward_model_does_not_exceed_the_time_of_the_search(
    searches: Variant, misbehaviour: Misbehaviour
) -> None:
    with misbehaviour("slow"):
        reply = search(searches, search=BEAM | {"budget": {"seconds": 6}})
    assert reply.status_code == 200, reply.text
    assert reply.json()["search"]["stop_reason"] in ("seconds", "finished")
    assert reply.json()["search"]["seconds"] < 6 + 15
