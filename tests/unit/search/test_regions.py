"""Independent parts of a search do not wait for each other, and the tree is that of a search that waits."""

import asyncio
import json
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
from search_fakes import Result, TimedBench, random_delays, search, seeded_rng, simulated, timed_bench

from search.errors import SearchError
from search.run.report import SearchOutcome
from search.run.runner import ASK_WAIT_S
from search.snapshot import replay_of, restore_tree, save_tree, tree_as_json
from search.tree import NodeId

VARYING = {"seconds", "prm_calls", "expand_calls", "waiting_branches", "least_headroom"}


def some_search(number: int) -> tuple[dict[str, Any], int | None]:
    """Settings of a search whose parts may overlap, and the variety of its steps. Many budgets end in the middle."""
    rng = seeded_rng("overlap", number)
    m = rng.randint(1, 4)
    levels = {
        "n": m * rng.randint(2, 8),
        "m": m,
        "max_depth": rng.randint(2, 12),
        "lookahead": max(0, rng.randint(-5, 2)),
    }
    levels |= {"aggregation": rng.choice(["last", "min", "mean", "prod"])}
    strategy, own = rng.choice(
        [
            ("dvts", levels),
            ("beam_search", levels | {"lookahead": 0, "finish_to_eos": rng.random() < 0.2}),
            ("best_of_n", {"n": rng.randint(2, 16)}),
            ("self_consistency", {"n": rng.randint(2, 16)}),
        ][: rng.choice([2, 2, 4])]
    )
    budget = {"tokens": rng.randint(40, 400)} if rng.random() < 0.6 else {}
    budget |= {"nodes": rng.randint(8, 100)} if rng.random() < 0.4 else {}
    limits = {"max_step_tokens": rng.randint(5, 10), "max_path_tokens": rng.choice([20, 60, 200]), "seed": number}
    merge = {"merge_siblings": rng.random() < 0.6}
    return {"strategy": strategy, "budget": budget} | own | limits | merge, rng.choice([None, None, 1, 2, 4, 8])


def waiting(wanted: dict[str, Any], **options: Any) -> SearchOutcome:
    """The outcome of a search that goes on only when nothing is in flight, as all in these tests (`no_overlap`)."""
    return search(wanted, **options)[1]


def voted(outcome: SearchOutcome) -> tuple[Any, ...]:
    chosen = outcome.selection
    groups = [group._replace(best=group.best.id) for group in chosen.groups]  # type: ignore[arg-type]
    return chosen.node.id, chosen[1:4], groups


def check_same(outcome: SearchOutcome, other: SearchOutcome) -> None:
    assert tree_as_json(outcome.tree) == tree_as_json(other.tree)
    assert voted(outcome) == voted(other)
    assert (outcome.text, outcome.stop_reason, outcome.degraded) == (other.text, other.stop_reason, other.degraded)


def overlapping(main: Coroutine[Any, Any, Result]) -> Result:
    with mock.patch("search.run.runner.ASK_WAIT_S", ASK_WAIT_S):
        return simulated(main)


def run(bench: TimedBench, wanted: dict[str, Any], **options: Any) -> SearchOutcome:
    async def main() -> SearchOutcome:
        outcome = await bench.search(wanted, **options)
        if "tree" not in options:
            bench.check_idle()
        return outcome

    return overlapping(main())


@pytest.mark.parametrize("number", [*range(160), 658, 842])  # The last two: lookaheads out of turn in a tight budget.
def test_the_tree_is_that_of_a_search_that_waits(number: int) -> None:
    wanted, variety = some_search(number)
    bench = timed_bench(random_delays(number), variety, scoring_s=(0.0, 0.01, 0.7)[number % 3])
    bench.generator.interruptions = number % 4
    outcome, other = run(bench, wanted), waiting(wanted, variety=variety)
    check_same(outcome, other)
    assert outcome.cost.model_dump(exclude=VARYING) == other.cost.model_dump(exclude=VARYING)


@pytest.mark.parametrize("end", ["deadline", "failure", "cancelled"])
@pytest.mark.parametrize("number", range(20))
def test_cut_off_anywhere_it_resumes_to_the_same_tree(number: int, end: str) -> None:
    wanted, variety = some_search(number)
    share = seeded_rng("cut", number, end).random()
    undisturbed, bench = (timed_bench(random_delays(number), variety) for _ in range(2))
    run(undisturbed, wanted)
    times = undisturbed.generator.written_at
    last_s, limits = max(times.values()), dict(wanted["budget"])
    if end == "failure":
        bench.generator.fail_after = int(share * len(times))
    elif end == "deadline":
        limits["seconds"] = share * last_s

    async def cut() -> None:
        searching = asyncio.create_task(bench.search(wanted | {"budget": limits}))
        if end == "cancelled":
            await asyncio.sleep(share * last_s)
            searching.cancel()
        with suppress(SearchError, asyncio.CancelledError):
            await searching
        bench.check_idle()

    overlapping(cut())
    saved, other = json.dumps(save_tree(bench.tree)), waiting(wanted, variety=variety)
    resumed = run(timed_bench(random_delays(number + 1), variety), wanted, tree=restore_tree(json.loads(saved)))
    check_same(resumed, other)
    check_same(waiting(wanted, variety=variety, tree=restore_tree(json.loads(saved))), other)


