"""Training data from a tree: exact values of its steps, and the paths that are examples."""

import json
import math
from collections.abc import Collection
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from search_fakes import search

from search.snapshot import TreeView, tree_as_json
from search.strategies.mcts.backup import backed_up
from search.training_data import Kind, TrainingNode, answers_of, mean_entropy, training_data
from search.tree import NodeId

DEEP = tuple([0] * 20)


def view(ends: dict[NodeId, str], **fields: dict[NodeId, Any]) -> TreeView:
    """A tree with these ends and their texts, and all nodes above them. ``fields`` set values other than the
    defaults."""
    places = sorted({end[:depth] for end in ends for depth in range(1, len(end) + 1)})
    nodes: list[dict[str, Any]] = []
    for index in places:
        text, status = (ends[index], "terminal") if index in ends else (f"{index}\n\n", "open")
        usual = {"text": text, "reward": 0.5, "status": status, "tokens": 2, "end": "delimiter", "logprob": -1.0}
        own = {name: values[index] for name, values in fields.items() if index in values}
        nodes.append({"id": index} | usual | own)
    return TreeView.model_validate({"version": 2, "nodes": nodes})


def values(ends: dict[NodeId, bool]) -> dict[NodeId, float | None]:
    """Value of every node if these ends are right or wrong."""
    data = training_data(view(dict.fromkeys(ends, "x")), {end for end, right in ends.items() if right})
    return {node.id: node.value for node in data.nodes}


def examples(tree: TreeView, right: Collection[NodeId] = ()) -> list[tuple[str, NodeId]]:
    return [(example.kind.value, example.path[-1]) for example in training_data(tree, set(right)).examples]


class TestValues:
    def test_the_value_of_a_right_path_is_backed_up_in_proportion_to_depth(self) -> None:
        assert values({(0, 0, 0, 0): True}) == {(0,): 0.25, (0, 0): 0.5, (0, 0, 0): 0.75, (0, 0, 0, 0): 1.0}

    def test_a_wrong_path_is_backed_up_negatively(self) -> None:
        assert values({(0, 0): False}) == {(0,): -0.5, (0, 0): -1.0}

    def test_the_backup_of_a_step_is_at_least_a_tenth(self) -> None:
        found = values({DEEP: False})
        assert found[DEEP[:1]] == -0.1, "1/20 otherwise"
        assert found[DEEP[:2]] == -0.1
        assert found[DEEP[:3]] == -0.15

    def test_backups_of_the_same_sign_add_up(self) -> None:
        assert values({(0, 0): True, (0, 1): True, (0, 2, 0, 0): True})[(0,)] == 0.5 + 0.5 + 0.25
        assert values({(0, 0): False, (0, 1): False})[(0,)] == -1.0

    def test_a_right_path_overrides_wrong_ones_in_any_order(self) -> None:
        solutions = [(("a", "b"), 1.0), (("a", "c"), -1.0), (("a", "d"), -1.0)]
        for order in permutations(solutions):
            assert backed_up(order) == {"a": 0.5, "b": 1.0, "c": -1.0, "d": -1.0}
        assert values({(0, 0): True, (0, 1): False})[(0,)] == 0.5
        assert values({(0, 0): False, (0, 1): True})[(0,)] == 0.5

    def test_a_node_without_an_ended_path_has_no_value(self) -> None:
        tree = view({(0, 0): "x", (1, 0): "x"}, status={(1, 0): "pruned"})
        data = training_data(tree, set())
        assert {node.id: node.value for node in data.nodes} == {(0,): -0.5, (0, 0): -1.0, (1,): None, (1, 0): None}
        assert data.accuracy == 0.0

    def test_a_tree_without_ended_paths_has_no_examples(self) -> None:
        data = training_data(view({(0,): "x"}, status={(0,): "open"}), set())
        assert (data.accuracy, data.examples, [node.value for node in data.nodes]) == (None, [], [None])

    def test_lookaheads_are_left_out(self) -> None:
        data = training_data(view({(0, 0): "x", (0, -1, 0): "x", (-1,): "x"}), {(0, -1, 0), (-1,)})
        assert [(node.id, node.value) for node in data.nodes] == [((0,), -0.5), ((0, 0), -1.0)]
        assert data.accuracy == 0.0

    def test_a_training_node_keeps_the_fields_of_its_node(self) -> None:
        [node] = training_data(view({(0,): "x"}), {(0,)}).nodes
        assert json.loads(node.model_dump_json()) == {
            "id": [0],
            "text": "x",
            "reward": 0.5,
            "status": "terminal",
            "tokens": 2,
            "logprob": -1.0,
            "count": 1,
            "value": 1.0,
        }
        assert TrainingNode.model_validate_json(node.model_dump_json()) == node


