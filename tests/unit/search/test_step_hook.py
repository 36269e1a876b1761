"""A step hook between writing and scoring: what it may do with a step, how it fails, and that the tree stays the same
for any order of arrival."""

import asyncio
import json
import pickle
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import PROMPT, Bench, Turns, seeded_rng
from search_settings import BUDGETS, LIMITS, SEARCHES, VARIETY

from search.errors import GeneratorError, HookError, HookFailure, LimitReached
from search.run.report import SearchOutcome, StepScored
from search.run.step_hook import END_PATH, MAX_TEXT_CHARS, HookCall, HookFallback, HookFunction, StepHook
from search.snapshot import TreeView, restore_tree, save_tree, tree_as_json, tree_of_view
from search.tools.fair_slots import Requester
from search.training_data import ended_paths, path_text
from search.tree import HookEffect, NodeStatus, SearchTree

BEAM: dict[str, Any] = {"strategy": "beam_search", "n": 12, "m": 3}


def encode(text: str) -> list[int]:
    return [1000 + ord(character) for character in text]


def hook_of(function: HookFunction, **options: Any) -> StepHook:
    return StepHook(function, encode, **options)


class TextHook:
    """Decides by the texts alone, after a random time; records what it is asked."""

    def __init__(self, order: int = 0, turns: Turns | None = None) -> None:
        self.calls: list[tuple[tuple[str, ...], str]] = []
        self._turns = turns or Turns(random.Random(order))

    async def __call__(self, question: str, path: Sequence[str], step: str) -> Any:
        assert question == "What is it?"
        self.calls.append((tuple(path), step))
        await self._turns.take()
        choice = seeded_rng("hook", tuple(path), step).randint(0, 5)
        return END_PATH if choice == 0 else None if choice < 3 else f"[{choice} is \\boxed{{9}}]\n"


def search(
    wanted: dict[str, Any], function: HookFunction, order: int = 0, variety: int | None = None, **options: Any
) -> tuple[Bench, SearchOutcome]:
    """Runs a whole search with a hook."""

    async def main() -> tuple[Bench, SearchOutcome]:
        bench = Bench(order, variety=variety)
        hook = hook_of(function, **options)
        outcome = await bench.search(wanted, step_hook=hook)
        bench.check_idle()
        assert hook.check_integrity() == []
        return bench, outcome

    return asyncio.run(main())


def replies(reply: Any) -> Callable[[str, Sequence[str], str], Awaitable[Any]]:
    async def function(question: str, path: Sequence[str], step: str) -> Any:
        return reply

    return function


@settings(max_examples=60, deadline=None)
@given(
    wanted=SEARCHES, limits=LIMITS, budget=BUDGETS, order=st.integers(1, 1 << 20), variety=VARIETY, merge=st.booleans()
)
def test_a_hook_that_decides_by_the_texts_gives_the_same_tree_in_any_order(
    wanted: dict[str, Any], limits: dict[str, Any], budget: dict[str, int], order: int, variety: int | None, merge: bool
) -> None:
    whole = wanted | limits | {"budget": budget, "merge_siblings": merge}
    try:
        bench, first = search(whole, TextHook(0), 0, variety)
    except LimitReached:
        return
    _, second = search(whole, TextHook(order), order, variety, max_calls=2)
    assert tree_as_json(first.tree) == tree_as_json(second.tree)
    assert first.selection[1:4] == second.selection[1:4]
    varying = {"seconds", "sample_seconds", "prm_calls"}
    assert first.cost.model_dump(exclude=varying) == second.cost.model_dump(exclude=varying)
    assert bench.generator.tokens <= budget.get("tokens", 1 << 30)
    assert bench.generator.tokens == first.cost.generated_tokens
    longest = max((node.path_tokens for node in bench.tree.nodes), default=0)
    assert longest <= whole.get("max_path_tokens", 1000 - len(PROMPT))


