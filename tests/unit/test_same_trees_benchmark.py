"""Equality of trees in the benchmark `same_trees`."""

from typing import Any

import pytest

from benchmarks import same_trees
from benchmarks.same_trees import differing, largest_difference, promised, same


def tree(*texts: str, reward: float | None = 0.5, **changed: Any) -> list[dict[str, Any]]:
    return [
        {"id": [index], "text": text, "reward": reward, "status": "open", "tokens": 3, "count": 1, **changed}
        for index, text in enumerate(texts)
    ]


@pytest.mark.parametrize(
    "other", [tree("a"), tree("b", "a"), tree("a", "b", status="pruned"), tree("a", "b", count=2), []]
)
def test_trees_differ_by_their_nodes(other: list[dict[str, Any]]) -> None:
    assert not same(tree("a", "b"), other)


def test_rewards_may_differ_in_their_last_digits() -> None:
    trees, others = [tree("a"), tree("b")], [tree("a", reward=0.5 + 1e-6), tree("c", reward=0.9)]
    assert same(trees[0], others[0])
    assert largest_difference(trees, others) == pytest.approx(1e-6)


def test_steps_without_a_reward_have_no_difference() -> None:
    assert largest_difference([tree("a", reward=None)], [tree("a", reward=None)]) == 0.0


def test_trees_are_counted_that_differ_from_the_first_runs() -> None:
    runs = {
        "alone": {"dvts": [tree("a"), tree("b")], "ets": [tree("c")]},
        "again": {"dvts": [tree("a"), tree("b")], "ets": [tree("c")]},
        "beside others": {"dvts": [tree("a"), tree("d")], "ets": [tree("c", reward=0.6)]},
    }
    assert differing(runs) == {
        "dvts: trees of 2 that differ, alone and again": 0,
        "ets: trees of 1 that differ, alone and again": 0,
        "dvts: trees of 2 that differ, alone and beside others": 1,
        "ets: trees of 1 that differ, alone and beside others": 0,
    }


@pytest.mark.parametrize("on_cpu", [False, True])
def test_equal_trees_are_promised_in_float32_on_a_cpu_and_by_exact_engines(
    monkeypatch: pytest.MonkeyPatch, on_cpu: bool
) -> None:
    monkeypatch.setattr(same_trees, "runs_on_cpu", lambda: on_cpu)
    assert promised("auto", exact=False) is promised("float32", exact=False) is on_cpu
    assert not promised("bfloat16", exact=False)
    assert promised("bfloat16", exact=True)
