"""What a search tells a generator that may write children ahead: enough to write them as the search would."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import PROMPT, search
from search_settings import LIMITS, SEARCHES, VARIETY

from search.ports import Ahead, AheadSamples, StopCondition, branch_seed
from search.settings import parse_search
from search.strategies.catalog import STRATEGIES

EXPECTED: list[tuple[dict[str, Any], tuple[int, int] | None]] = [
    ({"strategy": "greedy"}, None),
    ({"strategy": "self_consistency", "n": 8}, None),
    ({"strategy": "best_of_n", "n": 8}, None),
    ({"strategy": "beam_search", "n": 8, "m": 4}, (1, 8)),
    ({"strategy": "beam_search", "n": 8, "m": 4, "lookahead": 2}, None),
    ({"strategy": "dvts", "n": 8, "m": 4}, (1, 8)),
    ({"strategy": "dvts", "n": 8, "m": 4, "lookahead": 1}, None),
    ({"strategy": "rebase", "n": 8}, (1, 8)),
    ({"strategy": "ets", "n": 8}, (1, 8)),
    ({"strategy": "particle_filter", "n": 8}, (1, 8)),
    ({"strategy": "mcts", "width": 3}, (3, 3)),
    ({"strategy": "mcts", "width": 3, "value": "rollout"}, None),
    ({"strategy": "mcts", "width": 3, "value": "both"}, None),
    ({"strategy": "ab_mcts"}, None),
    ({"strategy": "ab_mcts", "generation": "step"}, None),
    ({"strategy": "frontier", "width": 3}, (3, 3)),
    ({"strategy": "select"}, None),
    ({"strategy": "fuse"}, None),
    ({"strategy": "refine"}, None),
]


def test_every_strategy_is_asked() -> None:
    assert {wanted["strategy"] for wanted, _ in EXPECTED} == set(STRATEGIES)


@pytest.mark.parametrize(("wanted", "expected"), EXPECTED, ids=str)
def test_a_strategy_expects_children_where_it_writes_single_steps(
    wanted: dict[str, Any], expected: tuple[int, int] | None
) -> None:
    assert parse_search(wanted).strategy.expected_children == expected
    bench, _ = search({"max_path_tokens": 60} | wanted)
    assert bench.generator.requests
    for request in bench.generator.requests:
        assert (request.ahead is None) == (expected is None)
        assert expected is None or request.stop_condition is StopCondition.STEP


@given(wanted=SEARCHES, limits=LIMITS, order=st.integers(0, 9), variety=VARIETY)
@settings(max_examples=80)
def test_what_a_search_asks_for_follows_from_what_it_said_before(
    wanted: dict[str, Any], limits: dict[str, Any], order: int, variety: int | None
) -> None:
    """Every branch below a step has the seed and the length that follow from the request that wrote the step."""
    bench, _ = search(wanted | limits, order, variety)
    before, samples = None, None
    for request in bench.generator.requests:
        if isinstance(samples, AheadSamples):
            for branch in request.expansions[0].branches:
                assert branch.seed == branch_seed(samples.seed, (), branch.index)
                assert 0 <= branch.index - samples.first < samples.number
                assert branch.max_tokens == samples.tokens
        samples = request.ahead
        ahead = request.ahead if before is not None else None
        if ahead is not None:
            assert ahead == before
            for item in request.expansions:
                assert len(item.parent) < ahead.max_depth
                assert len(item.branches) <= ahead.most_children
                for branch in item.branches:
                    assert branch.seed == branch_seed(ahead.seed, item.parent, branch.index)
                    assert branch.max_tokens == min(ahead.step_tokens, ahead.path_tokens - len(item.prefix))
                    assert branch.max_tokens > 0
        before = request.ahead if isinstance(request.ahead, Ahead) else None
        if before is not None:
            assert before.path_tokens == len(PROMPT) + limits["max_path_tokens"]
            assert before.children <= before.most_children


@given(wanted=SEARCHES, order=st.integers(0, 9), variety=VARIETY)
@settings(max_examples=60)
def test_the_children_of_merged_siblings_are_asked_for_below_the_first(
    wanted: dict[str, Any], order: int, variety: int | None
) -> None:
    bench, _ = search(wanted, order, variety)
    texts = {node.id: node.step.text for node in bench.tree.nodes if node.step is not None}
    for request in bench.generator.requests:
        if not isinstance(request.ahead, Ahead) or not request.ahead.merges:
            continue
        for item in request.expansions:
            *above, index = item.parent or (0,)
            equal = (each for each in range(index) if texts.get((*above, each)) == texts.get(item.parent))
            assert not item.parent or not any(equal)
