"""Searches whose generator thinks in one piece before each solution: thoughts are no steps, for every strategy."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import PROMPT, Bench, ThinkingGenerator
from search_settings import BUDGETS, LIMITS, SEARCHES

from search.errors import LimitReached
from search.ports import Child, ExpandItem, ExpandRequest
from search.run.report import SearchEvent, SearchOutcome
from search.settings import parse_search
from search.snapshot import TreeView, replay_of, restore_tree, save_tree, tree_as_json, tree_of_view
from search.training_data import mean_entropy
from search.tree import Prefill, SearchTree, Step, StepEnd, Thought

CONTEXT = 90
"""The generator's context, tokens."""
READ = 70
"""Longest prompt and solution that the scorer reads, tokens."""
OPENED = st.sampled_from(["", "<think>\n"])
THINKING = st.fixed_dictionaries({"max_thinking_tokens": st.integers(1, 14)})
BUDGET = st.builds(
    lambda budget, thinking: budget | thinking,
    BUDGETS,
    st.fixed_dictionaries({}, optional={"thinking": st.integers(0, 14)}),
)


def think(
    wanted: dict[str, Any], order: int = 0, tree: SearchTree | None = None, **options: Any
) -> tuple[Bench, SearchOutcome]:
    async def main() -> tuple[Bench, SearchOutcome]:
        bench = Bench(order)
        bench.generator = ThinkingGenerator(order)
        grown = {} if tree is None else {"tree": tree}
        surroundings = {"thinking_context": CONTEXT, "context_tokens": READ}
        outcome = await bench.search(wanted, **(surroundings | grown | options))
        assert outcome.tree.check_integrity() == []
        assert bench.generator.live == set()
        return bench, outcome

    return asyncio.run(main())


@settings(max_examples=60, deadline=None)
@given(wanted=SEARCHES, limits=LIMITS, thinking=THINKING, budget=BUDGET, opened=OPENED, order=st.integers(1, 1 << 20))
def test_no_thought_is_scored_or_answers_and_every_limit_holds(
    wanted: dict[str, Any],
    limits: dict[str, Any],
    thinking: dict[str, Any],
    budget: dict[str, int],
    opened: str,
    order: int,
) -> None:
    whole = wanted | limits | thinking | {"budget": budget}
    try:
        bench, outcome = think(whole, open_thought=opened)
    except LimitReached:
        return
    tree = outcome.tree
    _, again = think(whole, order, open_thought=opened)
    assert tree_as_json(again.tree) == tree_as_json(tree)
    assert again.selection.node.id == outcome.selection.node.id
    for item in (item for request in bench.scorer.requests for item in request.items):
        assert not any("think" in text or "guess" in text for text in item.steps)
        assert item.steps[-1]
    for node in tree.nodes:
        if (step := node.step) is None:
            continue
        most = min(thinking["max_thinking_tokens"], budget.get("thinking", 1 << 30))
        assert bool(step.thought.tokens) <= (node.depth == 1)
        assert step.thinking_tokens <= most
        assert node.path_tokens - node.thought_tokens <= min(limits["max_path_tokens"], READ - len(PROMPT))
        assert node.thought_tokens == sum(each.thought.tokens for each in node.steps)
        if step.thought.characters == len(step.text) and step.text:
            assert node.ends
            assert node.reward in (0.0, None)
        assert tree.answer_of(node) != "9"
        assert tree.thinking_of(node) + tree.solution_of(node) == node.text or "</think>" in node.text
    assert bench.generator.tokens <= budget.get("tokens", 1 << 30)
    assert outcome.cost.generated_tokens <= bench.generator.tokens
    assert outcome.cost.thinking_tokens == sum(node.step.thinking_tokens for node in tree.nodes if node.step)


