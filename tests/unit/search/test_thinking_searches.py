"""Searches whose generator thinks: no path ends in a thought, whoever opened it, and no stop text in one counts."""

import asyncio
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_fakes import Bench

from search.answers.extraction import boxed_answer
from search.ports import Child, ExpandItem, ExpandRequest, StopCondition
from search.run import results
from search.run.report import SearchOutcome
from search.snapshot import TreeView, tree_as_json, tree_of_view
from search.training_data import answers_of, training_data
from search.tree import Prefill, SearchTree, Step, StepEnd

OPENED = "<think>"
STRATEGIES: list[dict[str, Any]] = [
    {"strategy": "greedy"},
    {"strategy": "self_consistency", "n": 2},
    {"strategy": "best_of_n", "n": 2},
    {"strategy": "beam_search", "n": 2, "m": 2},
    {"strategy": "dvts", "n": 2, "m": 2},
    {"strategy": "rebase", "n": 2},
    {"strategy": "ets", "n": 2},
    {"strategy": "particle_filter", "n": 2},
    {"strategy": "mcts", "iterations": 8},
    {"strategy": "ab_mcts", "iterations": 8},
    {"strategy": "frontier", "iterations": 8},
]
GUESSED = ("Perhaps \\boxed{41}, but I should check.\n\n", "Six sevens are 42, so not 41.\n\n")
ANSWERED = ("</think>\n\n", "It is \\boxed{42}.")


def whole(step_texts: tuple[str, ...]) -> tuple[Step, ...]:
    last = len(step_texts) - 1
    return tuple(
        Step((7,), text, StepEnd.END_OF_SEQUENCE if index == last else StepEnd.DELIMITER, -1.0)
        for index, text in enumerate(step_texts)
    )


def thinking(settings: dict[str, Any], texts: tuple[str, ...], **options: Any) -> SearchOutcome:
    """A search whose generator writes these steps."""
    steps = whole(texts)

    async def main() -> SearchOutcome:
        bench = Bench()

        def write(request: ExpandRequest, item: ExpandItem, branch: Any) -> Child:
            depth = len(item.parent)
            rest = steps[depth:] if request.stop_condition is StopCondition.SOLUTION else steps[depth : depth + 1]
            return Child(item.parent, branch.index, rest, cached_tokens=0)

        bench.generator._write = write  # type: ignore[method-assign]
        outcome = await bench.search(settings, **options)
        bench.check_idle()
        return outcome

    return asyncio.run(main())


@pytest.mark.parametrize("settings", STRATEGIES, ids=lambda settings: settings["strategy"])
@pytest.mark.parametrize(
    ("texts", "options"),
    [
        pytest.param((OPENED + GUESSED[0], *GUESSED[1:], *ANSWERED), {}, id="the model"),
        pytest.param((*GUESSED, *ANSWERED), {"open_thought": OPENED}, id="the prompt"),
        pytest.param((*GUESSED, *ANSWERED), {"prefill": Prefill((), OPENED)}, id="the prefill"),
        pytest.param(
            (GUESSED[1], *ANSWERED),
            {"open_thought": OPENED, "prefill": Prefill(GUESSED[:1])},
            id="the prompt, prefilled",
        ),
        pytest.param(
            (*GUESSED, "<|channel|>final<|message|>", ANSWERED[1]),
            {"open_thought": "<|channel|>analysis<|message|>"},
            id="the prompt, a channel",
        ),
    ],
)
def test_no_path_ends_at_a_box_in_a_thought(
    settings: dict[str, Any], texts: tuple[str, ...], options: dict[str, Any]
) -> None:
    outcome = thinking(settings, texts, **options)
    assert outcome.selection.answer == "42"
    assert outcome.text.endswith(texts[-1])
    for node in outcome.tree.terminals:
        assert node.text.endswith(texts[-1])


PIECES = (
    *(
        "\\boxed{7}",
        "\\boxed{?}",
        "<think>",
        "</think>",
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
    ),
    *("Here is my thought process:", "Here is my response:", "a", "analysis", "assistantfinal", "{", "}", "\n"),
)


@hypothesis.settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(PIECES), max_size=4).map(" ".join), min_size=1, max_size=8),
    st.sampled_from(["", "<think>", "a\n\n"]),
)
def test_a_solution_ends_at_the_first_step_up_to_which_its_whole_text_has_an_answer(
    texts: list[str], beginning: str
) -> None:
    written = [f"{text}\n\n" for text in texts]
    alone = [beginning + written[0], *written[1:]]
    up_to = ["".join(written[:number]) for number in range(1, len(written) + 1)]
    ends = (
        number
        for number, (step, path) in enumerate(zip(alone, up_to, strict=True), 1)
        if boxed_answer(beginning) or (boxed_answer(step) and boxed_answer(beginning + path))
    )
    kept = next(ends, len(written))
    outcome = thinking({"strategy": "best_of_n", "n": 1}, tuple(written), prefill=Prefill((), beginning))
    [path] = outcome.tree.terminals
    assert path.depth == kept


