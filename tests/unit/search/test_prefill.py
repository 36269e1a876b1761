"""A given beginning of the answer: the first steps of every path, for the reward model and for the answer."""

import asyncio
import json
import time
from typing import Any

import pytest
from search_fakes import PROMPT, Bench, broken, reward_of, search

from search.ports import Child
from search.run.report import SearchOutcome
from search.snapshot import TreeView, restore_tree, save_tree, tree_as_json, tree_of_view
from search.strategies.path_score import Aggregation, aggregate, path_score
from search.tree import Prefill, Step, StepEnd
from search.tree.prefill import MAX_STEPS

BEAM: dict[str, Any] = {"strategy": "beam_search", "n": 8, "m": 4, "aggregation": "prod"}
GIVEN = Prefill(("One.\n\n", "Two.\n\n"), "Three is ")


@pytest.mark.parametrize(
    ("text", "steps", "rest"),
    [
        ("", (), ""),
        ("The answer is", (), "The answer is"),
        ("a\n\n", ("a\n\n",), ""),
        ("a\n\nb\n\nc", ("a\n\n", "b\n\n"), "c"),
        ("\n\na\n\nb", ("\n\na\n\n",), "b"),
        ("a\n\n\n\nb\n\n", ("a\n\n", "\n\nb\n\n"), ""),
        ("a\n\n \n", ("a\n\n",), " \n"),
        ("\n\n \n\n", (), "\n\n \n\n"),
    ],
)
def test_a_text_has_the_steps_of_a_path_that_wrote_it(text: str, steps: tuple[str, ...], rest: str) -> None:
    prefill = Prefill.of(text, "\n\n")
    assert prefill == (steps, rest)
    assert prefill.text == text


def test_a_long_text_is_split_in_linear_time() -> None:
    began = time.process_time()
    assert Prefill.of("\n" * 1_000_000, "\n\n").steps == ()
    assert len(Prefill.of("a\n\n" * 300_000, "\n\n").steps) == MAX_STEPS
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize("steps", [MAX_STEPS, MAX_STEPS + 1, 3 * MAX_STEPS])
def test_a_text_of_too_many_steps_has_one_that_holds_the_first_of_them(steps: int) -> None:
    written = [f"{number}\n\n" for number in range(steps)]
    prefill = Prefill.of("".join(written) + "So", "\n\n")
    assert len(prefill.steps) == MAX_STEPS
    assert prefill.steps[1:] == tuple(written[1 - MAX_STEPS :])
    assert prefill.text == "".join(written) + "So"


def test_every_path_begins_with_it_for_the_scorer_and_for_the_answer() -> None:
    seen: list[str] = []

    def extract(text: str) -> str | None:
        seen.append(text)
        return text[:3]

    bench, outcome = search(BEAM, prefill=GIVEN, extract_answer=extract)
    scored, *others = bench.scorer.requests
    assert [(item.steps, item.unscored) for item in scored.items] == [(GIVEN.steps, 2)]
    for item in (item for request in others for item in request.items):
        assert item.steps[:2] == GIVEN.steps
        assert item.steps[2].startswith("Three is ")
        assert item.unscored == 1
    assert {item.prefix for request in bench.generator.requests for item in request.expansions if not item.parent} == {
        PROMPT
    }
    assert seen
    assert all(text.startswith(GIVEN.text) for text in seen)
    assert outcome.selection.answer == "One"
    assert outcome.text == outcome.selection.node.text, "what was given is not repeated"
    plain, _ = search(BEAM)
    assert [node.text for node in bench.tree.level(1)] == [node.text for node in plain.tree.level(1)]


@pytest.mark.parametrize("aggregation", Aggregation)
def test_path_scores_are_those_of_a_path_that_wrote_it(aggregation: Aggregation) -> None:
    bench, outcome = search(BEAM | {"aggregation": aggregation}, prefill=GIVEN)
    for node in bench.tree.nodes:
        if node.reward is not None:
            texts = bench.tree.step_texts(node)
            rewards = [reward_of(texts[:end]) for end in range(1, len(texts) + 1)]
            assert path_score(node, aggregation) == pytest.approx(aggregate(rewards, aggregation))
    given = 0 if aggregation is Aggregation.LAST else 2
    assert outcome.cost.scored_steps == given + sum(node.reward is not None for node in bench.tree.nodes if node.count)
    assert outcome.cost.prm_calls == len(bench.scorer.requests)


@pytest.mark.parametrize(
    "settings", [{"score_prefill": False}, {"aggregation": "last"}, {"strategy": "self_consistency", "m": None}]
)
def test_it_is_scored_only_where_that_changes_a_score(settings: dict[str, Any]) -> None:
    wanted = {name: value for name, value in (BEAM | settings).items() if value is not None}
    bench, _ = search(wanted, prefill=GIVEN)
    assert all(item.unscored == 1 for request in bench.scorer.requests for item in request.items)
    assert bench.tree.root.prefill_rewards == ()
    if wanted["strategy"] != "self_consistency":
        node = bench.tree.level(1)[0].first
        assert path_score(node, Aggregation.PROD) == node.reward == reward_of(bench.tree.step_texts(node))


