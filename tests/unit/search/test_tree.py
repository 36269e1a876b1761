"""The tree records every result once and refuses invalid changes."""

import math

import pytest

from search.snapshot import tree_as_json
from search.tree import Node, NodeStatus, SearchTree, Step, StepEnd, TreeError

STEP = Step((7, 8), "so\n\n", StepEnd.DELIMITER)


@pytest.fixture
def tree() -> SearchTree:
    return SearchTree()


def complete(tree: SearchTree, node: Node, terminal: bool = False) -> None:
    assert tree.write(node, STEP, terminal)
    assert tree.complete(node, 0.5) == (node,)


def test_a_late_or_repeated_result_changes_nothing(tree: SearchTree) -> None:
    (node,) = tree.request(tree.root, 1)
    complete(tree, node)
    assert not tree.write(node, STEP._replace(text="another"))
    assert not tree.complete(node, 0.9)
    assert (node.text, node.reward, node.status) == ("so\n\n", 0.5, NodeStatus.OPEN)


@pytest.mark.parametrize("reward", [math.nan, -0.1, 1.1, math.inf])
def test_refuses_rewards_outside_0_and_1(tree: SearchTree, reward: float) -> None:
    (node,) = tree.request(tree.root, 1)
    tree.write(node, STEP)
    with pytest.raises(ValueError, match="must be in"):
        tree.complete(node, reward)


def test_pruning_removes_the_subtree_except_ended_paths(tree: SearchTree) -> None:
    (top,) = tree.request(tree.root, 1)
    complete(tree, top)
    ended, pending = tree.request(top, 2)
    complete(tree, ended, terminal=True)
    tree.prune(top)
    assert [top.status, ended.status, pending.status] == ["pruned", "terminal", "pruned"]
    assert tree.in_flight == 0
    assert not tree.write(pending, STEP)
    assert tree.check_integrity() == []


def test_only_open_nodes_get_children(tree: SearchTree) -> None:
    (node,) = tree.request(tree.root, 1)
    with pytest.raises(TreeError, match="pending"):
        tree.request(node, 1)
    complete(tree, node, terminal=True)
    with pytest.raises(TreeError, match="terminal"):
        tree.request(node, 1)
    with pytest.raises(TreeError, match="terminal"):
        tree.extend(node, STEP)


def test_a_snapshot_lists_nodes_by_id_in_any_order_of_arrival(tree: SearchTree) -> None:
    first, second = tree.request(tree.root, 2)
    complete(tree, second)
    tree.request(second, 1)
    complete(tree, first, terminal=True)
    snapshot = tree_as_json(tree)
    assert snapshot["version"] == 2
    assert [node["id"] for node in snapshot["nodes"]] == [[0], [1], [1, 0]]
    assert snapshot["nodes"][0] == {
        "id": [0],
        "text": "so\n\n",
        "reward": 0.5,
        "status": "terminal",
        "tokens": 2,
        "end": "delimiter",
        "ends": True,
        "logprob": None,
        "count": 1,
    }
    assert snapshot["nodes"][2] == {
        "id": [1, 0],
        "text": None,
        "reward": None,
        "status": "pending",
        "tokens": 0,
        "end": None,
        "ends": False,
        "logprob": None,
        "count": 1,
    }


def test_only_failed_nodes_are_taken_up_and_only_neutral_rewards_are_scored_again(tree: SearchTree) -> None:
    unwritten, unscored, scored, neutral = tree.request(tree.root, 4)
    assert tree.write(unscored, STEP)
    complete(tree, scored)
    assert tree.write(neutral, STEP, ends=True)
    assert tree.complete(neutral, 0.5, neutral=True)
    for node in (unwritten, unscored):
        tree.fail(node)
        tree.take_up(node)
    tree.score_again(neutral)
    assert [node.status for node in tree.nodes] == ["pending", "written", "open", "written"]
    assert (neutral.reward, neutral.neutral, tree.in_flight) == (None, False, 3)
    assert tree.check_integrity() == []
    for take in (tree.take_up, tree.score_again, tree.reopen):
        with pytest.raises(TreeError, match=r"node \(2,\) is open"):
            take(scored)
