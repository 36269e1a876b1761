"""MCTS with one path at a time against a sequential implementation, written from its description in a simple form."""

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import PROMPT, reward_of, search, write_step

from search.ports import branch_seed
from search.settings import parse_search
from search.tree import NodeId, NodeStatus, SearchTree, Step, StepEnd


@dataclass
class Plain:
    """A node of the textbook's tree; counts and sums are stored, not derived."""

    id: NodeId = ()
    tokens: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    prior: float = 0.0
    done: bool = False
    visits: int = 0
    total: float = 0.0
    below: list["Plain"] = field(default_factory=list)

    @property
    def closed(self) -> bool:
        return self.done or (bool(self.below) and all(child.closed for child in self.below))


def plain_mcts(iterations: int, width: int, depth: int, exploration: float, puct: bool) -> dict[NodeId, str]:
    root = Plain()
    written: dict[NodeId, str] = {}
    for _ in range(iterations):
        if root.closed:
            break
        path = [root]
        while path[-1].below:
            parent = path[-1]

            def uct_score(child: Plain, parent: Plain = parent) -> float:
                if puct:
                    bonus = child.prior * math.sqrt(parent.visits) / (1 + child.visits)
                else:
                    bonus = math.sqrt(math.log(parent.visits) / child.visits)
                return child.total / child.visits + exploration * bonus

            path.append(min((c for c in parent.below if not c.closed), key=lambda c: (-uct_score(c), c.id)))
        leaf = path[-1]
        for index in range(width):
            step = write_step(branch_seed(7, leaf.id, index), PROMPT + leaf.tokens, 8)
            texts = (*leaf.texts, step.text)
            done = step.end is not StepEnd.DELIMITER or len(texts) == depth
            child = Plain((*leaf.id, index), leaf.tokens + step.token_ids, texts, reward_of(texts), done)
            leaf.below.append(child)
            written[child.id] = step.text
            for node in (*path, child):
                node.visits += 1
                node.total += reward_of(texts)
        whole = sum(child.prior for child in leaf.below)
        for child in leaf.below:
            child.prior = child.prior / whole if whole else 1 / width
    return written


@settings(max_examples=60, deadline=None)
@given(
    iterations=st.integers(1, 25),
    width=st.integers(1, 4),
    depth=st.integers(1, 6),
    exploration=st.sampled_from([0.0, 0.5, 1.414, 10.0]),
    puct=st.booleans(),
)
def test_one_path_at_a_time_is_the_sequential_algorithm(
    iterations: int, width: int, depth: int, exploration: float, puct: bool
) -> None:
    wanted = {
        "strategy": "mcts",
        "iterations": iterations,
        "width": width,
        "max_depth": depth,
        "exploration": exploration,
        "prior": "reward" if puct else "none",
        "max_step_tokens": 8,
        "merge_siblings": False,
    }
    _, outcome = search(wanted)
    written = {node.id: node.step.text for node in outcome.tree.nodes if node.step}
    assert written == plain_mcts(iterations, width, depth, exploration, puct)


@pytest.mark.parametrize("strategy", ["mcts", "frontier"])
@pytest.mark.parametrize("merged", [True, False])
def test_a_repeated_step_is_expanded_once(strategy: str, merged: bool) -> None:
    chosen = parse_search({"strategy": strategy, "width": 4, "merge_siblings": merged}).strategy
    tree = SearchTree(7)
    tree.merges_siblings = merged
    siblings = tree.request(tree.root, 4)
    for index, text in enumerate(["same", "other", "same", "same"]):
        tree.write(siblings[index], Step((1, 2), text, StepEnd.DELIMITER, -1.0), ends=index == 3)
        tree.complete(siblings[index], 0.5)
    open_, repeated, terminal = NodeStatus.OPEN, NodeStatus.REPEATED, NodeStatus.TERMINAL
    assert [node.status for node in siblings] == [open_, open_, repeated if merged else open_, terminal]
    [expansion] = chosen.select(tree)
    assert expansion.node in siblings[:2]
    assert [node.statistics.visits for node in tree.root.distinct_children] == ([2, 1, 1] if merged else [1, 1, 1, 1])


def test_parallel_paths_are_different_leaves() -> None:
    bench, _ = search({"strategy": "mcts", "iterations": 13, "paths": 4, "width": 2, "max_depth": 5})
    calls = [len(request.expansions) for request in bench.generator.requests]
    assert calls[0] == 1
    assert max(calls) == 4
    for request in bench.generator.requests:
        parents = [expansion.parent for expansion in request.expansions]
        assert len(parents) == len(set(parents))


def test_rollouts_are_greedy_and_answer_but_are_no_children() -> None:
    bench, outcome = search({"strategy": "mcts", "iterations": 3, "width": 2, "value": "rollout", "decision": "vote"})
    lookaheads = [node for node in outcome.tree.nodes if node.is_lookahead]
    assert lookaheads
    for request in bench.generator.requests:
        rolled = {branch.index < 0 for expansion in request.expansions for branch in expansion.branches}
        assert len(rolled) == 1
        assert (request.sampling.temperature == 0.0) == rolled.pop()
    assert all(index >= 0 for node in outcome.tree.level(1) for index in node.id)


@pytest.mark.parametrize("decision", ["value", "visits", "terminal", "vote"])
def test_every_decision_rule_selects_a_solution(decision: str) -> None:
    for seed in range(15):
        _, outcome = search({"strategy": "mcts", "iterations": 20, "seed": seed, "decision": decision})
        solutions = outcome.tree.with_status(NodeStatus.TERMINAL)
        assert not solutions or outcome.selection.node in solutions


def test_accepting_a_solution_ends_the_search_early() -> None:
    for seed in range(8):
        settings_ = {"strategy": "mcts", "iterations": 25, "seed": seed}
        _, whole = search(settings_)
        _, early = search(settings_ | {"accept": 0.0})
        solutions = early.tree.with_status(NodeStatus.TERMINAL)
        if solutions:
            assert len(early.tree) <= len(whole.tree)
            newest = max(node.id for node in solutions)[:-1]
            assert all(node.id[:-1] == newest for node in solutions)


def test_with_reject_the_search_waits_for_a_solution() -> None:
    for seed in range(10):
        _, outcome = search({"strategy": "mcts", "iterations": 30, "seed": seed, "reject": 1.0})
        assert outcome.tree.with_status(NodeStatus.TERMINAL)
        assert outcome.selection.node.status is NodeStatus.TERMINAL
