"""A search that was saved and resumed elsewhere grows the same tree as one that was never interrupted."""

import asyncio
import json
import math
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from pydantic import ValidationError
from search_fakes import Bench, broken

from search.errors import GeneratorError
from search.ports import Child
from search.run.report import SearchEvent, SearchOutcome
from search.settings import parse_search
from search.snapshot import TreeView, restore_tree, save_tree, tree_as_json
from search.tree import ExpansionRequest, NodeStatus, SearchTree, Step, StepEnd

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
    "select": {"n": 9, "window": 3},
    "fuse": {"n": 7, "k": 3},
    "refine": {"n": 4},
}
BEAM: dict[str, Any] = {"strategy": "beam_search", "n": 12, "m": 3}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *SEARCHES.items(),
    ("self_consistency", {"n": 16, "risk": 0.2, "rounds": [3, 5]}),
    ("best_of_n", {"n": 12, "risk": 0.3}),
    ("ab_mcts", {"iterations": 25, "generation": "step"}),
    ("beam_search", {"n": 6, "m": 3, "lookahead": 2}),
    ("beam_search", {"n": 12, "m": 3, "patience": 1.0}),
    ("mcts", {"iterations": 9, "value": "both", "prior": "logprob"}),
    ("ab_mcts", {"iterations": 14, "paths": 3, "generation": "refine"}),
    ("fuse", {"schedule": [9, 4, 1], "weights": "rewards", "budget": {"tokens": 250}}),
    ("refine", {"n": 3, "feedback": "critique"}),
    ("dvts", {"n": 6, "m": 3, "budget": {"tokens": 120}}),
    ("beam_search", {"n": 8, "m": 2, "budget": {"nodes": 30}, "finish_to_eos": True, "max_depth": 4}),
]


def run(settings: dict[str, Any], order: int, save_every: int = 0, tree: SearchTree | None = None) -> Any:
    """The outcome, and the saved trees as they are read back from a file."""
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
def test_resumed_at_every_eleventh_event_it_is_the_same_tree(strategy: str, own: dict[str, Any]) -> None:
    settings = {"strategy": strategy, **own}
    whole, snapshots = run(settings, order=1, save_every=11 if strategy != "greedy" else 1)
    assert snapshots
    for number, snapshot in enumerate(snapshots):
        outcome, _ = run(settings, order=2 + number, tree=restore_tree(snapshot))
        assert tree_as_json(outcome.tree) == tree_as_json(whole.tree)
        assert outcome.selection.node.id == whole.selection.node.id
        assert outcome.selection[1:4] == whole.selection[1:4]
        assert outcome.stop_reason == whole.stop_reason
        assert outcome.cost.generated_tokens == whole.cost.generated_tokens


def test_every_strategy_is_tested() -> None:
    from search.strategies.catalog import STRATEGIES

    assert SEARCHES.keys() == STRATEGIES.keys()


@pytest.fixture(scope="module")
def snapshot() -> dict[str, Any]:
    _, snapshots = run({"strategy": "beam_search", "n": 8, "m": 2}, order=1, save_every=5)
    middle: dict[str, Any] = snapshots[2]
    return middle


def test_saving_what_was_restored_changes_nothing(snapshot: dict[str, Any]) -> None:
    assert save_tree(restore_tree(snapshot)) == snapshot


@pytest.mark.parametrize("logprob", [-math.inf, -0.1 - 0.2, -1e-320, -3e38, 0.0, None])
def test_every_log_probability_survives_a_file(logprob: float | None) -> None:
    tree = SearchTree(7)
    (node,) = tree.request(tree.root, 1)
    node.request = ExpansionRequest(whole=False, tokens=9, nodes=1)
    each = None if logprob is None else (logprob, 0.0)
    tree.write(node, Step((1, 2), "so\n\n", StepEnd.DELIMITER, logprob, each))
    assert restore_tree(json.loads(json.dumps(save_tree(tree), allow_nan=False)))[node.id].step == node.step


@pytest.mark.parametrize("strategy", ["beam_search", "mcts", "frontier"])
def test_infinite_log_probabilities_survive_saving_showing_and_resuming(strategy: str) -> None:
    settings = {"strategy": strategy, **SEARCHES[strategy], "logprobs": True}
    if strategy == "mcts":
        settings["prior"] = "logprob"

    async def main(fail_after: int | None, tree: SearchTree | None = None) -> SearchTree:
        bench = Bench(1)
        bench.generator.fail_after = fail_after
        write = bench.generator._write

        def impossible(*asked: Any) -> Child:
            child = write(*asked)
            return child._replace(steps=tuple(s._replace(logprob=-math.inf) for s in child.steps))

        bench.generator._write = lambda *asked: impossible(*asked) if asked[2].index == 1 else write(*asked)  # type: ignore[method-assign]
        grown = tree or bench.tree
        with suppress(GeneratorError):
            await bench.search(settings, tree=grown)
        return grown

    whole = asyncio.run(main(None))
    cut = restore_tree(json.loads(json.dumps(save_tree(asyncio.run(main(14))), allow_nan=False)))
    shown = json.dumps(tree_as_json(asyncio.run(main(None, cut))), allow_nan=False)
    assert json.loads(shown) == tree_as_json(whole)
    logprobs = {node.id: node.step.logprob for node in whole.nodes if node.step}
    assert -math.inf in logprobs.values()
    assert {node.id: node.logprob for node in TreeView.model_validate_json(shown).nodes} == logprobs


