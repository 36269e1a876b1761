"""One search from start to end: calls, events, limits, failures, cancellation."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from search_fakes import PROMPT, Bench, broken, reward_of, search

from search.errors import GeneratorError, LimitReached, PromptTooLong, ScorerError
from search.ports import Child, ChildGroup, ExpandRequest, Lane, StopCondition
from search.run import runner
from search.run.environment import Fallback
from search.run.report import (
    EventSink,
    RoundStarted,
    SearchEvent,
    SearchFinished,
    SearchOutcome,
    SearchStarted,
    StepScored,
    StepsPruned,
)
from search.run.results import joined
from search.snapshot import tree_as_json
from search.tree import NodeStatus, Step, StepEnd

BEAM = {"strategy": "beam_search", "n": 8, "m": 2, "max_step_tokens": 8}
BEST = {"strategy": "best_of_n", "n": 6}
ALL = [{"strategy": "greedy"}, {"strategy": "self_consistency", "n": 5}, BEST, BEAM]
SECONDS = 60.0


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> EventSink:
    """Has ``SECONDS`` pass in the event loop once there is an answer, whenever that is."""

    def on_event(event: SearchEvent) -> None:
        if isinstance(event, StepScored) and event.terminal:
            monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time.monotonic() + SECONDS)

    return on_event


def error_of(settings: dict[str, Any], prepare: Callable[[Bench], None], error: type[Exception], **options: Any) -> str:
    """Runs a search that must fail and clean up, and returns the error's message."""

    async def main() -> str:
        bench = Bench()
        prepare(bench)
        with pytest.raises(error) as caught:
            await bench.search(settings, **options)
        bench.check_idle()
        return str(caught.value)

    return asyncio.run(main())


def with_bench(
    settings: dict[str, Any], prepare: Callable[[Bench], None], **options: Any
) -> tuple[Bench, SearchOutcome]:
    async def main() -> tuple[Bench, SearchOutcome]:
        bench = Bench()
        prepare(bench)
        outcome = await bench.search(settings, **options)
        bench.check_idle()
        return bench, outcome

    return asyncio.run(main())


@pytest.mark.parametrize("settings", ALL, ids=lambda settings: settings["strategy"])
def test_every_complete_step_is_one_event(settings: dict[str, Any]) -> None:
    bench, outcome = search(settings)
    first, *steps, last = [event for event in bench.events if not isinstance(event, RoundStarted)]
    assert first == SearchStarted("s1", settings["strategy"], 7)
    assert last == SearchFinished(outcome)
    scored = [event for event in steps if isinstance(event, StepScored)]
    pruned = [event for event in steps if isinstance(event, StepsPruned)]
    assert len(scored) + len(pruned) == len(steps)
    assert sorted(event.node for event in scored) == sorted(node.id for node in bench.tree.nodes)
    given_up = sorted(node.id for node in bench.tree.nodes if node.status is NodeStatus.PRUNED)
    assert sorted(node_id for event in pruned for node_id in event.pruned) == given_up
    for event in pruned:  # only what was scored before is given up
        before = steps[: steps.index(event)]
        assert set(event.pruned) <= {each.node for each in before if isinstance(each, StepScored)}
    for event in scored:
        node = bench.tree[event.node]
        assert (event.text, event.reward) == (node.step.text if node.step else None, node.reward)
        assert event.terminal is (node.status is NodeStatus.TERMINAL)
        assert node.step is not None
        assert (event.step_tokens, event.logprob) == (len(node.step.token_ids), node.step.logprob)
        assert event.prefix_tokens == len(PROMPT) + node.path_tokens - event.step_tokens
        assert event.cached_tokens is None or 0 <= event.cached_tokens <= event.prefix_tokens
    assert scored[-1].tokens == outcome.cost.generated_tokens
    assert scored[-1].nodes == outcome.cost.nodes