@settings(max_examples=60, deadline=None)
@given(wanted=SEARCHES, limits=LIMITS, thinking=THINKING, budget=BUDGET, at=st.integers(1, 30))
def test_a_search_that_is_resumed_anywhere_grows_the_same_tree(
    wanted: dict[str, Any], limits: dict[str, Any], thinking: dict[str, Any], budget: dict[str, int], at: int
) -> None:
    whole = wanted | limits | thinking | {"budget": budget}
    saved: list[str] = []
    grown, events = SearchTree(), 0

    def on_event(event: SearchEvent) -> None:
        nonlocal events
        events += 1
        if events == at:
            saved.append(json.dumps(save_tree(grown)))

    try:
        _, outcome = think(whole, tree=grown, on_event=on_event)
    except LimitReached:
        return
    for text in saved:
        _, again = think(whole, order=at, tree=restore_tree(json.loads(text)))
        assert tree_as_json(again.tree) == tree_as_json(outcome.tree)
        assert again.cost.thinking_tokens == outcome.cost.thinking_tokens
    _, replayed = think(whole, tree=replay_of(outcome.tree))
    assert tree_as_json(replayed.tree) == tree_as_json(outcome.tree)


@pytest.mark.parametrize("budget", [{}, {"thinking": 3}, {"thinking": 0}])
def test_a_budget_of_thinking_closes_every_thought_that_reaches_it(budget: dict[str, int]) -> None:
    bench, outcome = think({"strategy": "beam_search", "n": 8, "m": 2, "budget": budget, "max_thinking_tokens": 6})
    firsts = [node.step for node in outcome.tree.nodes if node.depth == 1 and node.step]
    cut = [step for step in firsts if step.thought.characters == len(step.text) and step.end is StepEnd.LENGTH]
    assert bool(cut) == (not budget)
    assert any(step.given for step in firsts) == bool(budget)
    [asked] = {request.thought for request in bench.generator.requests if request.thought}
    assert asked == (False, budget.get("thinking", 6), bool(budget), min(256, READ - len(PROMPT)))


def test_thinking_as_steps_asks_for_no_thought() -> None:
    for wanted in ({"thinking": "steps"}, {}):
        options: dict[str, Any] = {"thinking_context": 0} if not wanted else {}
        bench, _ = think({"strategy": "beam_search", "n": 4, "m": 2} | wanted, **options)
        assert {request.thought for request in bench.generator.requests} == {None}


def test_only_branches_below_the_root_think_and_reserve_it() -> None:
    settings = {"strategy": "beam_search", "n": 4, "m": 2, "max_step_tokens": 9, "max_thinking_tokens": 20}
    bench, _ = think(settings)
    requests: list[ExpandRequest] = bench.generator.requests
    assert len(requests) > 1
    for request in requests:
        below_root = all(not item.parent for item in request.expansions)
        assert (request.thought is not None) == below_root
        most = {branch.max_tokens for item in request.expansions for branch in item.branches}
        assert max(most) == (29 if below_root else 9)


def test_the_scorer_reads_thinking_if_it_is_told_to() -> None:
    bench, _ = think({"strategy": "beam_search", "n": 4, "m": 2}, scores_thinking=True)
    texts = [item.steps[0] for request in bench.scorer.requests for item in request.items]
    assert all(text.startswith("<think>guess") for text in texts)


def test_json_is_read_behind_the_thought_only() -> None:
    tree = SearchTree(extract_answer=lambda text: text)
    tree.answers_without_thought = True
    [node] = tree.request(tree.root, 1)
    text = 'so {"a": 1}</think>\n\n{"a": "<think>"}'
    tree.write(node, Step((1, 2), text, StepEnd.END_OF_SEQUENCE, thought=Thought(1, text.index("\n"))), ends=True)
    assert tree.answer_of(node) == '{"a": "<think>"}'


@pytest.mark.parametrize(
    ("opened", "prefill", "read"),
    [
        ("<think>", Prefill(("a\n\n",), "b"), Prefill((), "")),
        ("<think>", Prefill(("a\n\n", "b</think>\n\nc\n\n"), "d"), Prefill(("c\n\n",), "d")),
        ("", Prefill(("a\n\n",), "b <think>c"), Prefill(("a\n\n",), "b ")),
        ("", Prefill(("a\n\n",), "b"), Prefill(("a\n\n",), "b")),
    ],
)
def test_a_prefill_is_scored_without_its_thoughts(opened: str, prefill: Prefill, read: Prefill) -> None:
    tree = SearchTree()
    tree.open_thought, tree.prefill = opened, prefill
    assert tree.scored_prefill == prefill
    tree.scores_solutions = True
    assert tree.scored_prefill == read


