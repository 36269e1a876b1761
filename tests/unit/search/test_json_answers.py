"""Answers held to a JSON schema: the whole text votes, in canonical form."""

import json
from typing import Any

import pytest
from search_fakes import Bench

from search.answers.json_answer import json_answer
from search.answers.readings import grouped, of_text
from search.ports import Child
from search.run.report import SearchOutcome
from search.tree import Step, StepEnd

SCHEMA = '{"type":"object"}'


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (' { "b" : [1, 2.50],\n"a": null }\n', '{"a":null,"b":[1,2.5]}'),
        ('{"a": 5.0, "b": 1e3}', '{"a":5,"b":1000}'),
        ('"\\u00e9\\n"', '"é\\n"'),
        ("true", "true"),
        (str(10**30), str(10**30)),
        ('{"a": 5', None),
        ("", None),
        ("NaN", None),
        ("1e999", None),
        ("9" * 5000, None),
        ("[" * 100_000 + "]" * 100_000, None),
        ('{"a": 1} and more', None),
    ],
)
def test_equal_values_have_one_spelling(text: str, answer: str | None) -> None:
    assert json_answer(text) == answer


def test_only_equal_texts_are_the_same() -> None:
    assert grouped([of_text(text) for text in ("b", "a", "b", "B")]) == [[0, 2], [1], [3]]


async def written(texts: list[str], settings: dict[str, Any]) -> tuple[Bench, SearchOutcome]:
    """A search whose solutions are ``texts`` in turn, each in two steps."""
    bench = Bench()

    def write(request: Any, expansion: Any, branch: Any) -> Child:
        text = texts[branch.index]
        first = Step((1,), text[:4], StepEnd.DELIMITER)
        return Child(expansion.parent, branch.index, (first, Step((2,), text[4:], StepEnd.END_OF_SEQUENCE)), 0)

    bench.generator._write = write  # type: ignore[method-assign]
    return bench, await bench.search(settings | {"n": len(texts)}, json_schema=SCHEMA)


@pytest.mark.parametrize("strategy", ["self_consistency", "best_of_n"])
async def test_the_whole_text_is_voted_on(strategy: str) -> None:
    texts = [
        '{"x": "50%", "y": "\\\\boxed{9}"}',
        '{"x":"50","y":"\\\\boxed{9}"}',
        '{"y":"\\\\boxed{9}", "x":"50%"}',
        '{"x": "50%"',
    ]
    bench, outcome = await written(texts, {"strategy": strategy, "selection": "majority"})
    assert {request.json_schema for request in bench.generator.requests} == {SCHEMA}
    assert [(group.answer, group.size) for group in outcome.selection.groups] == [
        ('{"x":"50%","y":"\\\\boxed{9}"}', 2),
        ('{"x":"50","y":"\\\\boxed{9}"}', 1),
    ]
    assert json.loads(outcome.text) == {"x": "50%", "y": "\\boxed{9}"}


async def test_an_early_stop_tells_apart_what_the_vote_tells_apart() -> None:
    """As answers of mathematics, the first three would be one, which nothing could overtake."""
    texts = ['{"x":"1 %"}', '{"x":"1%"}', '{"x":"1"}', '{"x":"2"}', '{"x":"2"}']
    _, outcome = await written(texts, {"strategy": "self_consistency", "risk": 0.0})
    assert outcome.selection.answer == '{"x":"2"}'
