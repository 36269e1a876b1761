"""Contexts: prompts that show the model what it has written, as further roots of the tree."""

import asyncio
import gc
import json
from collections.abc import Sequence
from random import Random
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import PROMPT, Bench, FakeGenerator, ThinkingGenerator, seeded_rng

from search.caps import Uncapped
from search.errors import ContextsUnavailable
from search.ports import Ahead, StopCondition, ToolRequest, branch_seed
from search.prompt import Prompt
from search.run.disposal import Disposal
from search.run.report import ContextStarted, SearchEvent, SearchOutcome, StepScored
from search.run.step_hook import StepHook
from search.settings import SearchSettings
from search.snapshot import TreeView, replay_of, restore_tree, save_tree, tree_as_json, tree_of_view
from search.strategies.base import Expansion, ExpectedChildren, Strategy
from search.training_data import answers_of, training_data
from search.tree import FIRST_CONTEXT, ContextNode, Node, NodeStatus, Prefill, Reading, SearchTree, Step, StepEnd

QUESTION = [{"role": "user", "content": "What is it?"}]


def compose(messages: Any, template: str, shown: Sequence[str], note: str) -> Prompt:
    """The same beginning for every context, then some tokens for each text that it shows."""
    assert messages == QUESTION
    tokens = [7, 7, len(template), len(note)]
    for text in shown:
        tokens += seeded_rng("shown", text).sample(range(100, 999), 6)
    return Prompt(tuple(tokens))


def compose_uneven(messages: Any, template: str, shown: Sequence[str], note: str) -> Prompt:
    """Longer for longer texts."""
    prompt = compose(messages, template, shown, note)
    return Prompt((*prompt.token_ids, *(3 for text in shown for _ in range(len(text) % 50))))


class Rounds(Strategy):
    """A population of ``n`` solutions, then rounds of ``n`` contexts that each read some of the last ``n`` paths."""

    stop_condition: ClassVar[StopCondition] = StopCondition.SOLUTION
    name: Literal["rounds"] = "rounds"
    n: Uncapped = 4
    rounds: Uncapped = 2
    k: Uncapped = 2
    samples: Uncapped = 1
    """Written in each context."""

    @property
    def starts_contexts(self) -> bool:
        return True

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        if tree.in_flight:
            return []
        if not tree.root.asked:
            return [Expansion(tree.root, self.n)]
        if len(tree.contexts) >= self.n * self.rounds:
            return []
        number, begun = divmod(len(tree.contexts), self.n)
        last = tree.contexts[(number - 1) * self.n : number * self.n] if number else [tree.root]
        population = [ends_of(child) for each in last for child in each.children.values()]
        expansions = []
        for index in range(begun, self.n):
            rng = Random(f"{tree.seed}:{number}:{index}")
            drawn = rng.sample(population, min(self.k, len(population)))
            expansions.append(Expansion.reading(Reading(tuple(drawn), "fuse"), self.samples))
        return expansions


class Chains(Strategy):
    """``n`` solutions, each improved ``depth`` times without waiting for the others: unmerged, because a sibling that
    arrives later may represent the text of one that was read."""

    stop_condition: ClassVar[StopCondition] = StopCondition.SOLUTION
    name: Literal["chains"] = "chains"
    n: Uncapped = 3
    depth: Uncapped = 3

    @property
    def starts_contexts(self) -> bool:
        return True

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        if not tree.root.asked:
            return [Expansion(tree.root, self.n)]
        ends = [ends_of(child) for each in (tree.root, *tree.contexts) for child in each.children.values()]
        read = {context.reading.sources[0] for context in tree.contexts}
        return [
            Expansion.reading(Reading((end,), "refine", f"scored {end.reward}"), 1)
            for end in sorted(ends, key=lambda end: end.id)
            if end.status is NodeStatus.TERMINAL and end not in read and refined(end) < self.depth
        ]


