"""Invariants of every search, for any order of arrival and any point at which it is cut off."""

import asyncio
import json
import random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from search_fakes import Bench, Turns, search
from search_settings import BUDGETS, LIMITS, SEARCHES, VARIETY

from search.errors import LimitReached
from search.settings import parse_search
from search.snapshot import TreeView, restore_tree, save_tree, tree_as_json, tree_of_view
from search.strategies.path_score import path_score
from search.tree import SearchTree


@settings(max_examples=60, deadline=None)
@given(
    wanted=SEARCHES, limits=LIMITS, budget=BUDGETS, order=st.integers(1, 1 << 20), variety=VARIETY, merge=st.booleans()
)
def test_order_of_arrival_does_not_matter_and_no_budget_is_exceeded(
    wanted: dict[str, Any], limits: dict[str, Any], budget: dict[str, int], order: int, variety: int | None, merge: bool
) -> None:
    whole = wanted | limits | {"budget": budget, "merge_siblings": merge}
    bench, first = search(whole, 0, variety)
    _, second = search(whole, order, variety)
    assert tree_as_json(first.tree) == tree_as_json(second.tree)
    assert first.selection[1:4] == second.selection[1:4]
    assert first.selection.node.id == second.selection.node.id
    assert first.stop_reason == second.stop_reason
    varying = {"seconds", "sample_seconds", "prm_calls"}
    assert first.cost.model_dump(exclude=varying) == second.cost.model_dump(exclude=varying)
    assert bench.generator.tokens <= budget.get("tokens", 1 << 30)
    assert len(bench.tree) <= budget.get("nodes", 1 << 30)


@settings(max_examples=60, deadline=None)
@given(wanted=SEARCHES, limits=LIMITS, budget=BUDGETS, order=st.integers(1, 1 << 20), variety=VARIETY)
def test_a_flex_search_grows_the_same_tree_and_says_so_in_every_call(
    wanted: dict[str, Any], limits: dict[str, Any], budget: dict[str, int], order: int, variety: int | None
) -> None:
    whole = wanted | limits | {"budget": budget}
    usual, first = search(whole, 0, variety)
    flex, second = search(whole, order, variety, flex=True)
    assert tree_as_json(first.tree) == tree_as_json(second.tree)
    assert first.selection.node.id == second.selection.node.id
    for bench, is_flex in ((usual, False), (flex, True)):
        calls = [*bench.generator.requests, *bench.scorer.requests]
        assert {call.lane.flex for call in calls} == {is_flex}


@settings(max_examples=60, deadline=None)
@given(
    wanted=SEARCHES,
    limits=LIMITS,
    budget=BUDGETS,
    variety=VARIETY,
    merge=st.booleans(),
    short=st.none() | st.integers(0, 1 << 20),
)
def test_the_vote_can_be_repeated_from_the_returned_tree(
    wanted: dict[str, Any],
    limits: dict[str, Any],
    budget: dict[str, int],
    variety: int | None,
    merge: bool,
    short: int | None,
) -> None:
    whole = wanted | limits | {"budget": budget, "merge_siblings": merge}
    strategy = parse_search(whole).strategy
    _, outcome = search(whole, variety=variety, short_of_memory=short)
    tree = tree_of_view(TreeView.model_validate(tree_as_json(outcome.tree)), limits["seed"], merge)
    found, said = strategy.candidates(tree), strategy.candidates(outcome.tree)
    assert [node.id for node in found] == [node.id for node in said]
    for node, original in zip(found, said, strict=True):
        assert tree.answer_of(node) == outcome.tree.answer_of(original)
        assert path_score(node, strategy.aggregation) == path_score(original, strategy.aggregation)
        assert strategy.votes(tree, node) == strategy.votes(outcome.tree, original)


@settings(max_examples=50, deadline=None)
@given(
    wanted=SEARCHES,
    limits=LIMITS,
    budget=BUDGETS,
    share=st.floats(0, 1),
    order=st.integers(1, 1 << 20),
    variety=VARIETY,
)
def test_a_cancelled_search_leaves_nothing_behind_and_can_resume(
    wanted: dict[str, Any],
    limits: dict[str, Any],
    budget: dict[str, int],
    share: float,
    order: int,
    variety: int | None,
) -> None:
    whole = wanted | limits | {"budget": budget}

    async def main(cancel_at: int | None) -> tuple[int, Bench]:
        def at(turn: int) -> None:
            if turn == cancel_at:
                running.cancel()

        turns = Turns(random.Random(order), at)
        bench = Bench(order, turns, variety)
        running = asyncio.create_task(bench.search(whole))
        if cancel_at is None:
            await running
        else:
            with pytest.raises(asyncio.CancelledError):
                await running
        bench.check_idle()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return turns.count, bench

    async def resume(saved: str) -> SearchTree:
        tree = restore_tree(json.loads(saved))
        await Bench(order + 1, variety=variety).search(whole, tree=tree)
        return tree

    turns, undisturbed = asyncio.run(main(None))
    # The last turns may fall between the end of the stream and the selection, where no task waits.
    _, cut = asyncio.run(main(1 + int(share * (turns - 1))))
    resumed = asyncio.run(resume(json.dumps(save_tree(cut.tree))))
    assert tree_as_json(resumed) == tree_as_json(undisturbed.tree)


@settings(max_examples=60, deadline=None)
@given(wanted=SEARCHES, limits=LIMITS, tokens=st.integers(1, 150))
def test_a_budget_shortens_a_search_without_changing_its_decisions(
    wanted: dict[str, Any], limits: dict[str, Any], tokens: int
) -> None:
    """For strategies that decide on one path or one level at a time: several paths at a time are chosen with the
    knowledge of that moment."""
    assume(wanted.get("paths", 1) == 1)
    _, whole = search(wanted | limits)
    try:
        _, cut = search(wanted | limits | {"budget": {"tokens": tokens}})
    except LimitReached:
        return
    own = {node.id for node in cut.tree.nodes if not node.is_lookahead}
    assert own <= {node.id for node in whole.tree.nodes}


@pytest.mark.parametrize("strategy", ["mcts", "frontier"])
def test_a_budget_slightly_above_one_step_still_pays_whole_expansions(strategy: str) -> None:
    wanted = {"strategy": strategy, "iterations": 50, "width": 4, "max_step_tokens": 50}
    _, whole = search(wanted)
    _, cut = search(wanted | {"budget": {"tokens": 60}})
    own = [node for node in cut.tree.nodes if not node.is_lookahead]
    widths = [len(node.children) for node in (cut.tree.root, *own) if node.children]
    assert sorted(widths)[1:] == [4] * (len(widths) - 1)  # the last expansion may be shortened
    assert {node.id for node in own} <= {node.id for node in whole.tree.nodes}
    assert cut.cost.generated_tokens > 50