@pytest.mark.parametrize("number", range(40))
def test_what_was_given_back_is_replayed_by_a_search_that_waits(number: int) -> None:
    wanted, variety = some_search(number)
    bench = timed_bench(random_delays(number), variety)
    bench.generator.short_of_memory = number
    outcome = run(bench, wanted)
    check_same(waiting(wanted, variety=variety, tree=replay_of(outcome.tree)), outcome)


def slow_below(*slow: NodeId) -> Any:
    """100 seconds for each branch of these ids and below, one for all others."""
    return lambda name: 100.0 if any(name[: len(each)] == each for each in slow) else 1.0


@pytest.mark.parametrize("merge", [True, False])
def test_a_subtree_goes_on_while_another_is_written(merge: bool) -> None:
    wanted = {"strategy": "dvts", "n": 8, "m": 4, "max_step_tokens": 8, "merge_siblings": merge, "seed": 4}
    tree = waiting(wanted).tree
    slow, fast = (node for node in tree.level(1) if node.children)
    levels = [max(node.depth for node in tree.nodes if node.id[:1] == each.id) for each in (slow, fast)]
    assert min(levels) >= 4, "the seed is for two long subtrees"
    bench = timed_bench(slow_below((*slow.id, 0)))
    outcome = run(bench, wanted)
    assert tree_as_json(outcome.tree) == tree_as_json(tree)
    requested, written = bench.generator.requested_at, bench.generator.written_at
    ahead = {name for name in written if name[:1] == fast.id and written[name] < 50}
    assert max(map(len, ahead)) == levels[1]
    # The slow step alone holds its own subtree.
    assert min(requested[name] for name in written if name[:1] == slow.id and len(name) == 3) > 100


def test_beams_that_are_kept_in_any_case_go_on() -> None:
    for merge, variety, seed in ((False, None, 2), (True, 4, 3), (True, 2, 3)):
        wanted = {
            "strategy": "beam_search",
            "n": 16,
            "m": 4,
            "max_step_tokens": 8,
            "seed": seed,
            "merge_siblings": merge,
        }
        bench = timed_bench(slow_below((15,)), variety)
        outcome = run(bench, wanted)
        assert tree_as_json(outcome.tree) == tree_as_json(waiting(wanted, variety=variety).tree)
        early = [name for name, at in bench.generator.written_at.items() if len(name) == 2 and at < 50]
        assert len(early) >= 12


@pytest.mark.parametrize("strategy", ["best_of_n", "self_consistency"])
def test_what_a_solution_did_not_use_is_for_the_next_one(strategy: str) -> None:
    wanted = {"strategy": strategy, "n": 8, "max_path_tokens": 60, "budget": {"tokens": 170}}
    bench = timed_bench(slow_below((0,)))
    check_same(run(bench, wanted), waiting(wanted))
    early = [name for name, at in bench.generator.requested_at.items() if at < 50]
    assert len(early) > len(bench.generator.requests[0].expansions[0].branches) == 2


@pytest.mark.parametrize("strategy", ["beam_search", "dvts"])
def test_steps_that_arrive_together_go_on_in_one_call(strategy: str) -> None:
    wanted = {"strategy": strategy, "n": 16, "m": 4, "max_step_tokens": 8}
    one = waiting(wanted).cost.expand_calls
    together = timed_bench(lambda name: 1.0 + 0.01 * (name[-1] % 4), scoring_s=0.0)
    assert run(together, wanted).cost.expand_calls == one
    scattered = timed_bench(lambda name: 1.0 + 0.2 * (name[-1] % 4), scoring_s=0.0)
    assert run(scattered, wanted).cost.expand_calls <= 4 * one


@pytest.mark.parametrize("strategy", ["beam_search", "dvts"])
def test_the_kv_of_a_search_is_measured_level_by_level(strategy: str) -> None:
    wanted = {"strategy": strategy, "n": 8, "m": 2, "kv_usage": True}
    outcome, other = run(timed_bench(random_delays(1)), wanted), waiting(wanted)
    check_same(outcome, other)
    varying = VARYING - {"expand_calls"}
    assert outcome.cost.model_dump(exclude=varying) == other.cost.model_dump(exclude=varying)