class TestExamples:
    @pytest.mark.parametrize(
        ("right", "ended", "exported"),
        [(1, 4, 1), (2, 8, 2), (26, 100, 0), (25, 100, 25), (2, 7, 0), (1, 100, 1), (1, 1, 0), (4, 4, 0)],
    )
    def test_right_paths_are_examples_if_at_most_a_quarter_is_right(
        self, right: int, ended: int, exported: int
    ) -> None:
        tree = view({(index,): "x" for index in range(ended)})
        chosen = {(index,) for index in range(ended - right, ended)}
        assert examples(tree, chosen) == ([("correct", end) for end in sorted(chosen)] if exported else [])
        assert training_data(tree, chosen).accuracy == right / ended

    def test_without_a_right_path_the_example_is_the_wrong_path_of_lowest_entropy(self) -> None:
        tree = view({(0,): "a", (1,): "b", (2,): "c"}, logprob={(0,): -2.0, (1,): -0.5, (2,): -0.75})
        assert examples(tree) == [("incorrect", (1,))]

    def test_entropy_is_the_mean_over_all_tokens_of_the_path(self) -> None:
        tree = view(
            {(0, 0): "a", (1,): "b"}, logprob={(0,): -3.0, (0, 0): -0.5, (1,): -1.0}, tokens={(0,): 2, (0, 0): 8}
        )
        nodes = {node.id: node for node in tree.nodes}
        assert mean_entropy([nodes[(0,)], nodes[(0, 0)]]) == 3.5 / 10
        assert mean_entropy([nodes[(1,)]]) == 0.5
        assert examples(tree) == [("incorrect", (0, 0))]

    def test_a_tie_goes_to_the_first_by_id(self) -> None:
        ends = {(2,): "a", (0, 1): "b", (0, 0): "c"}
        assert examples(view(ends)) == [("incorrect", (0, 0))]

    def test_a_path_of_unknown_entropy_is_not_chosen(self) -> None:
        tree = view({(0,): "a", (1,): "b", (2,): "c"}, logprob={(0,): None}, tokens={(2,): 0})
        assert examples(tree) == [("incorrect", (1,))]
        assert examples(view({(0,): "a"}, logprob={(0,): None})) == []
        assert examples(view({(0,): "a", (1,): "b"}, logprob={(0,): -math.inf, (1,): -9.0})) == [("incorrect", (1,))]
        assert examples(view({(0,): "a"}, logprob={(0,): -math.inf})) == []
        assert examples(view({(0,): ""}, tokens={(0,): 0}, logprob={(0,): 0.0})) == []

    def test_a_step_without_tokens_does_not_change_the_entropy(self) -> None:
        tree = view({(0, 0): "a"}, tokens={(0, 0): 0}, logprob={(0, 0): None})
        [example] = training_data(tree, set()).examples
        assert example.mean_entropy == 0.5

    def test_a_right_path_with_an_infinite_log_probability_is_an_example_without_entropy(self) -> None:
        ends = dict.fromkeys([(0,), (1,), (2,), (3,)], "x")
        data = training_data(view(ends, logprob={(0,): "-Infinity"}), {(0,)})
        [example] = data.examples
        assert (example.path, example.mean_entropy) == ([(0,)], None)
        written = json.dumps([node.model_dump(mode="json") for node in data.nodes], allow_nan=False)
        assert [node["logprob"] for node in json.loads(written)] == ["-Infinity", -1.0, -1.0, -1.0]
        assert [TrainingNode.model_validate(node) for node in json.loads(written)] == data.nodes

    def test_an_example_is_the_path_from_the_first_step(self) -> None:
        tree = view({(0, 0): "so \\boxed{7}", (0, 1): "no", (0, 2): "no", (0, 3): "no"})
        [example] = training_data(tree, {(0, 0)}).examples
        assert example.kind is Kind.CORRECT
        assert example.path == [(0,), (0, 0)]
        assert example.text == "(0,)\n\nso \\boxed{7}"
        assert example.answer == "7"
        assert example.mean_entropy == 0.5
        assert example.values == [0.5, 1.0]

    def test_answers_are_read_from_whole_paths(self) -> None:
        tree = view({(0, 0): "\\boxed{7}", (0, 1): "no", (1, -1): "\\boxed{8}"})
        assert answers_of(tree) == {(0, 0): "7", (0, 1): None}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda nodes: nodes.append(nodes[0]),
        lambda nodes: nodes.pop(0),
        lambda nodes: nodes[0].update(text=None),
        lambda nodes: nodes[0].update(status="terminal"),
        lambda nodes: nodes[1].update(text=None),
        lambda nodes: nodes[1].update(id=[]),
        lambda nodes: nodes[1].update(reward=1.5),
        lambda nodes: nodes[1].update(logprob=math.nan),
        lambda nodes: nodes[1].update(logprob="NaN"),
        lambda nodes: nodes[1].update(logprob=math.inf),
        lambda nodes: nodes[1].update(logprob=-1e300),
        lambda nodes: nodes[1].update(tokens=-1),
        lambda nodes: nodes[1].update(status="asleep"),
        lambda nodes: nodes[1].pop("logprob"),
    ],
)
def test_nodes_that_form_no_tree_are_refused(spoil: Any) -> None:
    nodes = view({(0, 0): "x"}).model_dump()["nodes"]
    spoil(nodes)
    with pytest.raises(ValidationError):
        TreeView.model_validate({"version": 2, "nodes": nodes})