@pytest.mark.parametrize("step", ["\\boxed{1}, or not?\n\n", "<think>\\boxed{1}</think>\n\n"])
def test_twice_as_many_boxes_in_thoughts_take_twice_as_long_to_read(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(text: str) -> str | None:
        read.append(len(text))
        return boxed_answer(text)

    def read_of(steps: int) -> int:
        read.clear()
        thinking({"strategy": "greedy"}, ("<think>", *[step] * steps), open_thought="" if "<" in step else OPENED)
        return sum(read)

    monkeypatch.setattr(results, "boxed_answer", counted)
    assert read_of(80) <= 2.1 * read_of(40)


def test_a_path_that_never_ends_its_thought_has_no_answer() -> None:
    for settings in STRATEGIES:
        outcome = thinking(settings, GUESSED, open_thought=OPENED)
        assert outcome.selection.answer is None
        assert outcome.text == "".join(GUESSED)


def test_a_json_schema_leaves_no_thought() -> None:
    settings = {"strategy": "best_of_n", "n": 2}
    outcome = thinking(settings, ('{"a": 1}',), open_thought=OPENED, json_schema='{"type": "object"}')
    assert outcome.selection.answer == '{"a":1}'


def test_an_extractor_gets_the_text_behind_the_mark() -> None:
    outcome = thinking(STRATEGIES[0], ANSWERED, open_thought=OPENED, extract_answer=lambda text: text[:9])
    assert outcome.selection.answer == "<think></"


@pytest.mark.parametrize(
    ("stop", "content"),
    [
        ("41", "It is \\boxed{42}."),
        ("Perhaps", "It is \\boxed{42}."),
        ("\n\n", "It is \\boxed{42}."),
        ("</think>", "It is \\boxed{42}."),
        (".", "It is \\boxed{42}"),
        ("It", ""),
    ],
)
def test_a_stop_text_counts_outside_of_thoughts(stop: str, content: str) -> None:
    for texts, options in (
        ((OPENED + GUESSED[0], *GUESSED[1:], *ANSWERED), {}),
        ((*GUESSED, *ANSWERED), {"open_thought": OPENED}),
        ((*GUESSED, *ANSWERED), {"prefill": Prefill((), OPENED)}),
    ):
        for settings in STRATEGIES:
            outcome = thinking(settings | {"stop": stop}, texts, **options)  # type: ignore[arg-type]
            assert outcome.text == "".join(texts[:-1]) + content
            assert outcome.selection.answer == ("42" if "42" in content else None)


def test_a_stop_text_between_thoughts_counts() -> None:
    tree = SearchTree()
    tree.stop = ("Question",)
    [node] = tree.request(tree.root, 1)
    tree.write(node, Step((1,), "<think>Question?</think>Nine. Question: <think>Question</think>", StepEnd.LENGTH))
    assert tree.text_of(node) == "<think>Question?</think>Nine. "


def test_an_exported_tree_says_what_the_prompt_opened() -> None:
    outcome = thinking({"strategy": "best_of_n", "n": 2}, GUESSED, open_thought=OPENED)
    exported = tree_as_json(outcome.tree)
    assert exported["open_thought"] == OPENED
    view = TreeView.model_validate(exported)
    read = tree_of_view(view, 7, merges_siblings=True)
    assert [read.answer_of(node) for node in read.terminals] == [None]
    assert set(answers_of(view).values()) == {None}
    assert [example.answer for example in training_data(view, set()).examples] == [None]
    assert "open_thought" not in tree_as_json(thinking(STRATEGIES[0], ANSWERED).tree)


def test_a_generator_that_writes_ahead_is_told_which_paths_end_in_a_thought() -> None:
    seen: list[dict[Any, str]] = []

    async def main() -> None:
        bench = Bench()
        texts = whole((*GUESSED, *ANSWERED))

        def write(request: ExpandRequest, item: ExpandItem, branch: Any) -> Child:
            assert request.ahead is not None
            seen.append(dict(request.ahead.thoughts))
            depth = len(item.parent)
            return Child(item.parent, branch.index, texts[depth : depth + 1], cached_tokens=0)

        bench.generator._write = write  # type: ignore[method-assign]
        await bench.search({"strategy": "beam_search", "n": 1, "m": 1}, open_thought=OPENED)

    asyncio.run(main())
    assert seen == [{(): OPENED}, {(0,): OPENED}, {(0, 0): OPENED}, {}]
