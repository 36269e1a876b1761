"""Beam search against search-and-learn's loop, written from its description in a simple form."""

from collections import Counter
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import PROMPT, reward_of, search, write_solution, write_step

from search.ports import Lane, StopCondition, branch_seed
from search.settings import parse_search
from search.strategies.base import Expansion
from search.strategies.levels.beam_search import BeamSearch
from search.strategies.path_score import Aggregation, aggregate
from search.tree import NodeId, NodeStatus, SearchTree, Step, StepEnd


class Beam(NamedTuple):
    path: NodeId = ()
    tokens: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    rewards: tuple[float, ...] = ()
    done: bool = False

    def key(self, how: Aggregation) -> tuple[float, NodeId]:
        return (-aggregate(self.rewards, how), self.path)


def plain_beam_search(
    n: int, m: int, depth: int, how: Aggregation, to_eos: bool
) -> tuple[dict[NodeId, str], set[NodeId]]:
    """Returns all steps written, by path, and the paths in the pool."""
    written: dict[NodeId, str] = {}
    pool: list[Beam] = []
    active = [Beam()]
    for iteration in range(depth):
        copies = [active[position % len(active)] for position in range(n)]
        indices: Counter[NodeId] = Counter()
        grown: list[Beam] = []
        for beam in copies:
            index = indices[beam.path]
            indices[beam.path] += 1
            seed, prefix = branch_seed(7, beam.path, index), PROMPT + beam.tokens
            last = iteration == depth - 1
            if last and to_eos:
                steps = write_solution(seed, prefix, 995 - len(beam.tokens))
                text, tokens, ended = "".join(s.text for s in steps), sum((s.token_ids for s in steps), ()), True
            else:
                step = write_step(seed, prefix, 8)
                text, tokens, ended = step.text, step.token_ids, step.end is not StepEnd.DELIMITER
            texts = (*beam.texts, text)
            grown.append(
                Beam((*beam.path, index), beam.tokens + tokens, texts, (*beam.rewards, reward_of(texts)), ended or last)
            )
        written |= {beam.path: beam.texts[-1] for beam in grown}
        pool += sorted((beam for beam in grown if beam.done), key=lambda beam: beam.key(how))[: n - len(pool)]
        active = sorted((beam for beam in grown if not beam.done), key=lambda beam: beam.path)
        if len(pool) == n or not active:
            break
        active = sorted(active, key=lambda beam: beam.key(how))[: n // m]
    return written, {beam.path for beam in pool}


@settings(max_examples=60, deadline=None)
@given(
    kept=st.integers(1, 4),
    m=st.integers(1, 4),
    depth=st.integers(1, 7),
    how=st.sampled_from(Aggregation),
    to_eos=st.booleans(),
    order=st.integers(0, 1000),
)
def test_grows_the_tree_of_search_and_learn(
    kept: int, m: int, depth: int, how: Aggregation, to_eos: bool, order: int
) -> None:
    wanted = {"strategy": "beam_search", "n": kept * m, "m": m, "max_depth": depth, "aggregation": how.value}
    options = {"merge_siblings": False, "finish_to_eos": to_eos, "max_step_tokens": 8}
    _, outcome = search(wanted | options, order)
    tree = outcome.tree
    written, pool = plain_beam_search(kept * m, m, depth, how, to_eos)
    assert {node.id: node.step.text for node in tree.nodes if node.step} == written
    strategy = parse_search(wanted | options).strategy
    assert {node.id for node in strategy.candidates(tree)} == pool


def test_n_children_are_dealt_in_turn_to_the_kept_beams_best_first() -> None:
    bench, _ = search({"strategy": "beam_search", "n": 6, "m": 3, "max_step_tokens": 8, "merge_siblings": False})
    first, second = bench.generator.requests[:2]
    assert (first.lane, second.lane) == (Lane.FIRST_STEPS, Lane.DEMAND)
    assert [len(expansion.branches) for expansion in first.expansions] == [6]
    assert [len(expansion.branches) for expansion in second.expansions] == [3, 3]
    scores = [bench.tree[expansion.parent].reward or 0.0 for expansion in second.expansions]
    assert scores == sorted(scores, reverse=True)
    assert first.stop_condition is StopCondition.STEP


def test_one_call_to_the_generator_per_iteration() -> None:
    bench, outcome = search({"strategy": "beam_search", "n": 16, "max_depth": 5, "max_step_tokens": 8})
    assert outcome.cost.expand_calls == len(bench.generator.requests) == max(len(node.id) for node in bench.tree.nodes)
    assert outcome.cost.prm_calls == len(bench.scorer.requests) < outcome.cost.nodes


def test_stops_once_n_beams_have_ended_and_uses_exactly_these() -> None:
    settings = {"strategy": "beam_search", "n": 4, "m": 2, "max_step_tokens": 4}
    for seed in range(30):
        _, outcome = search(settings | {"seed": seed})
        ended = outcome.tree.with_status(NodeStatus.TERMINAL)
        last = max(node.depth for node in outcome.tree.nodes)
        assert sum(node.depth < last for node in ended) < 4
        assert len(parse_search(settings).strategy.candidates(outcome.tree)) <= 4


def test_at_the_depth_limit_the_path_so_far_is_a_candidate() -> None:
    _, outcome = search({"strategy": "beam_search", "n": 4, "m": 2, "max_depth": 1, "seed": 3})
    assert all(node.status is NodeStatus.TERMINAL for node in outcome.tree.nodes)
    assert len(outcome.tree) == 4


def test_siblings_of_the_same_text_are_one_beam() -> None:
    strategy = BeamSearch(n=4, m=1)
    tree = SearchTree()
    tree.merges_siblings = True
    nodes = tree.request(tree.root, 4)
    for node, text in zip(nodes, ["a", "b", "a", "c"], strict=True):
        tree.write(node, Step((1,), text, StepEnd.DELIMITER))
        tree.complete(node, 0.5)
    strategy.observe(tree, nodes)
    assert [node.id for node in tree.with_status(NodeStatus.OPEN)] == [(0,), (1,), (3,)]
    assert strategy.select(tree) == [Expansion(nodes[0], 2), Expansion(nodes[1], 1), Expansion(nodes[3], 1)]


def test_beams_get_children_in_proportion_to_their_count() -> None:
    strategy = BeamSearch(n=8, m=2)
    tree = SearchTree()
    tree.merges_siblings = True
    for node, text in zip(tree.request(tree.root, 8), "abaaaaac", strict=True):
        tree.write(node, Step((1,), text, StepEnd.DELIMITER))
        tree.complete(node, 0.5)
    assert [(expansion.node.text, expansion.count) for expansion in strategy.select(tree)] == [
        ("a", 6),
        ("b", 1),
        ("c", 1),
    ]


def test_a_tight_budget_splits_an_iteration_over_several_calls() -> None:
    settings = {"strategy": "beam_search", "n": 8, "m": 2, "max_step_tokens": 8, "budget": {"tokens": 120}}
    bench, outcome = search(settings)
    assert outcome.stop_reason == "tokens"
    assert outcome.cost.generated_tokens <= 120
    levels = Counter(node.depth for node in bench.tree.nodes if not node.is_lookahead)
    assert len(levels) > 1
    assert all(levels[depth] == 8 for depth in range(1, max(levels)))