@pytest.mark.parametrize("settings", ALL, ids=lambda settings: settings["strategy"])
def test_costs_match_the_calls_of_the_ports(settings: dict[str, Any]) -> None:
    bench, outcome = search(settings)
    stats, tree = outcome.cost, bench.tree
    assert outcome.stop_reason == "finished"
    assert not outcome.partial
    assert not outcome.degraded
    assert stats.generated_tokens == bench.generator.tokens
    assert stats.nodes == len(tree)
    assert stats.prm_calls == len(bench.scorer.requests)
    assert stats.scored_steps == sum(item.unscored for call in bench.scorer.requests for item in call.items)
    expansions = [expansion for call in bench.generator.requests for expansion in call.expansions]
    assert stats.prefix_tokens == sum(len(e.prefix) * len(e.branches) for e in expansions)
    assert stats.cached_tokens == sum((len(e.prefix) - 1) * len(e.branches) for e in expansions)
    assert stats.root_cached_tokens == len(PROMPT) - 1
    assert stats.answer_tokens == len(outcome.selection.node.token_ids)
    assert outcome.text == outcome.selection.node.text


def test_a_prefix_is_the_prompt_and_the_path() -> None:
    bench, _ = search(BEAM)
    for call in bench.generator.requests:
        for expansion in call.expansions:
            assert expansion.prefix == (*PROMPT, *bench.tree[expansion.parent].token_ids)


@pytest.mark.parametrize("strategy", ["best_of_n", "self_consistency"])
def test_finished_steps_are_scored_if_the_others_hang(strategy: str, hurry: EventSink) -> None:
    """Steps wait to be scored together with others, but only for a limited time: otherwise a deadline would find no
    answer."""

    async def main() -> SearchOutcome:
        bench = Bench()
        bench.generator.stall_after = 3
        settings = {"strategy": strategy, "n": 12, "budget": {"seconds": SECONDS}}
        return await bench.search(settings, on_event=hurry)

    outcome = asyncio.run(main())
    assert outcome.stop_reason == "seconds"
    assert 1 <= len(outcome.tree.terminals) <= 3


def test_whole_solutions_become_chains_scored_in_one_item_each() -> None:
    bench, outcome = search(BEST)
    (call,) = bench.generator.requests
    assert (call.stop_condition, call.lane) == (StopCondition.SOLUTION, Lane.FIRST_STEPS)
    items = [item for request in bench.scorer.requests for item in request.items]
    assert len(items) == 6
    assert all(item.unscored == len(item.steps) for item in items)
    for end in outcome.tree.with_status(NodeStatus.TERMINAL):
        texts = [step.text for step in end.steps]
        assert end.rewards == [reward_of(texts[: index + 1]) for index in range(len(texts))]


def test_greedy_and_self_consistency_request_no_rewards() -> None:
    for settings in ALL[:2]:
        bench, outcome = search(settings)
        assert bench.scorer.requests == []
        assert outcome.selection.score is None
    assert bench.generator.requests[0].sampling.temperature == 0.8
    assert search({"strategy": "greedy"})[0].generator.requests[0].sampling.temperature == 0.0


def test_a_solution_deeper_than_allowed_keeps_its_whole_text_in_fewer_nodes() -> None:
    _, whole = search(BEST)
    _, short = search(BEST | {"max_depth": 2})
    assert max(node.depth for node in short.tree.nodes) == 2
    assert {n.text for n in short.tree.with_status(NodeStatus.TERMINAL)} == {
        n.text for n in whole.tree.with_status(NodeStatus.TERMINAL)
    }


def test_children_are_scored_without_waiting_for_their_siblings() -> None:
    async def main() -> None:
        bench = Bench()
        bench.generator.stall_after = 4
        scored = asyncio.Event()
        running = asyncio.create_task(
            bench.search(BEAM, on_event=lambda event: scored.set() if isinstance(event, StepScored) else None)
        )
        await scored.wait()
        await bench.generator.stalled.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        bench.check_idle()

    asyncio.run(main())


