"""Searches that return to earlier nodes, with a generator that writes the same steps again and again."""

from collections.abc import Sequence
from typing import Any

import pytest
import search_fakes
from search_fakes import search

from search.ports import StopCondition
from search.settings import parse_search
from search.snapshot import restore_tree, save_tree
from search.strategies.base import Expansion, Strategy
from search.strategies.mcts.ab_mcts import ABMCTS, Arms, rewards_of
from search.strategies.mcts.frontier import Frontier
from search.strategies.mcts.mcts import MCTS
from search.tree import ExpansionRequest, Node, NodeStatus, SearchTree, Step, StepEnd

KINDS: dict[str, type[Strategy]] = {"mcts": MCTS, "frontier": Frontier, "ab_mcts": ABMCTS}
SEARCHES: list[dict[str, Any]] = [
    {"strategy": "mcts", "iterations": 40, "width": 3, "max_depth": 3},
    {"strategy": "mcts", "iterations": 40, "width": 3, "max_depth": 3, "paths": 3, "prior": "reward"},
    {"strategy": "mcts", "iterations": 20, "width": 2, "max_depth": 3, "value": "both"},
    {"strategy": "frontier", "iterations": 40, "width": 3, "max_depth": 3},
    {"strategy": "ab_mcts", "iterations": 40, "paths": 3, "max_depth": 4},
    {"strategy": "ab_mcts", "iterations": 40, "generation": "step", "max_depth": 4},
]


@pytest.fixture(autouse=True)
def three_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator that writes one of three steps, whatever the prefix."""
    write = search_fakes.write_step
    monkeypatch.setattr(search_fakes, "write_step", lambda seed, prefix, most: write(seed % 3, prefix, most))


def as_tuples(expansions: Sequence[Expansion]) -> list[tuple[Any, ...]]:
    return [(expansion.node.id, *expansion[1:]) for expansion in expansions]


@pytest.mark.parametrize("settings", SEARCHES)
def test_incremental_statistics_equal_those_recomputed_from_the_tree(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = KINDS[settings["strategy"]]
    select, compared = kind.select, 0

    def checked(self: Strategy, tree: SearchTree) -> Sequence[Expansion]:
        nonlocal compared
        chosen = select(self, tree)
        if not tree.in_flight:
            compared += 1
            assert as_tuples(select(self, tree)) == as_tuples(chosen), "asked again"
            assert as_tuples(select(self, restore_tree(save_tree(tree)))) == as_tuples(chosen), "from the tree alone"
        return chosen

    monkeypatch.setattr(kind, "select", checked)
    trees = []
    for order in range(3):
        _, outcome = search({**settings, "budget": {"tokens": 250}}, order)
        trees.append(sorted((node.id, node.step, node.status, node.reward) for node in outcome.tree.nodes))
    assert compared > 15
    assert trees[0] == trees[1] == trees[2]
    assert any(status is NodeStatus.REPEATED for _, _, status, _ in trees[0])


@pytest.mark.parametrize("strategy", ["mcts", "frontier"])
def test_merging_does_not_exhaust_the_tree(strategy: str) -> None:
    settings = {"strategy": strategy, "iterations": 60, "width": 3, "max_depth": 2}
    _, outcome = search(settings)
    assert len(outcome.tree) == 60 * 3
    _, outcome = search({**settings, "merge_siblings": False})
    assert len(outcome.tree) <= (1 + 3) * 3, "the textbook's tree has an end"
    _, outcome = search({**settings, "iterations": 2000, "budget": {"tokens": 500}})
    assert outcome.stop_reason.value == "tokens"


def test_mcts_expands_every_open_node_equally_often() -> None:
    _, outcome = search({"strategy": "mcts", "iterations": 60, "width": 3, "max_depth": 3})
    expanded = [outcome.tree.root, *outcome.tree.with_status(NodeStatus.OPEN)]
    passes = outcome.tree.root.samples // 3
    assert passes > 1
    for node in expanded:
        assert node.samples % 3 == 0
        assert node.samples <= 3 * passes
        assert node.parent is None or node.samples <= node.parent.samples


@pytest.mark.parametrize(
    "settings", [{"strategy": "mcts"}, {"strategy": "mcts", "prior": "reward"}, {"strategy": "frontier"}]
)
def test_a_high_count_does_not_lower_the_priority_of_a_step(settings: dict[str, Any]) -> None:
    tree = siblings("rare", "sure", "sure", "sure", rewards={"rare": 0.5, "sure": 0.6})
    chosen = parse_search({"width": 4, **settings}).strategy.select(tree)
    assert [expansion.node.id for expansion in chosen] == [(1,)]


def test_the_frontier_prefers_unexpanded_nodes_then_those_with_few_distinct_children() -> None:
    strategy = parse_search({"strategy": "frontier", "width": 2}).strategy
    tree = siblings("a", "b", rewards={"a": 0.9, "b": 0.1})
    grow(tree, tree[(0,)], "x", "x", ends=True)
    assert [expansion.node.id for expansion in strategy.select(tree)] == [(1,)], "never expanded"
    grow(tree, tree[(1,)], "x", "y", ends=True)
    assert [expansion.node.id for expansion in strategy.select(tree)] == [(0,)], "one distinct child"
    grow(tree, tree[(0,)], "x", "y", ends=True)
    assert [expansion.node.id for expansion in strategy.select(tree)] == [()], "there is no other"


def test_each_generation_adds_one_reward_and_a_repeated_solution_adds_to_the_same_arms() -> None:
    strategy = parse_search({"strategy": "ab_mcts"}).strategy
    tree = merging()
    for texts in (["a", "b", "end"], ["a", "b", "other"], ["c", "end"]):
        [node] = tree.request(tree.root, 1)
        node.request = ExpansionRequest(whole=True, tokens=9, nodes=9)
        tree.write(node, step(texts[0]))
        steps = [node]
        for text in texts[1:]:
            steps.append(tree.extend(steps[-1], step(text), ends=text is texts[-1]))
        for written in steps:
            tree.complete(written, 0.9 if written.step and written.step.text == "end" else 0.2)
    assert tree.fold(Arms, strategy).generations == 3
    root, first = rewards_of(tree.root), rewards_of(tree[(0,)])
    assert (root.generated.number, root.generated.total) == (3, pytest.approx(2.0))
    assert root.continued.number == 0
    assert (first.own.number, first.own.total) == (2, pytest.approx(1.1)), "the second wrote it again"
    assert first.continued == first.own
    assert first.generated.number == 0
    assert rewards_of(tree[(0, 0)]).own == first.own
    assert [node.id for node in tree[(0, 0)].distinct_children] == [(0, 0, 0), (1, 0, 0)]
    assert strategy.select(tree)[0].stop_condition is StopCondition.SOLUTION


def merging() -> SearchTree:
    tree = SearchTree(7)
    tree.merges_siblings = True
    return tree


def step(text: str) -> Step:
    return Step((1, 2), text, StepEnd.DELIMITER, -1.0)


def siblings(*texts: str, rewards: dict[str, float]) -> SearchTree:
    tree = merging()
    grow(tree, tree.root, *texts, rewards=rewards)
    return tree


def grow(
    tree: SearchTree, parent: Node, *texts: str, ends: bool = False, rewards: dict[str, float] | None = None
) -> None:
    for node, text in zip(tree.request(parent, len(texts)), texts, strict=True):
        tree.write(node, step(text), ends)
        tree.complete(node, (rewards or {}).get(text, 0.5))
