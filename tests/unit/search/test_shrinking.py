"""Generators that give branches back: every search goes on with fewer branches, and the tree records what was
granted."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Literal
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from search_fakes import Bench
from search_settings import BUDGETS, LIMITS, SEARCHES, VARIETY
from test_resuming import VARIANTS

from search.budget import BudgetMeter
from search.errors import GeneratorError
from search.ports import Child, ChildGroup, ExpandItem, ExpandRequest, branch_seed
from search.run.report import SearchEvent, SearchOutcome, StepScored
from search.settings import SearchSettings, parse_search
from search.snapshot import replay_of, restore_tree, save_tree, tree_as_json
from search.strategies.base import Expansion, Strategy
from search.strategies.levels.particle_filter import ParticleFilter
from search.strategies.mcts.mcts_visits import Visits
from search.tree import NodeStatus, SearchTree, Step, StepEnd, TreeError


def run(
    wanted: dict[str, Any] | SearchSettings,
    short_of_memory: int | None,
    order: int = 0,
    variety: int | None = None,
    **options: Any,
) -> tuple[Bench, SearchOutcome]:
    """Runs a whole search with a generator that gives branches back, unless ``short_of_memory`` is None."""

    async def main() -> tuple[Bench, SearchOutcome]:
        bench = Bench(order, variety=variety)
        bench.generator.short_of_memory = short_of_memory
        given = wanted if isinstance(wanted, SearchSettings) else parse_search({"seed": 7} | wanted)
        outcome = await bench.run(given, **options)
        assert bench.generator.live == set()
        return bench, outcome

    return asyncio.run(main())


def requested_ids(bench: Bench) -> list[tuple[int, ...]]:
    """Ids of all children that the generator was asked for."""
    return [
        (*expansion.parent, branch.index)
        for request in bench.generator.requests
        for expansion in request.expansions
        for branch in expansion.branches
    ]


@settings(max_examples=80, deadline=None)
@given(
    wanted=SEARCHES,
    limits=LIMITS,
    budget=BUDGETS,
    short=st.integers(0, 1 << 20),
    order=st.integers(1, 1 << 20),
    variety=VARIETY,
    merge=st.booleans(),
)
def test_every_search_ends_with_fewer_branches_and_can_be_replayed(
    wanted: dict[str, Any],
    limits: dict[str, Any],
    budget: dict[str, int],
    short: int,
    order: int,
    variety: int | None,
    merge: bool,
) -> None:
    whole = wanted | limits | {"budget": budget, "merge_siblings": merge}
    meters: list[BudgetMeter] = []

    def metered(*args: Any) -> BudgetMeter:
        meters.append(BudgetMeter(*args))
        return meters[-1]

    with mock.patch("search.run.runner.BudgetMeter", metered):
        bench, outcome = run(whole, short, 0, variety)
    bench.check_idle()
    tree = outcome.tree

    # No branch is requested twice, and granted branches keep their seeds.
    names = requested_ids(bench)
    assert len(names) == len(set(names)) == sum(node.request is not None for node in tree.nodes) + tree.given_back
    for request in bench.generator.requests:
        for expansion in request.expansions:
            for branch in expansion.branches:
                assert branch.seed == branch_seed(limits["seed"], expansion.parent, branch.index)
    assert outcome.cost.given_back_branches == tree.given_back == len(tree_as_json(tree)["given_back"])
    assert (outcome.cost.waiting_branches > 0) == (outcome.cost.least_headroom == 0.25) == (tree.given_back > 0)

    # Nothing stays reserved in the budget.
    [meter] = meters
    assert (meter.tokens.reserved, meter.nodes.reserved) == (0, 0)
    assert meter.nodes.usage == len(tree) <= budget.get("nodes", 1 << 30)
    assert meter.tokens.usage == outcome.cost.generated_tokens <= budget.get("tokens", 1 << 30)

    # The tree records what was granted, also after saving and restoring.
    saved = json.loads(json.dumps(save_tree(tree)))
    restored = restore_tree(saved)
    assert save_tree(restored) == saved
    again, replayed = run(whole, None, order, variety, tree=replay_of(restored))
    assert tree_as_json(replayed.tree) == tree_as_json(tree)
    assert replayed.selection.node.id == outcome.selection.node.id
    assert replayed.selection[1:4] == outcome.selection[1:4]
    assert replayed.stop_reason == outcome.stop_reason
    assert replayed.cost.generated_tokens == outcome.cost.generated_tokens
    assert set(requested_ids(again)) == {node.id for node in tree.nodes if node.request is not None}
    for request in again.generator.requests:
        assert all(expansion.least == len(expansion.branches) for expansion in request.expansions)


@settings(max_examples=60, deadline=None)
@given(wanted=SEARCHES, limits=LIMITS, short=st.integers(0, 1 << 20), order=st.integers(1, 1 << 20), variety=VARIETY)
def test_with_the_same_grants_the_order_of_arrival_does_not_matter(
    wanted: dict[str, Any], limits: dict[str, Any], short: int, order: int, variety: int | None
) -> None:
    _, first = run(wanted | limits, short, 0, variety)
    _, second = run(wanted | limits, short, order, variety)
    assert tree_as_json(first.tree) == tree_as_json(second.tree)
    assert first.selection.node.id == second.selection.node.id


@pytest.mark.parametrize(("strategy", "own"), VARIANTS, ids=[name for name, _ in VARIANTS])
def test_a_resumed_search_keeps_what_was_granted(strategy: str, own: dict[str, Any]) -> None:
    """Branches under way when it was saved are requested again, and then all of them are written."""
    settings, saved = {"strategy": strategy, **own}, []
    tree = SearchTree()

    def on_event(event: SearchEvent) -> None:
        if isinstance(event, StepScored):
            saved.append(json.dumps(save_tree(tree)))

    _, whole = run(settings, 1, tree=tree, on_event=on_event)
    # These may request one branch at a time.
    assert tree.given_back or strategy in ("greedy", "ab_mcts") or "budget" in own
    for number, snapshot in enumerate(saved[:: max(1, len(saved) // 3)]):
        _, outcome = run(settings, 1, 2 + number, tree=restore_tree(json.loads(snapshot)))
        assert tree_as_json(outcome.tree) == tree_as_json(whole.tree)
        assert outcome.selection.node.id == whole.selection.node.id


def test_a_replay_keeps_to_its_seed() -> None:
    _, first = run({"strategy": "rebase", "n": 8, "seed": 3}, 1)
    _, again = run(parse_search({"strategy": "rebase", "n": 8}), None, tree=replay_of(first.tree))
    assert tree_as_json(again.tree) == tree_as_json(first.tree)
    with pytest.raises(ValueError, match="seed 3"):
        run({"strategy": "rebase", "n": 8, "seed": 4}, None, tree=replay_of(first.tree))


# How strategies handle it.


def given_back(expansion: ExpandItem, written: int) -> ChildGroup:
    """The reply of a replica that writes only the first ``written`` children of an expansion."""
    return ChildGroup(tuple(Child(expansion.parent, branch.index, (), 0) for branch in expansion.branches[written:]))


def limit_first_expansions(bench: Bench, *written: int) -> None:
    """Makes the generator write only ``written[i]`` branches of the first expansion of call i, as far as it may; later
    calls are complete."""
    left = list(written)
    whole = bench.generator.expand

    async def expand(request: ExpandRequest) -> Any:
        first, *others = request.expansions
        count = max(first.least, left.pop(0)) if left else len(first.branches)
        if count < len(first.branches):
            yield given_back(first, count)
        kept = first._replace(branches=first.branches[:count])
        async for group in whole(request._replace(expansions=(kept, *others))):
            yield group

    bench.generator.expand = expand  # type: ignore[method-assign]


def run_limited(wanted: dict[str, Any], *written: int) -> tuple[Bench, SearchTree]:
    async def main() -> tuple[Bench, SearchTree]:
        bench = Bench()
        limit_first_expansions(bench, *written)
        outcome = await bench.search(wanted)
        bench.check_idle()
        return bench, outcome.tree

    return asyncio.run(main())


@pytest.mark.parametrize("strategy", ["best_of_n", "self_consistency"])
def test_whole_solutions_are_selected_among_those_that_were_written(strategy: str) -> None:
    bench, tree = run_limited({"strategy": strategy, "n": 8}, 3)
    assert len(bench.generator.requests) == 1
    assert sum(node.count for node in tree.terminals) == 3
    assert tree.root.given_back == {3, 4, 5, 6, 7}


@pytest.mark.parametrize("strategy", ["beam_search", "rebase", "ets"])
def test_the_next_level_has_its_whole_width_again(strategy: str) -> None:
    _, tree = run_limited({"strategy": strategy, "n": 12, "merge_siblings": False}, 4)
    assert len(tree.level(1)) == 4
    ended = sum(node.status is NodeStatus.TERMINAL for node in tree.level(1))
    assert len(tree.level(2)) == (12 if strategy == "beam_search" else 12 - ended)


def test_every_dvts_subtree_continues() -> None:
    bench, tree = run_limited({"strategy": "dvts", "n": 12, "m": 4}, 0)
    assert bench.generator.requests[0].expansions[0].least == 3
    assert len(tree.level(1)) == 3
    going_on = [node for node in tree.level(1) if node.status is NodeStatus.OPEN]
    assert [len(node.children) for node in going_on] == [4] * len(going_on)


def test_dvts_subtrees_share_the_granted_children_evenly() -> None:
    strategy = parse_search({"strategy": "dvts", "n": 12, "m": 4}).strategy
    _, tree = run_limited({"strategy": "dvts", "n": 12, "m": 4, "max_depth": 1, "merge_siblings": False}, 7)
    assert [len(steps) for steps in strategy._steps(tree, 1).values()] == [2, 2, 3]  # type: ignore[attr-defined]


def test_particles_given_back_are_resampled_from_the_others() -> None:
    for seed in range(10):
        _, tree = run_limited({"strategy": "particle_filter", "n": 12, "seed": seed, "resample_below": 0.0}, 4)
        assert sum(node.count for node in tree.level(1)) == 4
        particles = ParticleFilter(n=12)._resampled(tree, 1)
        stayed = sum(count for node, count in particles.items() if node.status is NodeStatus.TERMINAL)
        if any(node.status is NodeStatus.OPEN for node in tree.level(1)):
            assert len(tree.level(2)) + stayed == 12


def test_a_particle_takes_the_weight_of_siblings_given_back() -> None:
    """Below a step that was to have nine children and got one, that one weighs nine."""
    settings = ParticleFilter(n=10, merge_siblings=False)
    tree = SearchTree(7)
    first = tree.request(tree.root, 2)
    rewards = dict.fromkeys(first, 0.5)
    for node in first:
        tree.write(node, Step((1,), str(node.id), StepEnd.DELIMITER))
        tree.complete(node, rewards[node])
    tree.strategy_cache[ParticleFilter, 1] = {first[0]: 1, first[1]: 9}
    alone, many = tree.request(first[0], 1), tree.request(first[1], 9)
    tree.give_back(many[1:])
    for node in (*alone, many[0]):
        tree.write(node, Step((1,), str(node.id), StepEnd.DELIMITER))
        tree.complete(node, 0.5)
    assert settings._resampled(tree, 2) == {alone[0]: 1, many[0]: 9}


@pytest.mark.parametrize("strategy", ["mcts", "frontier"])
def test_an_expansion_with_fewer_children_counts_as_one_expansion(strategy: str) -> None:
    bench, tree = run_limited({"strategy": strategy, "iterations": 6, "width": 4}, 1, 2, 3)
    assert len(bench.generator.requests) == 6
    assert len(tree) == 6 * 4 - 3 - 2 - 1


def test_the_statistics_of_mcts_can_be_recomputed_from_the_tree() -> None:
    wanted = parse_search({"strategy": "mcts", "iterations": 20, "width": 4, "paths": 3, "seed": 5})
    _, outcome = run(wanted, 3, variety=2)
    kept = outcome.tree.fold(Visits, wanted.strategy)
    anew = restore_tree(save_tree(outcome.tree)).fold(Visits, wanted.strategy)
    assert (kept.expansions.begun, kept.current_pass) == (
        anew.expansions.begun,
        anew.current_pass,
    )
    assert kept.expansions.begun == 20
    assert not kept.expansions.unfinished


def test_ab_mcts_draws_again_for_generations_given_back() -> None:
    bench, tree = run_limited({"strategy": "ab_mcts", "iterations": 8, "paths": 8}, 2)
    assert len(tree.root.children) >= 2
    assert tree.given_back == 6
    assert sum(node.request is not None for node in tree.nodes) == 8
    assert len(bench.generator.requests) > 1


class Stubborn(Strategy):
    """Requests children that were given back again and again, like a strategy that does not handle it."""

    name: Literal["stubborn"] = "stubborn"

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        missing = 8 - len(tree.root.children)
        return [Expansion(tree.root, missing)] if missing > 0 and not tree.in_flight else []

    def finished(self, tree: SearchTree) -> bool:
        return len(tree.root.children) >= 8 and not tree.in_flight

    def candidates(self, tree: SearchTree) -> list[Any]:
        return tree.level(1)


def test_a_strategy_that_ignores_branches_given_back_ends_too() -> None:
    _, outcome = run(SearchSettings(strategy=Stubborn(), seed=7), 1)
    assert len(outcome.tree.root.children) == 8
    assert outcome.tree.given_back > 0


def test_mandatory_branches_cannot_be_given_back() -> None:
    async def main() -> None:
        bench = Bench()

        async def nothing(request: ExpandRequest) -> Any:
            for expansion in request.expansions:
                yield given_back(expansion, 0)

        bench.generator.expand = nothing  # type: ignore[method-assign]
        with pytest.raises(GeneratorError, match="1 unfinished branches"):
            await bench.search({"strategy": "best_of_n", "n": 4})
        bench.check_idle()

    asyncio.run(main())


def test_repeated_groups_give_back_once() -> None:
    async def main() -> SearchOutcome:
        bench = Bench()
        bench.generator.short_of_memory, bench.generator.repeat = 1, True
        sent = bench.generator.expand

        async def twice(request: ExpandRequest) -> Any:
            async for group in sent(request):
                yield group
                if not all(child.steps for child in group.children):
                    yield group

        bench.generator.expand = twice  # type: ignore[method-assign]
        outcome = await bench.search({"strategy": "beam_search", "n": 12, "m": 3})
        bench.check_idle()
        return outcome

    _, once = run({"strategy": "beam_search", "n": 12, "m": 3}, 1)
    assert tree_as_json(asyncio.run(main()).tree) == tree_as_json(once.tree)


def test_branches_given_back_free_their_budget_for_others() -> None:
    plain = {"strategy": "rebase", "n": 16, "max_step_tokens": 10, "budget": {"tokens": 100}}
    bench, outcome = run(plain, 2)
    assert outcome.tree.given_back > 0
    assert 90 < outcome.cost.generated_tokens <= 100 or outcome.stop_reason == "finished"
    bench.check_idle()


# How the tree records it.


def test_indices_given_back_are_not_reused() -> None:
    tree = SearchTree(7)
    children = tree.request(tree.root, 4)
    tree.give_back(children[2:])
    assert [node.id for node in tree.live] == [(0,), (1,)]
    assert (len(tree), tree.root.asked, tree.given_back) == (2, 4, 2)
    assert [node.id for node in tree.request(tree.root, 2)] == [(4,), (5,)]
    assert tree.root.given_back_after(1) == 2
    assert tree.root.given_back_after(0) == tree.root.given_back_after(5) == 0
    assert [node.serial for node in tree.nodes] == [1, 2, 5, 6]
    assert tree.check_integrity() == []


def test_a_level_given_back_completely_does_not_exist() -> None:
    tree = SearchTree(7)
    tree.give_back(tree.request(tree.root, 3))
    assert (tree.deepest, tree.level(1), tree.ended(1), len(tree)) == (0, [], 0, 0)
    assert tree.check_integrity() == []


def test_written_nodes_cannot_be_given_back() -> None:
    _, outcome = run({"strategy": "best_of_n", "n": 2}, None)
    with pytest.raises(TreeError, match="cannot be given back"):
        outcome.tree.give_back(outcome.tree.level(1))


def test_giving_back_does_not_change_what_was_settled() -> None:
    tree = SearchTree(7)
    tree.request(tree.root, 2)
    late = tree.request(tree.root, 2)
    tree.settle()
    tree.request(tree.root, 2)
    tree.give_back(late)
    assert tree.settled == 2


@pytest.mark.parametrize(
    ("given_back", "error"),
    [
        ([[0, 9, 1]], "has no node"),
        ([[-1]], "saved tree"),
        ([[3]], "saved tree"),
        ([[500]], "saved tree"),
        ([[]], "too_short"),
    ],
)
def test_invalid_records_of_branches_given_back_are_refused(given_back: list[list[int]], error: str) -> None:
    _, outcome = run({"strategy": "best_of_n", "n": 5}, None)
    saved = save_tree(outcome.tree) | {"given_back": given_back}
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # noqa: PT011  # the assertion below checks which error
        restore_tree(saved)
    told = [each["type"] for each in caught.value.errors()] if isinstance(caught.value, ValidationError) else []
    assert error in (told or str(caught.value))


def test_a_saved_tree_without_the_field_given_back_is_read() -> None:
    _, outcome = run({"strategy": "best_of_n", "n": 5}, None)
    saved = save_tree(outcome.tree)
    del saved["given_back"]
    assert tree_as_json(restore_tree(saved)) == tree_as_json(outcome.tree)
