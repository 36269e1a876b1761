"""Calls of tools are one answer where they call the same."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.answers.tool_calls import ToolCall, calls_answer

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(st.text(max_size=2), values, max_size=4)


@given(st.lists(st.tuples(st.text(max_size=3), objects), max_size=3), st.randoms(use_true_random=False))
def test_equal_calls_are_one_answer_however_they_are_written(calls, rng) -> None:  # type: ignore[no-untyped-def]
    def written(name: str, arguments: dict[str, object]) -> ToolCall:
        keys = list(arguments)
        rng.shuffle(keys)
        indent = rng.choice([None, 1])
        return ToolCall(name, json.dumps({key: arguments[key] for key in keys}, indent=indent))

    first = [written(*call) for call in calls]
    again = [written(*call) for call in rng.sample(calls, len(calls))]
    assert calls_answer(first) == calls_answer(again)
    read = [[call["name"], call["arguments"]] for call in json.loads(calls_answer(first))]
    told = [json.dumps(each, sort_keys=True) for each in read]
    assert sorted(told) == sorted(json.dumps([name, given], sort_keys=True) for name, given in calls)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (("f", '{"x": 1}'), ("f", '{"x": 1.0}'), True),
        (("f", '{"x": 1}'), ("f", '{"x": "1"}'), False),
        (("f", '{"x": 1}'), ("f", '{"x": true}'), False),
        (("f", '{"x": 1}'), ("g", '{"x": 1}'), False),
        (("f", '{"x": 1}'), ("f", '{"x": 1, "why": "a"}'), True),
        (("f", '{"why": {"x": 1}}'), ("f", '{"why": 2}'), True),
        (("f", '{"x": {"why": 1}}'), ("f", '{"x": {"why": 2}}'), False),
        (("f", "{broken"), ("f", "{broken"), True),
        (("f", "{broken"), ("f", '"{broken"'), True),
        (("f", "{broken"), ("f", "{broken}"), False),
    ],
)
def test_arguments_are_compared_as_json(first: tuple[str, str], second: tuple[str, str], same: bool) -> None:
    answers = [calls_answer([ToolCall(*call)], {"why"}) for call in (first, second)]
    assert (answers[0] == answers[1]) is same
