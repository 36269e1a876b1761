"""Siblings of the same text are merged: counted as often as written, scored once, with one vote each."""

from fractions import Fraction
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import search

from search.snapshot import restore_tree, save_tree, tree_as_json
from search.tree import Node, NodeStatus, SearchTree, Step, StepEnd

VARIETY = st.sampled_from([1, 2, 3, 5])


def merging() -> SearchTree:
    tree = SearchTree()
    tree.merges_siblings = True
    return tree


def step(text: str, end: StepEnd = StepEnd.DELIMITER) -> Step:
    return Step((1, 2), text, end)


def write(tree: SearchTree, node: Node, text: str, reward: float = 0.5) -> None:
    tree.write(node, step(text))
    tree.complete(node, reward)


@pytest.mark.parametrize("order", [*permutations(range(4))])
@pytest.mark.parametrize("scored_at_once", [True, False])
def test_the_first_sibling_by_id_stands_for_all_in_any_order_of_arrival(
    order: tuple[int, ...], scored_at_once: bool
) -> None:
    tree = merging()
    nodes = tree.request(tree.root, 4)
    for index in order:
        tree.write(nodes[index], step("same" if index != 2 else "other"))
        if scored_at_once:
            tree.complete(nodes[index], 0.25)
    for node in nodes:
        tree.complete(node, 0.25)
    assert [node.status for node in nodes] == ["open", "repeated", "open", "repeated"]
    assert [node.count for node in nodes] == [3, 0, 1, 0]
    assert [node.first.id for node in nodes] == [(0,), (0,), (2,), (0,)]
    assert [node.reward for node in nodes] == [0.25] * 4
    assert [node.id for node in tree.root.distinct_children] == [(0,), (2,)]
    assert (tree.root.samples, tree.repeated, tree.in_flight) == (4, 2, 0)
    assert tree.check_integrity() == []


def test_a_sibling_that_has_children_stays_the_representative() -> None:
    tree = merging()
    late, early = tree.request(tree.root, 2)
    write(tree, early, "same")
    tree.request(early, 1)
    tree.write(late, step("same"))
    assert (late.status, early.count) == ("repeated", 2)
    assert late.first is early


def test_ended_and_open_siblings_are_not_merged() -> None:
    tree = merging()
    nodes = tree.request(tree.root, 3)
    tree.write(nodes[0], step("42"))
    tree.write(nodes[1], step("42", StepEnd.END_OF_SEQUENCE), ends=True)
    tree.write(nodes[2], step("42"), ends=True)
    assert [node.count for node in nodes] == [1, 1, 1]


def test_without_merge_siblings_nothing_is_merged() -> None:
    tree = SearchTree()
    nodes = tree.request(tree.root, 2)
    for node in nodes:
        write(tree, node, "same")
    assert [node.status for node in nodes] == ["open", "open"]
    assert tree.root.distinct_children == nodes
    assert tree.multiplicity(nodes[0]) == 1


def test_multiplicity_includes_pruned_siblings() -> None:
    tree = merging()
    nodes = tree.request(tree.root, 4)
    for node, text in zip(nodes, "aaab", strict=True):
        write(tree, node, text)
    tree.prune(nodes[3])
    below = tree.request(nodes[0], 5)
    for node, text in zip(below, "cdddd", strict=True):
        write(tree, node, text)
    assert tree.multiplicity(below[0]) == Fraction(3, 4) * Fraction(1, 5)
    assert tree.multiplicity(below[1]) == Fraction(3, 4) * Fraction(4, 5)


def test_whole_solutions_share_their_common_beginning() -> None:
    tree = merging()
    first, second = tree.request(tree.root, 2)
    for start, end in ((second, "y"), (first, "x")):
        tree.write(start, step("same"))
        tree.extend(start, step(end, StepEnd.END_OF_SEQUENCE), ends=True)
    assert [node.text for node in first.distinct_children] == ["samex", "samey"]
    assert first.distinct_children == second.distinct_children
    assert (first.samples, first.count, second.status) == (2, 2, "repeated")
    third = tree.request(tree.root, 1)[0]
    tree.write(third, step("same"))
    again = tree.extend(third, step("y", StepEnd.END_OF_SEQUENCE), ends=True)
    assert again.first.id == (1, 0)
    assert tree.multiplicity(again.first) == Fraction(2, 3)


@settings(max_examples=25, deadline=None)
@given(
    strategy=st.sampled_from(["beam_search", "dvts", "rebase", "ets", "particle_filter", "best_of_n", "ab_mcts"]),
    variety=VARIETY,
    seed=st.integers(0, 999),
)
def test_each_text_is_scored_once_and_every_step_has_an_event(strategy: str, variety: int, seed: int) -> None:
    bench, outcome = search({"strategy": strategy, "seed": seed}, variety=variety)
    tree = outcome.tree
    scored = [
        "|".join(item.steps[: end + 1])
        for request in bench.scorer.requests
        for item in request.items
        for end in range(len(item.steps) - item.unscored, len(item.steps))
    ]
    assert len(scored) == len(set(scored)) == outcome.cost.scored_steps
    standing = [node for node in tree.nodes if node.status is not NodeStatus.REPEATED]
    assert len({(node.text, node.ends) for node in standing}) == len(standing)
    assert outcome.cost.repeated_steps == len(tree) - len(standing)
    told = [event.node for event in bench.events if hasattr(event, "node")]
    assert sorted(told) == sorted(node.id for node in tree.nodes)


@settings(max_examples=25, deadline=None)
@given(
    wanted=st.sampled_from(
        [
            {"strategy": "best_of_n", "n": 9},
            {"strategy": "best_of_n", "n": 9, "selection": "majority"},
            {"strategy": "self_consistency", "n": 12},
            {"strategy": "best_of_n", "n": 9, "selection": "naive"},
        ]
    ),
    variety=VARIETY,
    seed=st.integers(0, 999),
)
def test_merged_whole_solutions_vote_like_unmerged_ones(wanted: dict[str, Any], variety: int, seed: int) -> None:
    outcomes = [search(wanted | {"seed": seed, "merge_siblings": merge}, variety=variety)[1] for merge in (True, False)]
    merged, single = outcomes
    assert merged.selection.answer == single.selection.answer
    assert merged.selection.agreement == pytest.approx(single.selection.agreement)
    assert merged.cost.generated_tokens == single.cost.generated_tokens
    ends = merged.tree.terminals
    assert sum(merged.tree.multiplicity(node) for node in ends) == 1
    assert sum(node.count for node in ends) == wanted["n"] == merged.tree.ended(merged.tree.deepest)


@settings(max_examples=25, deadline=None)
@given(
    strategy=st.sampled_from(["beam_search", "dvts", "rebase", "best_of_n", "ab_mcts", "mcts"]),
    variety=VARIETY,
    seed=st.integers(0, 999),
)
def test_a_saved_tree_keeps_its_merged_siblings(strategy: str, variety: int, seed: int) -> None:
    _, outcome = search({"strategy": strategy, "seed": seed}, variety=variety)
    tree, restored = outcome.tree, restore_tree(save_tree(outcome.tree))
    assert tree_as_json(restored) == tree_as_json(tree)
    for node in tree.nodes:
        twin = restored[node.id]
        assert (twin.first.id, twin.count, twin.samples) == (node.first.id, node.count, node.samples)
        assert [child.id for child in twin.distinct_children] == [child.id for child in node.distinct_children]
        assert restored.multiplicity(twin) == tree.multiplicity(node)
    assert restored.repeated == tree.repeated
    assert [node.id for node in restored.terminals] == [node.id for node in tree.terminals]