@settings(max_examples=40, deadline=None)
@given(
    strategy=st.sampled_from(["best_of_n", "beam_search", "rebase", "mcts", "frontier"]),
    seed=st.integers(0, 10_000),
    answer=st.sampled_from(["0", "1", "9"]),
)
def test_every_value_is_the_sum_over_the_paths_through_the_node(strategy: str, seed: int, answer: str) -> None:
    """For trees of any search, read back as from a reply."""
    own = {"iterations": 12, "width": 4} if strategy in ("mcts", "frontier") else {"n": 8}
    _, outcome = search({"strategy": strategy, "seed": seed, "logprobs": True, **own})
    tree = TreeView.model_validate(json.loads(json.dumps(tree_as_json(outcome.tree))))
    answers = answers_of(tree)
    counts = {end: outcome.tree[end].count for end in answers}
    right = {end for end, given in answers.items() if given == answer}
    share = sum(counts[end] for end in right) / sum(counts.values()) if answers else None
    data = training_data(tree, right)
    assert data.accuracy == share
    assert [node.id for node in data.nodes] == sorted(node.id for node in outcome.tree.nodes if not node.is_lookahead)
    for node in data.nodes:
        below = [end for end in answers if end[: len(node.id)] == node.id]
        gain = {end: max(len(node.id) / len(end), 0.1) for end in below}
        if not below:
            assert node.value is None
            continue
        assert node.value is not None
        if good := [end for end in below if end in right]:
            assert node.value == pytest.approx(sum(gain[end] * counts[end] for end in good))
        else:
            assert node.value == pytest.approx(-sum(gain[end] * counts[end] for end in below))
        assert 0.1 <= abs(node.value) <= sum(counts[end] for end in below) + 1e-9
    kinds = [example.kind for example in data.examples]
    if right:
        assert kinds == ([Kind.CORRECT] * len(right) if share is not None and share <= 0.25 else [])
    else:
        assert kinds == [Kind.INCORRECT] * bool(answers)
    for example in data.examples:
        assert (example.path[-1] in right) == (example.kind is Kind.CORRECT)
        assert example.text == outcome.tree[example.path[-1]].text
        assert example.mean_entropy is not None
        assert example.mean_entropy > 0