async def test_without_a_scorer_its_steps_have_neutral_rewards() -> None:
    bench = Bench()
    bench.scorer.spoil = broken
    outcome = await bench.search({"strategy": "best_of_n", "n": 2, "aggregation": "min"}, prefill=GIVEN)
    assert bench.tree.root.prefill_rewards == (0.5, 0.5)
    assert outcome.degraded


async def boxed(strategy: str, prefill: Prefill) -> tuple[Bench, SearchOutcome]:
    """A search in which every step is ``42}. `` and a newline, and never ends by itself."""
    bench = Bench()
    step = Step((7,), "42}.\n\n", StepEnd.DELIMITER)

    def write(request: Any, expansion: Any, branch: Any) -> Child:
        steps = (step,) * (3 if request.stop_condition == "solution" else 1)
        return Child(expansion.parent, branch.index, steps, 0)

    bench.generator._write = write  # type: ignore[method-assign]
    settings = {"strategy": strategy, "max_depth": 5} | ({} if strategy == "greedy" else {"n": 4})
    return bench, await bench.search(settings, prefill=prefill)


@pytest.mark.parametrize("strategy", ["greedy", "beam_search", "best_of_n"])
async def test_a_box_that_was_opened_in_it_is_closed_by_the_first_step(strategy: str) -> None:
    prefill = Prefill.of("So:\n\nThe answer is \\boxed{", "\n\n")
    bench, outcome = await boxed(strategy, prefill)
    assert outcome.selection.answer == "42"
    assert outcome.text.startswith("42}.")
    assert bench.tree.deepest == 1, "the path ends with its answer"
    plain, _ = await boxed(strategy, Prefill())
    assert plain.tree.deepest > 1


@pytest.mark.parametrize("text", ["So \\boxed{42}.\n\n", "So \\boxed{42}.\n\nIndeed"])
@pytest.mark.parametrize("strategy", ["greedy", "beam_search", "best_of_n"])
async def test_an_answer_that_it_has_already_ends_every_path_with_its_first_step(strategy: str, text: str) -> None:
    bench = Bench()
    step = Step((7,), "and so on\n\n", StepEnd.DELIMITER)

    def write(request: Any, expansion: Any, branch: Any) -> Child:
        return Child(expansion.parent, branch.index, (step,) * (3 if request.stop_condition == "solution" else 1), 0)

    bench.generator._write = write  # type: ignore[method-assign]
    settings = {"strategy": strategy, "max_depth": 5} | ({} if strategy == "greedy" else {"n": 4})
    outcome = await bench.search(settings, prefill=Prefill.of(text, "\n\n"))
    assert (outcome.selection.answer, bench.tree.deepest, outcome.stop_reason) == ("42", 1, "finished")


def test_one_seed_gives_one_tree_whatever_arrives_first() -> None:
    trees = [asyncio.run(Bench(order=order).search(BEAM | {"seed": 5}, prefill=GIVEN)).tree for order in (1, 2, 7)]
    assert tree_as_json(trees[0]) == tree_as_json(trees[1]) == tree_as_json(trees[2])
    assert tree_as_json(trees[0])["prefill_rewards"] == list(trees[0].root.prefill_rewards)


def test_the_paths_of_an_exported_tree_have_the_same_scores() -> None:
    bench, _ = search(BEAM, prefill=GIVEN)
    view = TreeView.model_validate(json.loads(json.dumps(tree_as_json(bench.tree))))
    again = tree_of_view(view, bench.tree.seed, merges_siblings=True)
    scored = [node for node in bench.tree.nodes if node.reward is not None]
    assert scored
    for node in scored:
        assert path_score(again[node.id], Aggregation.PROD) == path_score(node, Aggregation.PROD)


def test_a_search_that_is_gone_on_with_is_the_same() -> None:
    saved: list[str] = []

    async def main() -> Bench:
        bench = Bench()
        on_event = lambda event: saved.append(json.dumps(save_tree(bench.tree)))  # noqa: E731
        await bench.search(BEAM, prefill=GIVEN, on_event=on_event)
        return bench

    whole = asyncio.run(main())
    for each in saved[:: max(1, len(saved) // 4)]:
        outcome = asyncio.run(Bench(order=3).search(BEAM, tree=restore_tree(json.loads(each)), prefill=GIVEN))
        assert tree_as_json(outcome.tree) == tree_as_json(whole.tree)
        assert outcome.tree.root.prefill_rewards == whole.tree.root.prefill_rewards
