"""``stop``: the solution's text ends there for the reader and for the vote, though more was written."""

from typing import Any

import pytest
from pydantic import ValidationError
from search_fakes import Bench, FakeGenerator, search

from search.run.report import SearchOutcome
from search.settings import MAX_STOP_CHARS, parse_search
from search.snapshot import tree_as_json
from search.tree import SearchTree, Step, StepEnd

BEST = {"strategy": "best_of_n", "n": 8}


class Rambling(FakeGenerator):
    """Goes on after its answer, and changes it to 9."""

    def _write(self, request: Any, expansion: Any, branch: Any) -> Any:
        child = super()._write(request, expansion, branch)
        *before, last = child.steps
        if last.end is not StepEnd.END_OF_SEQUENCE:
            return child
        return child._replace(steps=(*before, last._replace(text=f"{last.text}\nOr else: \\boxed{{9}}")))


async def rambled(settings: dict[str, Any]) -> SearchOutcome:
    bench = Bench()
    bench.generator = Rambling()
    return await bench.search(settings)


def test_the_text_ends_before_the_first_stop_wherever_steps_end() -> None:
    tree = SearchTree()
    [node] = tree.request(tree.root, 1)
    tree.write(node, Step((1,), "7 * 6\n", StepEnd.DELIMITER))
    end = tree.extend(node, Step((2,), "= 42 or 43", StepEnd.END_OF_SEQUENCE))
    assert tree.text_of(end) == "7 * 6\n= 42 or 43"
    for stop, text in [
        (("or",), "7 * 6\n= 42 "),
        (("43", " or"), "7 * 6\n= 42"),
        (("6\n=",), "7 * "),
        (("7",), ""),
        (("absent",), "7 * 6\n= 42 or 43"),
    ]:
        tree.stop = stop
        assert tree.text_of(end) == text


@pytest.mark.asyncio
@pytest.mark.parametrize("strategy", ["best_of_n", "self_consistency", "beam_search"])
async def test_the_vote_counts_only_text_before_the_stop(strategy: str) -> None:
    settings = {"strategy": strategy, "n": 8}
    plain = (await Bench().search(settings)).selection
    whole = await rambled(settings)
    cut = await rambled(settings | {"stop": "Or else:"})
    assert whole.selection.answer == "9"
    assert cut.stopped
    assert "9" not in cut.text.partition("boxed")[2]
    assert "Or else" not in cut.text
    # Rewards belong to the steps as written, so scores may differ from those of other texts; answers may not.
    answers = {group.answer for group in cut.selection.groups}
    assert answers == {group.answer for group in plain.groups} != {"9"}
    assert tree_as_json(cut.tree) == tree_as_json(whole.tree)


@pytest.mark.asyncio
async def test_stopping_early_counts_the_same_answers_as_the_vote() -> None:
    """Beyond the stop all texts agree at once, so that the first few would suffice."""
    settings: dict[str, Any] = {"strategy": "self_consistency", "n": 24, "stop": "Or else:"}
    for seed in range(6):
        early = await rambled(settings | {"risk": 0.0, "seed": seed})
        assert early.selection.answer == (await rambled(settings | {"seed": seed})).selection.answer


def test_without_a_stop_nothing_is_cut() -> None:
    _, outcome = search(BEST)
    assert not outcome.stopped
    assert outcome.text == outcome.selection.node.text


@pytest.mark.parametrize(
    ("stop", "loc"),
    [
        ("", ("stop", 0)),
        (["a", ""], ("stop", 1)),
        (["a"] * 5, ("stop",)),
        ([1], ("stop", 0)),
        (3, ("stop",)),
        (None, ("stop",)),
        ({"a": 1}, ("stop",)),
        ("x" * (MAX_STOP_CHARS + 1), ("stop", 0)),
    ],
)
def test_an_invalid_stop_is_refused(stop: Any, loc: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_search(BEST | {"stop": stop})
    assert [error["loc"] for error in caught.value.errors()] == [loc]


def test_a_string_is_a_list_of_one_stop() -> None:
    assert parse_search(BEST | {"stop": "a"}) == parse_search(BEST | {"stop": ["a"]})
    assert parse_search(BEST | {"stop": []}) == parse_search(BEST)
