"""Beam searches that end early: which paths wander, when the answer is decided, and what the reply says."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from search_fakes import Bench, search

from search.ports import Child
from search.settings import parse_search
from search.snapshot import TreeView, tree_as_json
from search.strategies.levels.beam_search import BeamSearch, repeats_itself
from search.tree import Node, NodeStatus, SearchTree, Step, StepEnd, Thought

BEAM = {"strategy": "beam_search", "n": 8, "m": 2, "max_step_tokens": 10}


class Grown:
    """A tree that is written by hand; a text with a box ends its path."""

    def __init__(self) -> None:
        self.tree = SearchTree(7)
        self.tree.merges_siblings = True

    def below(self, parent: Node, *steps: tuple[str, int], reward: float = 0.5, thought: int = 0) -> list[Node]:
        """Adds children with these texts and numbers of tokens."""
        nodes = self.tree.request(parent, len(steps))
        for node, (text, tokens) in zip(nodes, steps, strict=True):
            ends = "boxed" in text
            end = StepEnd.END_OF_SEQUENCE if ends else StepEnd.DELIMITER
            self.tree.write(node, Step((1,) * tokens, text, end, thought=Thought(thought, 0)), ends)
        for node in nodes:
            self.tree.complete(node, reward)
        return nodes

    def allocated(self, strategy: BeamSearch) -> dict[Node, int]:
        """Lets the strategy decide the deepest level; the number of children that it requests of each node."""
        strategy.observe(self.tree, [])
        return {expansion.node: expansion.count for expansion in strategy.select(self.tree)}


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 999),
    variety=st.sampled_from([None, 2, 4]),
    merge=st.booleans(),
    rule=st.sampled_from(["weighted", "majority", "naive"]),
    how=st.sampled_from(["last", "prod"]),
)
def test_a_decided_search_has_the_answer_of_the_whole_one_and_the_beginning_of_its_tree(
    seed: int, variety: int | None, merge: bool, rule: str, how: str
) -> None:
    wanted = BEAM | {"seed": seed, "merge_siblings": merge, "selection": rule, "aggregation": how}
    _, whole = search(wanted, variety=variety)
    _, early = search(wanted | {"patience": 100.0}, variety=variety)
    assert early.cost.wandering_paths == 0
    assert early.selection.answer == whole.selection.answer
    texts = {node.id: node.step and node.step.text for node in whole.tree.nodes}
    assert all(texts[node.id] == (node.step and node.step.text) for node in early.tree.nodes)
    if rule == "naive":
        assert tree_as_json(early.tree) == tree_as_json(whole.tree)


def test_some_searches_are_decided_early() -> None:
    wanted = BEAM | {"n": 16, "m": 4}
    tokens = [
        [search(wanted | own | {"seed": seed}, variety=4)[1].cost.generated_tokens for seed in range(8)]
        for own in ({}, {"patience": 100.0})
    ]
    assert sum(tokens[1]) < sum(tokens[0])


@pytest.mark.parametrize(
    ("finished", "others", "decided"),
    [
        (["5"] * 9, [], True),
        (["5"] * 8, [], False),
        (["5"] * 12, ["6"] * 2, True),
        (["5"] * 10, ["6"] * 4, True),
        (["5"] * 8, ["6"] * 4, False),
        (["5"] * 8, ["6"] * 2, False),
    ],
    ids=str,
)
def test_a_vote_is_decided_by_what_the_growing_paths_have_left(
    finished: Sequence[str], others: Sequence[str], decided: bool
) -> None:
    """Each of 16 samples has 1/16 of the votes; all finished ones have score 1."""
    grown, left = Grown(), 16 - len(finished) - len(others)
    answers = [(rf"\boxed{{{answer}}}", 2) for answer in (*finished, *others)]
    nodes = grown.below(grown.tree.root, *answers, *[("on\n\n", 2)] * left, reward=1.0)
    strategy = BeamSearch(n=16, patience=9.0)
    assert grown.allocated(strategy) == ({} if decided else {nodes[-left]: 16})
    assert nodes[-left].status is NodeStatus.OPEN


@pytest.mark.parametrize(("tokens", "wanders"), [(20, False), (21, True)])
def test_a_path_wanders_beyond_a_multiple_of_the_longest_finished_one(tokens: int, wanders: bool) -> None:
    grown = Grown()
    _, longest, going, long = grown.below(
        grown.tree.root,
        (r"\boxed{1}", 4),
        (r"\boxed{2}", 10),
        ("on\n\n", 5),
        ("far\n\n", tokens),
        reward=0.1,
    )
    assert longest.status is NodeStatus.TERMINAL
    allocated = grown.allocated(BeamSearch(n=4, m=2, patience=2.0))
    assert (long.status is NodeStatus.WANDERING) is wanders
    assert set(allocated) == ({going} if wanders else {going, long})


def test_thinking_is_no_wandering() -> None:
    grown = Grown()
    *_, long = grown.below(grown.tree.root, (r"\boxed{1}", 40), (r"\boxed{2}", 40), ("on\n\n", 50), thought=30)
    assert long in grown.allocated(BeamSearch(n=3, m=1, patience=2.0))


@pytest.mark.parametrize(
    ("texts", "wanders"),
    [
        ("aaa", True),
        ("xaaa", True),
        ("aab", False),
        ("aabaab", False),
        ("aabaabaab", True),
        ("xababab", True),
        ("abcdabcdabcd", True),
        ("abcdeabcdeabcde", False),
        ("aa", False),
    ],
)
def test_a_path_that_repeats_its_last_steps_wanders(texts: str, wanders: bool) -> None:
    grown, node = Grown(), None
    for text in texts:
        assert node is None or grown.allocated(BeamSearch(n=1, m=1, patience=9.0)) == {node: 1}
        [node] = grown.below(node or grown.tree.root, (f"{text}\n\n", 1))
    assert node is not None
    assert grown.allocated(BeamSearch(n=1, m=1, patience=9.0)) == ({} if wanders else {node: 1})
    assert (node.status is NodeStatus.WANDERING) is wanders


class Circling(Bench):
    """A generator that writes the same step again and again."""

    def __init__(self, order: int = 0) -> None:
        super().__init__(order)
        self.generator._write = self._again  # type: ignore[method-assign]

    @staticmethod
    def _again(request: Any, expansion: Any, branch: Any) -> Child:
        step = Step((branch.index + 10,), "again\n\n", StepEnd.DELIMITER)
        return Child(expansion.parent, branch.index, (step,), 0)


async def test_a_search_in_which_every_path_wanders_ends_with_the_beginning_of_an_answer() -> None:
    bench = Circling()
    outcome = await bench.search({"strategy": "beam_search", "n": 4, "m": 4, "patience": 2.0})
    node = outcome.selection.node
    assert node.status is NodeStatus.WANDERING
    assert repeats_itself(node)
    assert outcome.text == 3 * "again\n\n"
    assert (outcome.stop_reason, outcome.ended, outcome.selection.answer) == ("finished", False, None)
    written = TreeView.model_validate(tree_as_json(outcome.tree))
    wandering = [node for node in written.nodes if node.status == "wandering"]
    assert len(wandering) == outcome.cost.wandering_paths == outcome.cost.model_dump()["wandering_paths"] > 0
    bench.check_idle()


async def test_without_patience_it_goes_on_to_its_limit() -> None:
    outcome = await Circling().search({"strategy": "beam_search", "n": 4, "m": 4, "max_depth": 9})
    assert outcome.tree.deepest == 9
    assert "wandering_paths" not in outcome.cost.model_dump()


@pytest.mark.parametrize("patience", [0.9, 101.0, True, "2"])
def test_what_cannot_be_is_refused_by_its_path(patience: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_search({"strategy": "beam_search", "patience": patience})
    assert [error["loc"] for error in caught.value.errors()] == [("patience",)]
