"""The global frontier: choice of the next expansion, and backup of values."""

import math

import pytest
from search_fakes import search

from search.settings import parse_search
from search.strategies.mcts.frontier import Frontier, Promises, promise_of
from search.tree import Node, NodeId, NodeStatus, SearchTree, Step, StepEnd


def grown(parts: dict[NodeId, tuple[float, bool]], logprob: float = -1.0) -> SearchTree:
    """A tree of these nodes, each with its reward and whether its path ends there. Parents come first."""
    tree = SearchTree()
    for name, (reward, terminal) in parts.items():
        [node] = tree.request(tree[name[:-1]], 1)
        assert node.id == name
        tree.write(node, Step((1,), f"{name}\n\n", StepEnd.DELIMITER, logprob), terminal)
        tree.complete(node, reward)
    return tree


def frontier(**settings: float) -> Frontier:
    strategy = parse_search({"strategy": "frontier", **settings}).strategy
    assert isinstance(strategy, Frontier)
    return strategy


def values(tree: SearchTree) -> dict[NodeId, float]:
    tree.fold(Promises, frontier())
    return {node.id: promise_of(node).quality for node in tree.nodes}


def test_a_solution_is_backed_up_in_proportion_to_depth() -> None:
    tree = grown({(0,): (0.5, False), (0, 0): (0.5, False), (0, 0, 0): (1.0, True), (1,): (0.25, False)})
    found = values(tree)
    assert found[(0,)] == pytest.approx(1 / 3)
    assert found[(0, 0)] == pytest.approx(2 / 3)
    assert found[(0, 0, 0)] == pytest.approx(1.0)
    assert found[(1,)] == pytest.approx(-0.5), "nothing below it has ended: what the reward model says"


def test_the_backup_of_a_step_is_at_least_a_tenth() -> None:
    parts: dict[NodeId, tuple[float, bool]] = {(0,) * depth: (0.5, depth == 20) for depth in range(1, 21)}
    parts[(0,) * 20] = (1.0, True)
    assert values(grown(parts))[(0,)] == pytest.approx(0.1)


def test_the_backup_of_a_right_solution_overrides_wrong_ones() -> None:
    wrong, right = (0.0, True), (1.0, True)
    below = {(0,): (0.5, False)}
    assert values(grown({**below, (0, 0): wrong}))[(0,)] == pytest.approx(-0.5)
    assert values(grown({**below, (0, 0): wrong, (0, 1): wrong}))[(0,)] == pytest.approx(-1.0)
    assert values(grown({**below, (0, 0): wrong, (0, 1): wrong, (0, 2): right}))[(0,)] == pytest.approx(0.5)
    assert values(grown({**below, (0, 0): right, (0, 1): wrong}))[(0,)] == pytest.approx(0.5)
    assert values(grown({**below, (0, 0): right, (0, 1): right}))[(0,)] == pytest.approx(1.0)


def test_selection_descends_by_uct_until_a_solution_and_is_then_global() -> None:
    strategy = frontier(width=2, entropy_weight=0.0)
    down = grown({(0,): (0.9, False), (1,): (0.2, False)})
    assert [expansion.node.id for expansion in strategy.select(down)] == [(0,)]
    # Of the newest children the better one has ended, so the next is the best open node of the whole tree.
    ended = grown({(0,): (0.6, False), (1,): (0.5, False), (0, 0): (0.9, True), (0, 1): (0.1, False)})
    [expansion] = strategy.select(ended)
    found = {(): 0.0, **values(ended)}
    promise = {
        node.id: 0.4 * math.tanh(found[node.id[:-1]]) + 0.01 * math.sqrt(node.depth / 40)
        for node in ended.with_status(NodeStatus.OPEN)
        if len(node.children) < 2
    }
    assert expansion.node.id == max(promise, key=lambda name: promise[name])
    assert expansion.count == 2


def test_the_least_certain_step_is_expanded_first() -> None:
    tree = SearchTree()
    nodes: list[Node] = tree.request(tree.root, 3)
    for node, logprob in zip(nodes, (-0.1, -3.0, 0.0), strict=True):
        tree.write(node, Step((1, 2), "x\n\n", StepEnd.DELIMITER, logprob), ends=node is nodes[2])
        tree.complete(node, 0.5)
    assert tree.fold(Promises, frontier()).globally_best() is nodes[1]


def test_iterations_bound_the_number_of_expansions() -> None:
    for iterations in (1, 4, 9):
        _, outcome = search({"strategy": "frontier", "iterations": iterations, "width": 3})
        expanded = [node for node in (outcome.tree.root, *outcome.tree.nodes) if node.children]
        assert len(expanded) <= iterations
        assert all(len(node.children) == 3 for node in expanded)


@pytest.mark.parametrize("quality_weight", [0.0, 0.5])
def test_a_solution_reranks_at_most_one_candidate_per_step_of_its_path(
    quality_weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    depth, width = 30, 8
    path: list[NodeId] = [(0,) * length for length in range(depth)]
    tree = grown({(*parent, index): (0.5, False) for parent in path for index in range(width)})
    strategy = frontier(width=width, quality_weight=quality_weight)
    tree.fold(Promises, strategy)
    ranked: list[Node] = []
    rank = Promises._rank
    monkeypatch.setattr(Promises, "_rank", lambda self, node: ranked.append(node) or rank(self, node))
    [end] = tree.request(tree[(0,) * depth], 1)
    tree.write(end, Step((1,), "end", StepEnd.DELIMITER, -1.0), ends=True)
    tree.complete(end, 1.0)
    known = tree.fold(Promises, strategy)
    assert depth - 1 <= len(ranked) <= depth + 1
    candidates = [node for node in tree.nodes if known._is_candidate(node)]
    assert known.globally_best() is min(candidates, key=lambda node: rank(known, node))