def test_an_exported_tree_says_what_is_thinking_and_what_was_given() -> None:
    _, outcome = think({"strategy": "beam_search", "n": 8, "m": 2, "budget": {"thinking": 3}, "logprobs": True})
    exported = tree_as_json(outcome.tree)
    view = TreeView.model_validate(exported)
    assert json.loads(view.model_dump_json())["nodes"]
    for row, node in zip(exported["nodes"], view.nodes, strict=True):
        step = outcome.tree[node.id].step
        assert step is not None
        assert row.get("thought") == (step.thought._asdict() if step.thought.tokens else None)
        assert ("given" in row) == bool(step.given)
        assert node.written_tokens == step.written_tokens
    read = tree_of_view(view, 7, merges_siblings=True)
    for end in read.terminals:
        assert read.solution_of(end) == outcome.tree.solution_of(outcome.tree[end.id])
    path = [node for node in view.nodes if node.given][:1]
    assert mean_entropy(path) == pytest.approx(-(path[0].logprob or 0) / path[0].written_tokens)


def test_settings_bound_thinking_by_the_smaller_limit() -> None:
    assert parse_search({"strategy": "greedy"}).thinking_tokens == 8192
    assert parse_search({"strategy": "greedy", "budget": {"thinking": 0}}).thinking_tokens == 0
    settings = parse_search({"strategy": "greedy", "budget": {"thinking": 50}, "max_thinking_tokens": 20})
    assert settings.thinking_tokens == 20


@pytest.mark.parametrize(
    ("prefill", "opened", "thinks"),
    [("So", "", False), ("So", "<think>", True), ("<think>So", "", True), ("<think>So</think>\n\nIt", "", False)],
)
def test_behind_a_prefill_that_has_begun_the_solution_nobody_thinks(prefill: str, opened: str, thinks: bool) -> None:
    settings = {"strategy": "beam_search", "n": 4, "m": 2}
    bench, _ = think(settings, prefill=Prefill((), prefill), open_thought=opened)
    asked = [request.thought for request in bench.generator.requests if request.thought]
    assert bool(asked) == thinks
    assert all(request.opened for request in asked)
    read = {text for request in bench.scorer.requests for item in request.items for text in item.steps}
    assert not any("think" in text for text in read)


def test_behind_a_prompt_that_has_ended_the_thought_none_is_asked_for_or_reserved() -> None:
    settings = {"strategy": "beam_search", "n": 4, "m": 2, "max_step_tokens": 9, "budget": {"thinking": 5}}
    bench, _ = think(settings, thought_is_over=lambda prompt: tuple(prompt) == PROMPT)
    assert {request.thought for request in bench.generator.requests} == {None}
    assert {
        each.max_tokens for request in bench.generator.requests for item in request.expansions for each in item.branches
    } == {9}


def test_a_last_step_without_text_is_scored_with_the_path() -> None:
    """Such as an end of sequence alone behind the last delimiter of a whole solution."""

    async def main() -> Bench:
        bench = Bench()

        def write(request: ExpandRequest, item: ExpandItem, branch: Any) -> Child:
            first = Step((1, 2), "<think>a</think>b\n\n", StepEnd.DELIMITER, thought=Thought(1, 16))
            return Child(item.parent, branch.index, (first, Step((3,), "", StepEnd.END_OF_SEQUENCE)), 0)

        bench.generator._write = write  # type: ignore[method-assign]
        await bench.search({"strategy": "best_of_n", "n": 1}, thinking_context=CONTEXT)
        return bench

    [request] = asyncio.run(main()).scorer.requests
    assert [item.steps for item in request.items] == [("b\n\n", "")]