class Steps(Strategy):
    """One solution, and one context in which two paths grow step by step."""

    name: Literal["steps"] = "steps"
    max_depth: Uncapped = 3

    @property
    def starts_contexts(self) -> bool:
        return True

    @property
    def expected_children(self) -> ExpectedChildren:
        return ExpectedChildren(1, 2)

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        if tree.in_flight:
            return []
        if not tree.root.asked:
            return [Expansion(tree.root, 1, StopCondition.SOLUTION)]
        if not tree.contexts:
            return [Expansion.reading(Reading((ends_of(tree.root.children[0]),), "refine"), 2)]
        return [Expansion(node, 1) for node in tree.nodes if node.status is NodeStatus.OPEN and is_tip(node)]


def is_tip(node: Node) -> bool:
    return not node.asked and node.context is not None


def ends_of(node: Node) -> Node:
    """The node that represents the end of a solution."""
    while node.children:
        [node] = node.children.values()
    return node.first


def refined(node: Node | None) -> int:
    """How many contexts a path goes back through."""
    count = 0
    while node is not None:
        above = node.search_parent
        count += above is not node.parent
        node = above
    return count


def run(
    strategy: Strategy,
    order: int = 0,
    tree: SearchTree | None = None,
    save_at: Sequence[int] = (),
    generator: FakeGenerator | None = None,
    variety: int | None = 3,
    budget: dict[str, int] | None = None,
    short_of_memory: int | None = None,
    **options: Any,
) -> tuple[Bench, SearchOutcome, list[Any]]:
    """A whole search, and what was saved at some of its events, as it is read from a file."""
    saved: list[str] = []

    async def main() -> tuple[Bench, SearchOutcome]:
        bench = Bench(order, variety=variety)
        bench.generator = generator or bench.generator
        bench.generator.variety, bench.generator.short_of_memory = variety, short_of_memory
        grown = bench.tree if tree is None else tree

        def on_event(event: SearchEvent) -> None:
            bench.events.append(event)
            if len(bench.events) in save_at:
                saved.append(json.dumps(save_tree(grown)))

        wanted = {"strategy": strategy, "seed": 7, "budget": budget or {}} | options.pop("settings", {})
        given = {"compose": compose, "messages": QUESTION, "tree": grown, "on_event": on_event} | options
        outcome = await bench.run(SearchSettings(**wanted), **given)
        assert grown.check_integrity() == []
        assert bench.generator.live == set()
        return bench, outcome

    bench, outcome = asyncio.run(main())
    return bench, outcome, [json.loads(text) for text in saved]


STRATEGIES = [
    Rounds(),
    Rounds(n=3, rounds=3, k=3, samples=2, merge_siblings=False),
    Chains(merge_siblings=False),
    Steps(),
]
KINDS = st.sampled_from(STRATEGIES)


@settings(max_examples=12, deadline=None)
@given(KINDS, st.integers(0, 99), st.lists(st.integers(2, 40), min_size=3, max_size=3), st.sampled_from([None, 1, 3]))
def test_killed_anywhere_it_grows_the_same_tree_in_any_order(
    strategy: Strategy, order: int, save_at: list[int], variety: int | None
) -> None:
    _, whole, _ = run(strategy, variety=variety)
    _, again, saved = run(strategy, order=order, save_at=save_at, variety=variety)
    assert tree_as_json(again.tree) == tree_as_json(whole.tree)
    for number, snapshot in enumerate(saved):
        restored = restore_tree(snapshot)
        assert save_tree(restored) == snapshot
        _, resumed, _ = run(strategy, order + number, tree=restored, variety=variety)
        assert tree_as_json(resumed.tree) == tree_as_json(whole.tree)
        for figure in ("generated_tokens", "contexts", "context_prompt_tokens"):
            assert getattr(resumed.cost, figure) == getattr(whole.cost, figure)
        assert resumed.selection.node.id == whole.selection.node.id
    replayed = run(strategy, order, tree=replay_of(whole.tree), variety=variety)[1]
    assert tree_as_json(replayed.tree) == tree_as_json(whole.tree)
    view = TreeView.model_validate(json.loads(json.dumps(tree_as_json(whole.tree))))
    assert view.version == 3
    rebuilt = tree_of_view(view, 7, whole.tree.merges_siblings)
    assert [tree_as_json(tree)["contexts"] for tree in (rebuilt, whole.tree)] == [
        tree_as_json(whole.tree)["contexts"]
    ] * 2
    assert [node.id for node in rebuilt.terminals] == [node.id for node in whole.tree.terminals]


