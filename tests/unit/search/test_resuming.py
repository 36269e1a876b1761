"""A search that is saved in the middle and gone on with elsewhere grows the tree of one that was never interrupted."""

import asyncio
import json
from copy import deepcopy
from typing import Any

import pytest
from pydantic import ValidationError
from search_fakes import Bench

from search.run.report import SearchEvent, SearchOutcome
from search.snapshot import restore_tree, save_tree, tree_as_json
from search.tree import NodeStatus, SearchTree

SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "self_consistency": {"n": 7},
    "best_of_n": {"n": 7},
    "beam_search": {"n": 12, "m": 3},
    "dvts": {"n": 9, "m": 3},
    "rebase": {"n": 9},
    "ets": {"n": 9},
    "particle_filter": {"n": 9},
    "mcts": {"iterations": 12, "paths": 3},
    "ab_mcts": {"iterations": 12, "paths": 4},
    "frontier": {"iterations": 9, "width": 4},
}
BEAM = {"strategy": "beam_search", "n": 12, "m": 3}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *SEARCHES.items(),
    ("ab_mcts", {"iterations": 25, "generation": "step"}),
    ("beam_search", {"n": 6, "m": 3, "lookahead": 2}),
    ("mcts", {"iterations": 9, "value": "both", "prior": "logprob"}),
    ("dvts", {"n": 6, "m": 3, "budget": {"tokens": 120}}),
    ("beam_search", {"n": 8, "m": 2, "budget": {"nodes": 30}, "finish_to_eos": True, "max_depth": 4}),
]


def run(settings: dict[str, Any], order: int, save_every: int = 0, tree: SearchTree | None = None) -> Any:
    """The outcome and the trees saved, as they come back from a file."""
    saved: list[str] = []

    async def main() -> SearchOutcome:
        bench = Bench(order)
        events = 0

        def on_event(event: SearchEvent) -> None:
            nonlocal events
            events += 1
            if save_every and events % save_every == 0:
                saved.append(json.dumps(save_tree(grown)))

        grown = bench.tree if tree is None else tree
        return await bench.search(settings, on_event=on_event, tree=grown)

    return asyncio.run(main()), [json.loads(text) for text in saved]


@pytest.mark.parametrize(("strategy", "own"), VARIANTS, ids=[name for name, _ in VARIANTS])
def test_resumed_at_every_fifth_event_it_is_the_same_tree(strategy: str, own: dict[str, Any]) -> None:
    settings = {"strategy": strategy, **own}
    whole, snapshots = run(settings, order=1, save_every=5 if strategy != "greedy" else 1)
    assert snapshots
    for number, snapshot in enumerate(snapshots):
        outcome, _ = run(settings, order=2 + number, tree=restore_tree(snapshot))
        assert tree_as_json(outcome.tree) == tree_as_json(whole.tree)
        assert outcome.verdict.node.id == whole.verdict.node.id
        assert outcome.verdict[1:4] == whole.verdict[1:4]
        assert outcome.stop_reason == whole.stop_reason
        assert outcome.cost.generated_tokens == whole.cost.generated_tokens


def test_every_strategy_is_tried() -> None:
    from search.strategies.catalog import STRATEGIES

    assert SEARCHES.keys() == STRATEGIES.keys()


@pytest.fixture(scope="module")
def snapshot() -> dict[str, Any]:
    _, snapshots = run({"strategy": "beam_search", "n": 8, "m": 2}, order=1, save_every=5)
    middle: dict[str, Any] = snapshots[2]
    return middle


def test_saving_what_was_restored_changes_nothing(snapshot: dict[str, Any]) -> None:
    assert save_tree(restore_tree(snapshot)) == snapshot


@pytest.mark.parametrize(
    ("spoil", "place"),
    [
        (lambda tree: tree.update(version=2), ("version",)),
        (lambda tree: tree.update(seed=-1), ("seed",)),
        (lambda tree: tree.update(extra=1), ("extra",)),
        (lambda tree: tree["nodes"][0].update(reward=1.5), ("nodes", 0, "reward")),
        (lambda tree: tree["nodes"][0].update(reward=float("nan")), ("nodes", 0, "reward")),
        (lambda tree: tree["nodes"][0].update(status="asleep"), ("nodes", 0, "status")),
        (lambda tree: tree["nodes"][0]["step"].pop("text"), ("nodes", 0, "step", "text")),
        (lambda tree: tree["nodes"][0].update(id=[]), ("nodes", 0, "id")),
    ],
)
def test_a_damaged_tree_is_refused_with_the_place(snapshot: dict[str, Any], spoil: Any, place: tuple[Any, ...]) -> None:
    damaged = deepcopy(snapshot)
    spoil(damaged)
    with pytest.raises(ValidationError) as caught:
        restore_tree(damaged)
    assert caught.value.errors()[0]["loc"] == place


@pytest.mark.parametrize(
    "spoil",
    [
        lambda nodes: nodes.append(nodes[0]),
        lambda nodes: nodes.reverse(),
        lambda nodes: nodes[0].update(id=[5]),
        lambda nodes: nodes[0].update(id=[0, 0]),
        lambda nodes: nodes[0].update(status="open", step=None),
        lambda nodes: nodes[0].update(status="pending"),
    ],
)
def test_nodes_that_make_no_tree_are_refused(snapshot: dict[str, Any], spoil: Any) -> None:
    damaged = deepcopy(snapshot)
    spoil(damaged["nodes"])
    with pytest.raises(ValueError, match="saved tree"):
        restore_tree(damaged)


def test_another_seed_is_refused(snapshot: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="seed 7"):
        run({"strategy": "beam_search", "n": 8, "m": 2, "seed": 8}, order=1, tree=restore_tree(snapshot))


def test_what_was_lost_when_a_search_ended_is_asked_for_again() -> None:
    """As after a loss of all generators: children that were never written are no reason to end."""

    async def main() -> SearchTree:
        bench = Bench(1)
        bench.generator.fail_after = 20
        await bench.search(BEAM, tree=bench.tree)
        return restore_tree(json.loads(json.dumps(save_tree(bench.tree))))

    interrupted = asyncio.run(main())
    assert interrupted.with_status(NodeStatus.FAILED)
    resumed, _ = run(BEAM, order=2, tree=interrupted)
    whole, _ = run(BEAM, order=1)
    assert tree_as_json(resumed.tree) == tree_as_json(whole.tree)
