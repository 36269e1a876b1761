"""DVTS against search-and-learn's loop, written from its description in a simple form; and lookahead."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import PROMPT, reward_of, search, write_step

from search.ports import branch_seed
from search.tree import NodeId, NodeStatus, StepEnd


def plain_subtree(first: int, m: int, depth: int) -> tuple[dict[NodeId, str], set[NodeId]]:
    """One subtree, whose first steps are the root's children from ``first`` on: all steps written, and its last
    level."""
    written: dict[NodeId, str] = {}
    path: NodeId = ()
    tokens: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    while True:
        indices = range(first, first + m) if not path else range(m)
        steps = {(*path, index): write_step(branch_seed(7, path, index), PROMPT + tokens, 8) for index in indices}
        written |= {name: step.text for name, step in steps.items()}
        best = max(steps, key=lambda name: (reward_of((*texts, steps[name].text)), tuple(-i for i in name)))
        if steps[best].end is not StepEnd.DELIMITER or len(best) == depth:
            return written, set(steps)
        path, tokens, texts = best, tokens + steps[best].token_ids, (*texts, steps[best].text)


@settings(max_examples=60, deadline=None)
@given(trees=st.integers(1, 4), m=st.integers(1, 4), depth=st.integers(1, 8))
def test_dvts_equals_independent_subtrees(trees: int, m: int, depth: int) -> None:
    wanted = {"strategy": "dvts", "n": trees * m, "m": m, "max_depth": depth, "max_step_tokens": 8}
    _, outcome = search(wanted | {"merge_siblings": False})
    written: dict[NodeId, str] = {}
    answers: set[NodeId] = set()
    for tree in range(trees):
        own, last = plain_subtree(tree * m, m, depth)
        written |= own
        answers |= last
    assert {node.id: node.step.text for node in outcome.tree.nodes if node.step} == written
    ends = [n for n in outcome.tree.nodes if n.status in (NodeStatus.OPEN, NodeStatus.TERMINAL) and not n.children]
    assert answers <= {node.id for node in ends} | {n.id for n in outcome.tree.with_status(NodeStatus.TERMINAL)}
    assert len(answers) == trees * m


@pytest.mark.parametrize("strategy", ["beam_search", "dvts"])
def test_lookahead_ranks_steps_by_their_continuation_and_is_in_no_path(strategy: str) -> None:
    plain = {"strategy": strategy, "n": 6, "m": 3, "max_depth": 6}
    _, without = search(plain)
    bench, outcome = search(plain | {"lookahead": 2})
    tree = outcome.tree
    for node in tree.nodes:
        if node.is_lookahead:
            position = next(position for position, index in enumerate(node.id) if index < 0)
            assert len(node.id) - position <= 2
    greedy = [request for request in bench.generator.requests if request.sampling.temperature == 0.0]
    assert greedy
    assert all(len(expansion.branches) == 1 for request in greedy for expansion in request.expansions)
    for level in range(1, tree.deepest):
        for node in tree.level(level):
            if node.children:
                assert node.lookaheads, "a step was followed before it was looked beyond"
    assert not outcome.selection.node.is_lookahead
    assert "".join(step.text for step in outcome.selection.node.steps) == outcome.text
    assert {n.id for n in tree.level(1)} == {n.id for n in without.tree.level(1)}


def test_lookahead_changes_which_steps_are_kept() -> None:
    kept = []
    for lookahead in (0, 3):
        _, outcome = search({"strategy": "beam_search", "n": 12, "m": 4, "lookahead": lookahead})
        kept.append({node.id for node in outcome.tree.level(1) if node.children})
    assert kept[0] != kept[1]