@settings(max_examples=8, deadline=None)
@given(KINDS, st.integers(0, 99), st.lists(st.integers(2, 40), min_size=2, max_size=2), st.booleans())
def test_so_it_does_where_it_thinks_or_a_hook_sees_every_step(
    strategy: Strategy, order: int, save_at: list[int], thinks: bool
) -> None:
    """Prompts are so long here that paths in different contexts may have different lengths."""

    async def hooked(question: str, path: Sequence[str], step: str) -> str | None:
        assert question == "What is it?"
        return f"noted {len(path)}\n" if len(step) % 2 else None

    def one(order: int, tree: SearchTree | None = None, save_at: Sequence[int] = ()) -> tuple[SearchOutcome, list[Any]]:
        options: dict[str, Any] = {"compose": compose_uneven, "context_tokens": 130}
        if thinks:
            options |= {"generator": ThinkingGenerator(order), "thinking_context": 150}
        else:
            options["step_hook"] = StepHook(hooked, lambda text: [5, 5])
        limits = {"max_step_tokens": 9, "max_path_tokens": 60, "max_thinking_tokens": 12}
        return run(strategy, order, tree, save_at, settings=limits, **options)[1:]

    whole, saved = one(order, save_at=save_at)
    assert whole.tree.contexts
    for number, snapshot in enumerate(saved):
        resumed, _ = one(order + 1 + number, restore_tree(snapshot))
        assert tree_as_json(resumed.tree) == tree_as_json(whole.tree)


@pytest.mark.parametrize("seed", range(6))
def test_each_context_has_the_room_that_its_own_prompt_leaves(seed: int) -> None:
    strategy = Rounds(n=3, rounds=3, k=3, samples=2, merge_siblings=False)
    options: dict[str, Any] = {"compose": compose_uneven, "context_tokens": 130, "thinking_context": 150}
    limits = {"max_step_tokens": 9, "max_path_tokens": 60, "max_thinking_tokens": 12, "seed": seed}
    tree = run(strategy, generator=ThinkingGenerator(seed), settings=limits, **options)[1].tree
    assert max(context.prompt_tokens for context in tree.contexts) <= 130 - 9
    for node in tree.nodes:
        prompt = len(PROMPT) if node.context is None else node.context.prompt_tokens
        assert prompt + node.path_tokens - node.thought_tokens <= 130
        assert prompt + node.path_tokens <= 150


def test_a_replica_knows_what_to_write_ahead_in_a_context() -> None:
    """Every later step in a context has the seed and the length that follow from the request before it."""
    bench, outcome, _ = run(Steps(), variety=None, settings={"max_step_tokens": 9, "max_path_tokens": 20})
    [context] = outcome.tree.contexts
    first, *others = [request for request in bench.generator.requests if request.expansions[0].parent]
    assert len(others) == 2
    for request in others:
        assert isinstance(first.ahead, Ahead)
        assert request.ahead == first.ahead
        for item in request.expansions:
            assert item.parent[:-1] == context.id or len(item.parent) + 1 == first.ahead.max_depth
            for branch in item.branches:
                assert branch.seed == branch_seed(first.ahead.seed, item.parent, branch.index)
                assert branch.max_tokens == min(9, first.ahead.path_tokens - len(item.prefix))
    assert max(node.depth for node in outcome.tree.nodes if node.context) == 3