@pytest.mark.parametrize(
    ("spoil", "place"),
    [
        (lambda tree: tree.update(version=1), ("version",)),
        (lambda tree: tree.update(seed=-1), ("seed",)),
        (lambda tree: tree.update(extra=1), ("extra",)),
        (lambda tree: tree["nodes"][0].update(reward=1.5), ("nodes", 0, "reward")),
        (lambda tree: tree["nodes"][0]["step"].update(token_logprobs=[-1.0]), ("nodes", 0, "step")),
        (lambda tree: tree["nodes"][0].update(reward=float("nan")), ("nodes", 0, "reward")),
        (lambda tree: tree["nodes"][0].update(status="asleep"), ("nodes", 0, "status")),
        (lambda tree: tree["nodes"][0]["step"].pop("text"), ("nodes", 0, "step", "text")),
        (lambda tree: tree["nodes"][0]["step"].update(logprob="Infinity"), ("nodes", 0, "step", "logprob")),
        (lambda tree: tree["nodes"][0]["step"].update(logprob=float("nan")), ("nodes", 0, "step", "logprob")),
        (lambda tree: tree["nodes"][0].update(id=[]), ("nodes", 0, "id")),
        (lambda tree: tree["nodes"][0].update(status="failed", step=None, request=None), ("nodes", 0)),
        (lambda tree: tree["nodes"][0].update(status="written"), ("nodes", 0)),
        (lambda tree: tree["nodes"][0].update(neutral=True, reward=None), ("nodes", 0)),
        (lambda tree: tree.update(settled=-1), ("settled",)),
    ],
)
def test_a_damaged_tree_is_refused_with_the_path_of_the_error(
    snapshot: dict[str, Any], spoil: Any, place: tuple[Any, ...]
) -> None:
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
        lambda nodes: nodes[0].update(status="pending", reward=None),
        lambda nodes: next(node for node in nodes if [*node["id"], 0] in [other["id"] for other in nodes]).update(
            status="failed", step=None, reward=None
        ),
    ],
)
def test_nodes_that_form_no_tree_are_refused(snapshot: dict[str, Any], spoil: Any) -> None:
    damaged = deepcopy(snapshot)
    spoil(damaged["nodes"])
    with pytest.raises(ValueError, match="saved tree"):
        restore_tree(damaged)


def test_another_seed_is_refused(snapshot: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="seed 7"):
        run({"strategy": "beam_search", "n": 8, "m": 2, "seed": 8}, order=1, tree=restore_tree(snapshot))


SCORED = [(name, own) for name, own in VARIANTS if parse_search({"strategy": name, **own}).strategy.is_scored]
SECONDS = 1000.0


class LateLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be moved forward."""

    late_s = 0.0

    def time(self) -> float:
        return super().time() + self.late_s


def stalled(settings: dict[str, Any], events: int, deadline: bool) -> SearchTree | None:
    """The tree, read back from a file, of a search whose scorer hangs after ``events`` events. The search ends at its
    deadline or is cancelled. None if it never calls the scorer again."""

    async def main() -> SearchTree | None:
        bench = Bench(1)

        def on_event(event: SearchEvent) -> None:
            bench.events.append(event)
            bench.scorer.stall = len(bench.events) > events

        running = asyncio.create_task(bench.search(settings, on_event=on_event))
        waiting = asyncio.create_task(bench.scorer.stalled.wait())
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if running.done():
            return None
        if deadline:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, LateLoop)
            loop.late_s += SECONDS
        else:
            running.cancel()
        await asyncio.wait([running])
        bench.check_idle()
        return restore_tree(json.loads(json.dumps(save_tree(bench.tree))))

    with asyncio.Runner(loop_factory=LateLoop) as runner:
        return runner.run(main())


@pytest.mark.parametrize("deadline", [True, False], ids=["deadline", "cancelled"])
@pytest.mark.parametrize(("strategy", "own"), SCORED, ids=[name for name, _ in SCORED])
def test_a_search_whose_scorer_hung_resumes_to_the_undisturbed_tree(
    strategy: str, own: dict[str, Any], deadline: bool
) -> None:
    settings = {"strategy": strategy, **own, "budget": {"seconds": SECONDS, **own.get("budget", {})}}
    whole, _ = run(settings, order=1)
    interrupted = 0
    for events in (0, 4, 16, 36) if deadline else (1, 6, 12, 25):
        tree = stalled(settings, events, deadline)
        if tree is None:
            break
        interrupted += any(node.step for node in tree.with_status(NodeStatus.FAILED))
        resumed, _ = run(settings, order=2 + events, tree=tree)
        assert tree_as_json(resumed.tree) == tree_as_json(whole.tree)
        assert resumed.selection.node.id == whole.selection.node.id
        assert resumed.selection[1:4] == whole.selection[1:4]
        assert resumed.stop_reason == whole.stop_reason
        assert resumed.cost.generated_tokens == whole.cost.generated_tokens
    assert interrupted >= 2


@pytest.mark.parametrize(("strategy", "own"), SCORED, ids=[name for name, _ in SCORED])
def test_neutral_rewards_that_decided_nothing_are_scored_again(strategy: str, own: dict[str, Any]) -> None:
    """The scorer fails, and the search is cancelled before its next decision."""
    settings = {"strategy": strategy, **own}
    whole, _ = run(settings, order=1)

    async def main(events: int) -> SearchTree:
        bench = Bench(1)

        def on_event(event: SearchEvent) -> None:
            bench.events.append(event)
            if len(bench.events) > events:
                bench.scorer.spoil = broken
            if any(node.neutral for node in bench.tree.nodes):
                running.cancel()

        running = asyncio.create_task(bench.search(settings, on_event=on_event))
        await asyncio.wait([running])
        return restore_tree(json.loads(json.dumps(save_tree(bench.tree))))

    for events in (0, 3, 7, 13, 26):
        tree = asyncio.run(main(events))
        resumed, _ = run(settings, order=2, tree=tree)
        assert tree_as_json(resumed.tree) == tree_as_json(whole.tree)
        assert not resumed.degraded


def test_neutral_rewards_that_decided_something_stay_and_are_reported() -> None:
    async def main(tree: SearchTree, scorer_works: bool) -> SearchOutcome:
        bench = Bench(1)

        def on_event(event: SearchEvent) -> None:
            bench.events.append(event)
            if len(bench.events) > 3 * BEAM["n"]:
                bench.generator.fail_after = 0

        if not scorer_works:
            bench.scorer.spoil = broken
        return await bench.search(BEAM, tree=tree, on_event=None if scorer_works else on_event)

    tree = SearchTree()
    cut = asyncio.run(main(tree, scorer_works=False))
    assert (cut.stop_reason, cut.degraded) == ("generator_error", True)
    resumed = asyncio.run(main(restore_tree(json.loads(json.dumps(save_tree(tree)))), scorer_works=True))
    assert (resumed.stop_reason, resumed.degraded) == ("finished", True)
    assert {node.reward for node in resumed.tree.level(1)} == {0.5}
    assert {node.reward for node in resumed.tree.level(resumed.tree.deepest)} != {0.5}


def test_a_search_that_finished_unscored_is_scored_on_resume() -> None:
    settings = {"strategy": "best_of_n", "n": 7}

    async def main() -> SearchOutcome:
        bench = Bench(1)
        bench.scorer.spoil = broken
        return await bench.search(settings)

    neutral = asyncio.run(main())
    assert (neutral.stop_reason, neutral.degraded) == ("finished", True)
    resumed, _ = run(settings, order=2, tree=restore_tree(json.loads(json.dumps(save_tree(neutral.tree)))))
    whole, _ = run(settings, order=1)
    assert tree_as_json(resumed.tree) == tree_as_json(whole.tree)
    assert (resumed.selection[1:4], resumed.degraded) == (whole.selection[1:4], False)


def test_steps_that_are_scored_again_are_not_written_again() -> None:
    async def main(tree: SearchTree) -> Bench:
        bench = Bench(2)
        await bench.search(BEAM, tree=tree)
        return bench

    def number_written(tree: SearchTree) -> int:
        return sum(node.step is not None for node in tree.nodes)

    # How much is written before the search ends is a matter of time.
    trees = (stalled(BEAM, 0, deadline=False) for _ in range(20))
    tree = next(tree for tree in trees if tree is not None and 0 < number_written(tree) < len(tree))
    written = number_written(tree)
    bench = asyncio.run(main(tree))
    first, *_ = bench.generator.requests
    assert sum(len(expansion.branches) for expansion in first.expansions) == BEAM["n"] - written


@pytest.mark.parametrize("children", [3, 14, 21])
@pytest.mark.parametrize("strategy", ["beam_search", "dvts", "rebase", "ets", "particle_filter", "mcts", "frontier"])
def test_branches_lost_with_the_generators_are_requested_again(strategy: str, children: int) -> None:
    """Wherever in a round they were lost, nothing is decided without the missing children."""
    settings = {"strategy": strategy, **SEARCHES[strategy]}

    async def main() -> SearchTree:
        bench = Bench(1)
        bench.generator.fail_after = children
        with suppress(GeneratorError):
            await bench.search(settings, tree=bench.tree)
        bench.check_idle()
        return restore_tree(json.loads(json.dumps(save_tree(bench.tree))))

    interrupted = asyncio.run(main())
    assert interrupted.with_status(NodeStatus.FAILED)
    resumed, _ = run(settings, order=2, tree=interrupted)
    whole, _ = run(settings, order=1)
    assert tree_as_json(resumed.tree) == tree_as_json(whole.tree)