@settings(max_examples=50, deadline=None)
@given(wanted=SEARCHES, limits=LIMITS, share=st.floats(0, 1), order=st.integers(1, 1 << 20), variety=VARIETY)
def test_a_cancelled_search_leaves_no_call_and_resumes_without_asking_about_a_kept_step(
    wanted: dict[str, Any], limits: dict[str, Any], share: float, order: int, variety: int | None
) -> None:
    whole = wanted | limits

    async def main(cancel_at: int | None) -> tuple[int, Bench, list[Any]]:
        def at(turn: int) -> None:
            if turn == cancel_at:
                running.cancel()

        turns = Turns(random.Random(order), at)
        bench, function = Bench(order, turns, variety), TextHook(order, turns)
        hook = hook_of(function)
        running = asyncio.create_task(bench.search(whole, step_hook=hook))
        with suppress(asyncio.CancelledError):
            await running
        bench.check_idle()
        assert hook.check_integrity() == []
        assert asyncio.all_tasks() == {asyncio.current_task()}
        kept = [(tuple(bench.tree.step_texts(node)[:-1]), node) for node in bench.tree.nodes if node.hook is not None]
        return turns.count, bench, kept

    async def resume(saved: str, kept: list[Any]) -> SearchTree:
        tree, function = restore_tree(json.loads(saved)), TextHook(order + 1)
        await Bench(order + 1, variety=variety).search(whole, tree=tree, step_hook=hook_of(function))
        if variety is None:  # otherwise other nodes have the same texts
            assert not {(path, node.written_step.text) for path, node in kept} & {*function.calls}
        return tree

    turns, undisturbed, _ = asyncio.run(main(None))
    _, cut, kept = asyncio.run(main(1 + int(share * (turns - 1))))
    resumed = asyncio.run(resume(json.dumps(save_tree(cut.tree)), kept))
    assert tree_as_json(resumed) == tree_as_json(undisturbed.tree)


def test_generator_and_reward_model_read_the_added_text_and_nothing_is_written_ahead() -> None:
    bench, outcome = search(BEAM, replies("[noted]\n"))
    below = [part for request in bench.generator.requests for part in request.expansions if part.parent]
    assert below
    for part in below:
        assert list(part.prefix) == [*PROMPT, *bench.tree[part.parent].token_ids]
        assert part.prefix[-len(encode("[noted]\n")) :] == tuple(encode("[noted]\n"))
    assert all(request.ahead is None for request in bench.generator.requests)
    for item in (item for request in bench.scorer.requests for item in request.items):
        assert all(text.endswith("[noted]\n") for text in item.steps[:-1])
    assert outcome.cost.hook_tokens == outcome.cost.hook_calls * len("[noted]\n") > 0
    assert outcome.cost.generated_tokens == bench.generator.tokens
    assert outcome.cost.answer_tokens == sum(
        len(node.written_step.token_ids) for node in outcome.selection.node.path if node.written_step
    )


def test_the_tree_the_events_and_the_training_data_keep_the_texts_apart() -> None:
    bench, outcome = search(BEAM, TextHook())
    view = TreeView.model_validate(tree_as_json(outcome.tree))
    added = [(node, node.hook) for node in view.nodes if node.hook and node.hook.text]
    assert added
    for node, hook in added:
        live = outcome.tree[node.id]
        assert live.step is not None
        assert live.step.text == (node.text or "") + hook.text
        assert node.tokens + len(hook.token_ids) == len(live.step.token_ids)
    for path in ended_paths(view.nodes):
        assert "[" not in path_text(path)
    scored = {event.node: event for event in bench.events if isinstance(event, StepScored)}
    assert all(scored[node.id].text == node.text and scored[node.id].hook for node, _ in added)
    again = tree_of_view(view, 7, merges_siblings=True)
    assert [again.answer_of(again[node.id]) for node in outcome.tree.terminals] == [
        outcome.tree.answer_of(node) for node in outcome.tree.terminals
    ]