def test_programs_in_a_context_begin_behind_its_prompt() -> None:
    tool = ToolRequest(calls=2, seconds=1.0, memory_bytes=1 << 20, output_chars=99)
    bench, outcome, _ = run(Chains(), tool=tool)
    items = [item for request in bench.generator.requests for item in request.expansions if item.parent]
    assert len(items) == len(outcome.tree.contexts) > 0
    for item in items:
        assert (item.solution, item.room) == (len(item.prefix), 1000 - len(item.prefix))


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 99), st.integers(0, 99))
def test_a_replay_gives_back_what_was_given_back(order: int, memory: int) -> None:
    strategy = Rounds(samples=4)
    _, whole, _ = run(strategy, order, short_of_memory=memory)
    _, replayed, _ = run(strategy, order + 1, tree=replay_of(whole.tree))
    assert tree_as_json(replayed.tree) == tree_as_json(whole.tree)
    assert save_tree(restore_tree(save_tree(whole.tree))) == save_tree(whole.tree)


def test_below_a_context_is_as_below_a_root() -> None:
    """It continues the prompt of its context alone, under a seed of its own, and is scored as an answer to the
    question."""
    bench, outcome, _ = run(Rounds())
    tree = outcome.tree
    assert len(tree.contexts) == 8
    prompts = {(): PROMPT} | {context.id: context.prompt.token_ids for context in tree.contexts}
    for item in [item for request in bench.generator.requests for item in request.expansions]:
        assert item.prefix == prompts[item.parent]
        for branch in item.branches:
            assert branch.seed == branch_seed(7, item.parent, branch.index)
    for context in tree.contexts:
        sources = context.reading.sources
        shown = [source.text for source in sources]
        assert context.prompt == compose(QUESTION, "fuse", shown, "")
        assert (context.id[:-1], context.depth, context.parent) == (sources[0].id, 0, None)
        assert all(child.search_parent is sources[0] for child in context.children.values())
        assert all(node.context is context for child in context.children.values() for node in child.path)
        assert [child.depth for child in context.children.values()] == [1]
    scored = {item.steps for request in bench.scorer.requests for item in request.items}
    texts = {tuple(step.text for step in end.steps) for end in tree.terminals}
    assert texts <= scored
    assert {request.question for request in bench.scorer.requests} == {"What is it?"}


def test_a_context_is_in_no_count_of_the_root() -> None:
    alone = run(Rounds(rounds=0))[1].tree
    tree = run(Rounds())[1].tree
    assert (tree.deepest, tree.root.samples, tree.root.asked) == (alone.deepest, alone.root.samples, 4)
    assert [tree.ended(depth) for depth in range(9)] == [alone.ended(depth) for depth in range(9)]
    assert [[n.id for n in tree.level(d)] for d in range(9)] == [[n.id for n in alone.level(d)] for d in range(9)]
    assert len(tree) == sum(1 for _ in tree.nodes) == len(tree_as_json(tree)["nodes"])
    assert not {context.id for context in tree.contexts} & {node.id for node in tree.nodes}
    ids = [node["id"] for node in tree_as_json(tree)["nodes"]]
    assert ids == sorted(ids)


def test_siblings_are_merged_within_a_context_alone() -> None:
    tree = run(Rounds(n=2, samples=6), variety=2)[1].tree
    groups: dict[Any, set[str]] = {}
    for node in tree.nodes:
        if node.parent is not None and node.repeats is not None:
            assert node.repeats.parent is node.parent or node.repeats.context is node.context
        if node.step and node.depth == 1 and node.repeats is None:
            texts = groups.setdefault(node.context, set())
            assert node.step.text not in texts
            texts.add(node.step.text)
    for end in tree.terminals:
        assert 0 < tree.multiplicity(end) <= 1