@pytest.mark.parametrize("settings", [{"strategy": "best_of_n"}, {"strategy": "beam_search", "m": 4, "max_depth": 1}])
@pytest.mark.parametrize("given_back", [0, 8])
def test_a_scorer_call_waits_until_as_many_have_arrived_as_are_outstanding(
    settings: dict[str, Any], given_back: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SCORE_BATCH_WAIT_S", 60.0)

    class InFours:
        """Writes four children at a time, and gives the last ones back at first."""

        async def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
            [item] = request.expansions
            children = [bench.generator._write(request, item, branch) for branch in item.branches]
            written, unwritten = children[: 16 - given_back], children[16 - given_back :]
            yield ChildGroup(tuple(child._replace(steps=()) for child in unwritten))
            for first in range(0, len(written), 4):
                for _ in range(20):  # what can be scored by now is
                    await asyncio.sleep(0)
                yield ChildGroup(tuple(written[first : first + 4]))

    bench = Bench()
    bench.through = lambda generator: InFours()
    outcome = asyncio.run(bench.search(settings | {"n": 16, "merge_siblings": False}))
    assert outcome.cost.given_back_branches == given_back
    assert [len(request.items) for request in bench.scorer.requests] == ([4, 4] if given_back else [8, 4, 4])


@pytest.mark.parametrize("settings", ALL, ids=lambda settings: settings["strategy"])
def test_every_step_has_log_probabilities_on_request(settings: dict[str, Any]) -> None:
    _, plain = search(settings)
    bench, asked = search(settings | {"logprobs": True})
    assert all(request.logprobs for request in bench.generator.requests)
    steps = [node.step for node in asked.tree.nodes if node.step is not None]
    assert all(step.logprob == -sum(step.token_ids) / 99 for step in steps)
    assert [step._replace(logprob=None) for step in steps] == [node.step for node in plain.tree.nodes if node.step]


def test_repeated_and_unknown_children_change_nothing() -> None:
    _, plain = search(BEAM)

    def repeat(bench: Bench) -> None:
        bench.generator.repeat = True

    _, outcome = with_bench(BEAM, repeat)
    assert tree_as_json(outcome.tree) == tree_as_json(plain.tree)
    assert outcome.cost.generated_tokens == plain.cost.generated_tokens
    assert outcome.cost.scored_steps == plain.cost.scored_steps


@pytest.mark.parametrize(
    ("limits", "options"),
    [({"max_path_tokens": 12}, {}), ({}, {"context_tokens": len(PROMPT) + 12})],
    ids=["path", "context"],
)
def test_no_path_exceeds_its_token_limit_or_the_context(limits: dict[str, Any], options: dict[str, Any]) -> None:
    for settings in ALL:
        bench, outcome = search(settings | limits, **options)
        assert outcome.stop_reason == "finished"
        for node in bench.tree.nodes:
            assert len(node.token_ids) <= 12
            if len(node.token_ids) == 12:
                assert node.status in (NodeStatus.TERMINAL, NodeStatus.OPEN)
        for node in bench.tree.with_status(NodeStatus.TERMINAL):
            assert node.step is not None
            ended = node.step.end is not StepEnd.DELIMITER
            assert ended or len(node.token_ids) == 12


def test_a_prompt_as_long_as_the_context_is_refused() -> None:
    message = error_of(BEAM, lambda bench: None, PromptTooLong, context_tokens=len(PROMPT))
    assert message == "the prompt has 5 tokens, the context holds 5"


def test_a_search_out_of_tokens_answers_with_its_candidates() -> None:
    _, outcome = search(BEAM | {"budget": {"tokens": 100}})
    assert (outcome.stop_reason, outcome.partial) == ("tokens", False)
    assert outcome.cost.generated_tokens <= 100
    assert outcome.selection.node.status is NodeStatus.TERMINAL


def test_a_search_out_of_tokens_without_a_finished_path_answers_with_the_best_open_one() -> None:
    for seed in range(20):
        _, outcome = search({"strategy": "beam_search", "n": 2, "m": 1, "seed": seed, "budget": {"tokens": 1}})
        [node] = outcome.tree.nodes
        if node.status is NodeStatus.OPEN:
            assert outcome.selection.node is node
            assert outcome.selection.answer is None
            assert (outcome.stop_reason, outcome.partial) == ("tokens", True)
            return
    pytest.fail("no seed has a step of one token")


def test_a_search_out_of_time_answers_with_what_it_has(hurry: EventSink) -> None:
    def stall(bench: Bench) -> None:
        bench.generator.stall_after = 5

    _, outcome = with_bench(BEST | {"budget": {"seconds": SECONDS}}, stall, on_event=hurry)
    assert (outcome.stop_reason, outcome.partial) == ("seconds", True)
    assert any(node.status is NodeStatus.FAILED for node in outcome.tree.nodes)


@pytest.mark.parametrize("port", ["generator", "scorer"])
def test_a_search_out_of_time_with_nothing_raises_a_typed_error(port: str) -> None:
    def stall(bench: Bench) -> None:
        if port == "generator":
            bench.generator.stall_after = 0
        else:
            bench.scorer.stall = True

    message = error_of(BEAM | {"budget": {"seconds": 0.1}}, stall, LimitReached)
    assert "the limit of 0.1 seconds was reached" in message


def test_the_ports_get_the_deadline() -> None:
    bench, _ = search(BEAM | {"budget": {"seconds": 50}})
    assert all(0 < call.deadline_s <= 50 for call in [*bench.generator.requests, *bench.scorer.requests])
    bench, _ = search(BEAM)
    assert all(math.isfinite(call.deadline_s) for call in bench.generator.requests)


SPOILED = {
    "unreachable": (broken, "unreachable"),
    "nan": (lambda rewards: [[math.nan] * len(row) for row in rewards], "fake-prm returned the reward nan"),
    "above": (lambda rewards: [[1.5] * len(row) for row in rewards], "fake-prm returned the reward 1.5"),
    "below": (lambda rewards: [[-3.0] * len(row) for row in rewards], "fake-prm returned the reward -3.0"),
    "none": (lambda rewards: [[None] * len(row) for row in rewards], "fake-prm returned the reward None"),
    "rows": (lambda rewards: rewards[:-1], "fake-prm returned rewards for"),
    "steps": (lambda rewards: [[*row, 0.5] for row in rewards], "fake-prm returned 2 rewards for 1 steps"),
}


@pytest.mark.parametrize("how", SPOILED)
def test_without_usable_rewards_the_search_is_degraded_or_fails(how: str) -> None:
    spoil, message = SPOILED[how]

    def prepare(bench: Bench) -> None:
        bench.scorer.spoil = spoil

    _, outcome = with_bench(BEAM, prepare, fallback=Fallback.NEUTRAL)
    assert outcome.degraded
    assert {node.reward for node in outcome.tree.nodes} == {0.5}
    assert message in error_of(BEAM, prepare, ScorerError, fallback=Fallback.FAIL)


def test_a_failing_generator_leaves_a_partial_answer() -> None:
    def prepare(bench: Bench) -> None:
        bench.generator.fail_after = 3

    _, outcome = with_bench(BEST, prepare)
    assert (outcome.stop_reason, outcome.partial) == ("generator_error", True)
    assert 1 <= len(outcome.tree.with_status(NodeStatus.TERMINAL)) <= 3
    assert outcome.cost.scored_steps == sum(node.reward is not None for node in outcome.tree.nodes)


def test_a_generator_that_fails_before_any_candidate_is_an_error() -> None:
    def prepare(bench: Bench) -> None:
        bench.generator.fail_after = 0

    assert error_of(BEST, prepare, GeneratorError) == "no replica is left"


def test_a_complete_stream_is_not_cancelled() -> None:
    for settings in ALL:
        bench, _ = search(settings)
        assert bench.generator.ended == len(bench.generator.requests)


def test_a_generator_that_fails_after_the_last_child_does_no_harm() -> None:
    def prepare(bench: Bench) -> None:
        bench.generator.break_at_end = True

    _, outcome = with_bench(BEAM, prepare)
    assert outcome.stop_reason == "finished"


def test_a_stream_that_ends_too_early_is_a_generator_error() -> None:
    def prepare(bench: Bench) -> None:
        bench.generator.forget = 2

    _, outcome = with_bench(BEST, prepare)
    assert outcome.stop_reason == "generator_error"
    assert len(outcome.tree.with_status(NodeStatus.FAILED)) == 2


def test_exceptions_of_a_listener_reach_the_caller_unchanged() -> None:
    def gone(event: object) -> None:
        if isinstance(event, StepScored):
            raise ConnectionError("the client has left")

    assert error_of(BEAM, lambda bench: None, ConnectionError, on_event=gone) == "the client has left"


def test_without_a_seed_one_is_drawn_and_reported() -> None:
    _, first = search(BEAM | {"seed": None})
    _, again = search(BEAM | {"seed": first.seed}, order=5)
    assert tree_as_json(first.tree) == tree_as_json(again.tree)


def test_a_whole_solution_ends_at_its_first_answer() -> None:
    """Text after the answer belongs to the same step; the search does not continue below it."""
    written = (
        Step((1,), "one\n\n", StepEnd.DELIMITER),
        Step((2,), "so \\boxed{3}\n\n", StepEnd.DELIMITER),
        Step((3, 4), "let me check it", StepEnd.END_OF_SEQUENCE),
    )

    def prepare(bench: Bench) -> None:
        bench.generator._write = lambda request, expansion, branch: Child(  # type: ignore[method-assign]
            expansion.parent, branch.index, written, 0
        )

    _, outcome = with_bench({"strategy": "best_of_n", "n": 1}, prepare)
    first, second = outcome.tree.nodes
    assert first.status is NodeStatus.OPEN
    assert second.status is NodeStatus.TERMINAL
    assert second.step == Step((2, 3, 4), written[1].text + written[2].text, StepEnd.END_OF_SEQUENCE)
    assert outcome.selection.answer == "3"


def test_a_box_in_a_thought_ends_no_path() -> None:
    texts = ("<think>one\n\n", "maybe \\boxed{3}\n\n", "no</think>\n\n", "so \\boxed{4}\n\n", "done")
    written = tuple(
        Step((token,), text, StepEnd.END_OF_SEQUENCE if text == "done" else StepEnd.DELIMITER)
        for token, text in enumerate(texts)
    )

    def prepare(bench: Bench) -> None:
        bench.generator._write = lambda request, expansion, branch: Child(  # type: ignore[method-assign]
            expansion.parent, branch.index, written, 0
        )

    _, outcome = with_bench({"strategy": "best_of_n", "n": 1}, prepare)
    assert [node.status is NodeStatus.TERMINAL for node in outcome.tree.nodes] == [False, False, False, True]
    assert outcome.selection.answer == "4"


def test_joined_steps_keep_the_log_probabilities_of_their_tokens() -> None:
    known = [
        Step((1,), "a\n\n", StepEnd.DELIMITER, -1.0, (-1.0,)),
        Step((2, 3), "b", StepEnd.LENGTH, -0.5, (-0.5, 0.0)),
    ]
    [one] = joined(known, 1)
    assert (one.logprob, one.token_logprobs) == (-1.5, (-1.0, -0.5, 0.0))
    [unknown] = joined([known[0], known[1]._replace(logprob=None, token_logprobs=None)], 1)
    assert (unknown.logprob, unknown.token_logprobs) == (None, None)