def test_an_answer_in_an_added_text_is_not_the_models() -> None:
    bench, outcome = search(BEAM | {"max_depth": 3}, replies(r"It is \boxed{77}. "))
    assert all(bench.tree.answer_of(node) != "77" for node in bench.tree.terminals)
    assert r"\boxed{77}" in outcome.text or outcome.selection.node.depth == 1


def test_a_path_that_the_hook_ends_may_answer() -> None:
    bench, outcome = search(BEAM, replies(END_PATH))
    assert {node.depth for node in bench.tree.nodes} == {1}
    assert all(node.status in (NodeStatus.TERMINAL, NodeStatus.REPEATED) for node in bench.tree.nodes)
    assert outcome.cost.hook_calls == sum(node.hook == HookEffect(ends=True) for node in bench.tree.nodes)


def test_paths_that_the_hook_ends_take_no_place_of_a_solution() -> None:
    async def end_some(question: str, path: Sequence[str], step: str) -> Any:
        return END_PATH if seeded_rng("end", step).random() < 0.5 else None

    bench, outcome = search(BEAM, end_some)
    tree, depth = bench.tree, bench.tree.deepest
    ended = [node for node in tree.terminals if node.hook and node.hook.ends]
    assert sum(node.count for node in ended) >= BEAM["n"]
    assert tree.ended(depth) == sum(node.count for node in tree.terminals if node not in ended)
    assert (outcome.selection.answer is None) == all(tree.answer_of(node) is None for node in tree.terminals)


def test_a_text_that_leaves_no_token_for_a_step_is_dropped_and_ends_the_path() -> None:
    bench, outcome = search(BEAM | {"max_path_tokens": 30}, replies("x" * 25))
    hooked = [node for node in bench.tree.nodes if node.hook]
    assert all(node.path_tokens <= 30 for node in bench.tree.nodes)
    dropped = [node for node in hooked if node.hook == HookEffect(ends=True)]
    assert dropped
    assert all(node.status is NodeStatus.TERMINAL for node in dropped)
    assert outcome.cost.hook_tokens == 25 * (len(hooked) - len(dropped))


def test_siblings_of_the_same_text_are_seen_once_and_all_carry_the_text() -> None:
    function = TextHook()
    bench, outcome = search(BEAM, function, variety=3)
    assert len({*function.calls}) == len(function.calls) == outcome.cost.hook_calls
    assert outcome.cost.repeated_steps > 0
    for node in bench.tree.nodes:
        if node.repeats is not None:
            assert node.hook == node.repeats.hook
            assert node.ends == node.repeats.ends


async def test_at_most_as_many_calls_run_at_once_as_the_hook_allows() -> None:
    running: list[int] = []

    async def slow(question: str, path: Sequence[str], step: str) -> None:
        running.append(hook.running)
        await asyncio.sleep(0)

    hook = hook_of(slow, max_calls=3)
    await Bench().search(BEAM, step_hook=hook)
    assert max(running) == 3


async def test_the_hook_is_asked_in_the_turns_of_the_search() -> None:
    hook, asked = hook_of(replies(None)), list[Requester]()
    effect = hook.effect

    async def noted(question: str, path: Sequence[str], step: str, requester: Requester) -> HookEffect:
        asked.append(requester)
        return await effect(question, path, step, requester)

    hook.effect = noted  # type: ignore[method-assign]
    await Bench().search(BEAM, step_hook=hook, cache_salt="key", flex=True)
    assert {*asked} == {Requester("key", "s1", flex=True)}


async def test_a_search_with_many_steps_does_not_keep_the_hook_from_another() -> None:
    seen: list[str] = []

    async def slow(question: str, path: Sequence[str], step: str) -> None:
        seen.append(question)
        await asyncio.sleep(0)

    hook = hook_of(slow, max_calls=1)
    async with asyncio.TaskGroup() as group:
        for owner, number in (("busy", 30), ("other", 2)):
            for _ in range(number):
                group.create_task(hook.effect(owner, (), "step", Requester(owner, "search")))
    assert seen[:5] == ["busy", "busy", "other", "busy", "other"]
    assert len(seen) == 32