@settings(max_examples=15, deadline=None)
@given(KINDS, st.integers(60, 700), st.integers(0, 9))
def test_read_and_written_tokens_stay_within_the_budget(strategy: Strategy, total: int, order: int) -> None:
    limits = {"max_path_tokens": 12, "max_step_tokens": 12}
    bench, outcome, _ = run(strategy, order, budget={"total_tokens": total}, settings=limits)
    cost = outcome.cost
    assert len(PROMPT) + cost.context_prompt_tokens + cost.generated_tokens <= total
    assert cost.context_prompt_tokens == sum(context.prompt_tokens for context in outcome.tree.contexts)
    assert all(context.children for context in outcome.tree.contexts)
    prefixes = [
        item.prefix for request in bench.generator.requests for item in request.expansions for _ in item.branches
    ]
    assert cost.prefix_tokens == sum(map(len, prefixes))


def test_a_search_says_when_a_context_begins() -> None:
    bench, outcome, _ = run(Chains(n=1))
    begun = [event for event in bench.events if isinstance(event, ContextStarted)]
    assert [event.context for event in begun] == [context.id for context in outcome.tree.contexts]
    assert [event.sources for event in begun] == [(context.id[:-1],) for context in outcome.tree.contexts]
    assert {(event.template, event.prompt_tokens) for event in begun} == {("refine", 10)}
    for event in begun:
        steps = [each for each in bench.events if isinstance(each, StepScored)]
        [first] = [each for each in steps if each.node == (*event.context, 0)]
        assert first.prefix_tokens == 10
        assert bench.events.index(event) < bench.events.index(first)


def test_what_does_not_fit_is_not_read() -> None:
    """The last sources are left out, as many as must be, and the cost says so."""
    limits = {"max_step_tokens": 9, "max_path_tokens": 9}
    _, outcome, _ = run(Rounds(n=6, k=5, rounds=1), context_tokens=4 + 3 * 6 + 9, settings=limits)
    assert {len(context.reading.sources) for context in outcome.tree.contexts} == {3}
    assert outcome.cost.unread_sources == 6 * 2
    _, outcome, _ = run(Rounds(n=6, k=5, rounds=1), context_tokens=18, settings=limits)
    assert (outcome.cost.contexts, outcome.cost.unread_sources, outcome.stop_reason) == (0, 6 * 5, "finished")
    assert outcome.selection.node in outcome.tree.terminals


def test_what_fits_is_found_in_few_compositions() -> None:
    composed: list[int] = []

    def counting(messages: Any, template: str, shown: Sequence[str], note: str) -> Prompt:
        composed.append(len(shown))
        return compose(messages, template, shown, note)

    limits = {"max_step_tokens": 9, "max_path_tokens": 9}
    room = 4 + 5 * 6 + 9
    strategy = Rounds(n=16, k=16, rounds=1)
    _, outcome, _ = run(strategy, variety=None, context_tokens=room, settings=limits, compose=counting)
    assert {len(context.reading.sources) for context in outcome.tree.contexts} == {5}
    assert len(composed) / len(outcome.tree.contexts) <= 7


@pytest.mark.parametrize("strategy", [Chains(), Rounds(n=3, k=2, rounds=2)], ids=["one", "two"])
def test_of_solutions_that_do_not_fit_the_ends_are_read(strategy: Strategy) -> None:
    """The only source of a context, or the first two: a reader of one has nothing to choose. A search that resumes cuts
    them alike."""

    def spelled(messages: Any, template: str, shown: Sequence[str], note: str) -> Prompt:
        return Prompt((7, *(ord(letter) for text in shown for letter in text)))

    limits = {"max_step_tokens": 9, "max_path_tokens": 60}
    room = 100 if isinstance(strategy, Chains) else 150
    options: dict[str, Any] = {"compose": spelled, "context_tokens": room, "settings": limits}
    _, whole, saved = run(strategy, save_at=[20, 30], **options)
    cut = set()
    for context in whole.tree.contexts:
        texts = [whole.tree.content_of(source) for source in context.reading.sources]
        assert len(texts) == (1 if isinstance(strategy, Chains) else 2)
        longest = max(map(len, texts))
        sizes = [longest, *(longest >> halved for halved in range(1, 8) if longest >> halved >= 64), 64]
        most = next(size for size in sizes if 1 + sum(len(text[-size:]) for text in texts) + 9 <= room)
        assert context.prompt == spelled(QUESTION, "", [text[-most:] for text in texts], "")
        cut.add(most < longest)
    assert cut == {True, False}
    assert whole.cost.unread_sources == 0
    for snapshot in saved:
        assert tree_as_json(run(strategy, tree=restore_tree(snapshot), **options)[1].tree) == tree_as_json(whole.tree)


