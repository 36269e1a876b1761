"""Equality of trees in the benchmark `same_trees`."""

from typing import Any

import pytest

from benchmarks.same_trees import largest_difference, same


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