async def raising(question: str, path: Sequence[str], step: str) -> str:
    raise KeyError(step)


async def hanging(question: str, path: Sequence[str], step: str) -> str:
    await asyncio.Event().wait()
    raise AssertionError


async def cancelling_itself(question: str, path: Sequence[str], step: str) -> str:
    raise asyncio.CancelledError


FAILING = [
    (raising, HookFailure.RAISED),
    (cancelling_itself, HookFailure.RAISED),
    (hanging, HookFailure.LATE),
    (replies(7), HookFailure.INVALID),
    (replies("x" * (MAX_TEXT_CHARS + 1)), HookFailure.INVALID),
]


@pytest.mark.parametrize(("function", "kind"), FAILING)
def test_a_hook_that_fails_leaves_the_steps_as_they_are(function: HookFunction, kind: HookFailure) -> None:
    calls: list[HookCall] = []
    wanted = BEAM | {"max_depth": 3}
    _, plain = search(wanted, replies(None))
    bench, outcome = search(wanted, function, timeout_s=0.001, observe=calls.append)
    assert outcome.degraded
    assert outcome.cost.hook_failures == outcome.cost.hook_calls == len(calls) > 0
    assert {call.result for call in calls} == {kind.value}
    assert all(call.error and call.error.kind is kind for call in calls)
    failed = [node for node in bench.tree.nodes if node.hook]
    assert all(node.hook == HookEffect(failed=True) for node in failed)
    texts = [(node["id"], node["text"], node["status"]) for node in tree_as_json(plain.tree)["nodes"]]
    assert [(node["id"], node["text"], node["status"]) for node in tree_as_json(outcome.tree)["nodes"]] == texts
    assert restore_tree(save_tree(outcome.tree)).degraded


@pytest.mark.parametrize(("function", "kind"), FAILING)
async def test_a_hook_whose_failure_counts_ends_the_search(function: HookFunction, kind: HookFailure) -> None:
    bench, hook = Bench(), hook_of(function, timeout_s=0.001, fallback=HookFallback.FAIL)
    with pytest.raises(HookError) as caught:
        await bench.search(BEAM, step_hook=hook)
    assert caught.value.kind is kind
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    bench.check_idle()
    assert hook.check_integrity() == []
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_text_that_cannot_be_encoded_is_a_failure() -> None:
    def refuse(text: str) -> list[int]:
        raise ValueError(text)

    async def main() -> SearchOutcome:
        return await Bench().search(BEAM, step_hook=StepHook(replies("\ud800"), refuse))

    assert asyncio.run(main()).cost.hook_failures > 0


def test_the_hook_is_not_called_for_whole_solutions_and_the_cost_says_so() -> None:
    bench, outcome = search({"strategy": "best_of_n", "n": 5}, raising)
    assert outcome.cost.hook_calls == 0
    assert outcome.cost.unhooked_steps == sum(node.repeats is None for node in bench.tree.nodes)
    assert not outcome.degraded


def test_steps_that_arrived_before_the_generator_failed_are_still_seen_and_scored() -> None:
    async def main() -> Bench:
        bench = Bench()
        bench.generator.fail_after = 15
        with suppress(GeneratorError):
            await bench.search(BEAM, step_hook=hook_of(TextHook()))
        return bench

    bench = asyncio.run(main())
    written = [node for node in bench.tree.nodes if node.step and not node.ends]
    assert all(node.hook is not None for node in written if node.status is NodeStatus.OPEN)


def test_a_hook_sees_the_path_as_the_reward_model_reads_it() -> None:
    function = TextHook()
    bench, _ = search(BEAM, function)
    paths = {(*item.steps,) for request in bench.scorer.requests for item in request.items}
    seen = {path for path, _ in function.calls if path}
    assert seen
    assert seen <= paths