class Noted(Rounds):
    """Rounds whose readers are told a long note, and how often each candidate was found."""

    name: Literal["noted"] = "noted"  # type: ignore[assignment]
    rounds: Uncapped = 1

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        return [
            expansion if expansion.reads is None else expansion._replace(reads=noted(expansion.reads))
            for expansion in super().select(tree)
        ]


def noted(reading: Reading) -> Reading:
    return reading._replace(note="It fails. " * 40, counts=tuple(range(2, 2 + len(reading.sources))))


@pytest.mark.parametrize("room", range(85, 660, 50))
def test_a_note_is_cut_before_solutions_are_and_tells_nothing_of_those_left_out(room: int) -> None:
    """Whatever is cut, no context is left out, and a search that resumes cuts it alike."""

    told: dict[str, list[str]] = {}

    def telling(messages: Any, template: str, shown: Sequence[str], note: str) -> Prompt:
        _, found, note = note.rpartition("in the order shown: ")
        numbers, _, rest = note.partition(".") if found else ("", "", note)
        prompt = Prompt((7, *map(ord, "".join(shown)), *map(ord, rest.strip()), *map(ord, numbers[:1])))
        told[str(prompt.token_ids)] = numbers.split(", ")
        return prompt

    limits = {"max_step_tokens": 9, "max_path_tokens": 60}
    options: dict[str, Any] = {"compose": telling, "context_tokens": room, "settings": limits}
    strategy = Noted(n=3, k=3)
    _, whole, saved = run(strategy, save_at=[20, 30, 40], **options)
    assert len(whole.tree.contexts) == 3
    for context in whole.tree.contexts:
        sources = len(context.reading.sources)
        assert told[str(context.prompt.token_ids)] == [str(2 + index) for index in range(sources)]
    assert any(snapshot.get("contexts") for snapshot in saved)
    for snapshot in saved:
        again = run(strategy, tree=restore_tree(snapshot), **options)[1]
        assert tree_as_json(again.tree) == tree_as_json(whole.tree)


@pytest.mark.parametrize("lacking", [{"compose": None}, {"prefill": Prefill((), "It")}])
def test_it_is_refused_where_nothing_can_be_composed(lacking: dict[str, Any]) -> None:
    with pytest.raises(ContextsUnavailable, match="chains has the model read solutions"):
        run(Chains(), **lacking)


def test_a_source_shows_its_solution_without_its_thinking() -> None:
    shown: list[str] = []

    def noting(messages: Any, template: str, texts: Sequence[str], note: str) -> Prompt:
        shown.extend(texts)
        return compose(messages, template, texts, note)

    _, outcome, _ = run(Chains(), generator=ThinkingGenerator(), compose=noting, thinking_context=1000)
    tree = outcome.tree
    assert any(end.thought_tokens for end in tree.terminals)
    ended = [end for end in tree.terminals if tree.solution_of(end)]
    assert ended
    assert not any("think>" in text for text in shown)
    assert {tree.solution_of(context.reading.sources[0]).strip() for context in tree.contexts} == {
        text.strip() for text in shown
    }
    for context in tree.contexts:
        for child in context.children.values():
            assert child.step is not None
            assert child.step.thought.tokens


def test_kv_of_what_contexts_have_in_common_is_held_once() -> None:
    """Their prompts begin alike, and those that show the same first text have more in common."""
    _, outcome, _ = run(Rounds(n=3, rounds=1, k=2), settings={"kv_usage": True})
    cost, contexts = outcome.cost, outcome.tree.contexts
    steps = {None: 0} | dict.fromkeys(contexts, 0)
    for node in outcome.tree.nodes:
        steps[node.context] += node.step.size if node.step else 0
    rounds = len(PROMPT) + steps.pop(None), sum(context.prompt_tokens for context in contexts) + sum(steps.values())
    assert (cost.kv_node_tokens_sum, cost.kv_node_tokens_peak) == (sum(rounds), max(rounds))
    assert cost.kv_tokens_sum is not None
    assert cost.kv_node_tokens_sum - cost.kv_tokens_sum >= 4 * (len(contexts) - 1)


def test_another_prompt_than_before_is_refused() -> None:
    _, _, [snapshot] = run(Chains(), save_at=[12])
    assert snapshot["contexts"]
    assert snapshot["version"] == 3

    def other(messages: Any, template: str, shown: Sequence[str], note: str) -> Prompt:
        return Prompt((1, *compose(messages, template, shown, note).token_ids))

    with pytest.raises(ValueError, match="is not the one that the tree was grown with"):
        run(Chains(), tree=restore_tree(snapshot), compose=other)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda tree: tree["contexts"][0]["sources"].insert(0, [9]), "first source"),
        (lambda tree: tree["contexts"][0]["sources"].append([9]), "cannot be added"),
        (lambda tree: tree["contexts"].pop(0), "cannot be added"),
        (lambda tree: tree["contexts"].append(tree["contexts"][0]), "the same id"),
        (lambda tree: tree["contexts"][0].update(id=[0, 5]), "first source"),
    ],
)
def test_a_snapshot_with_impossible_contexts_is_refused(spoil: Any, message: str) -> None:
    snapshot = save_tree(run(Chains())[1].tree)
    view = json.loads(json.dumps(tree_as_json(run(Chains())[1].tree)))
    spoil(snapshot)
    spoil(view)
    with pytest.raises(ValueError, match=message):
        restore_tree(snapshot)
    with pytest.raises(ValueError, match=r"contexts|source|below"):
        TreeView.model_validate(view)


async def test_a_finished_search_leaves_no_context_to_the_garbage_collector() -> None:
    gc.collect()
    gc.freeze()  # What other tests have left.
    gc.disable()
    try:
        disposal, bench = Disposal(), Bench()
        bench.tree = SearchTree()  # type: ignore[assignment]
        disposal.watch(bench.tree)
        asked = SearchSettings(strategy=Rounds(), seed=7)
        assert (await bench.run(asked, compose=compose, messages=QUESTION)).cost.contexts == 8
        del bench
        await disposal.finish()
        assert not [each for each in gc.get_objects() if type(each) in (ContextNode, Node)]
    finally:
        gc.enable()


def test_training_data_are_answers_to_the_question_alone() -> None:
    alone, both = (run(Rounds(rounds=rounds))[1].tree for rounds in (0, 2))
    views = [TreeView.model_validate(json.loads(json.dumps(tree_as_json(tree)))) for tree in (alone, both)]
    assert answers_of(views[0]) == answers_of(views[1])
    right = {node_id for node_id, answer in answers_of(views[0]).items() if answer == "1"}
    assert training_data(views[0], right) == training_data(views[1], right)


def test_its_id_follows_from_its_first_source() -> None:
    tree = SearchTree(7)
    nodes = tree.request(tree.root, 2)
    for node in nodes:
        tree.write(node, Step((1,), f"{node.id}", StepEnd.END_OF_SEQUENCE), ends=True)
    for first in (0, 1, 0):
        tree.restore_context((first, FIRST_CONTEXT + len(tree.contexts) // 2), [(first,), (1 - first,)], "fuse")
    assert [context.id for context in tree.contexts] == [(0, 100_000), (1, 100_000), (0, 100_001)]
    assert tree.check_integrity() == []
