"""Requests that are given up while their prefix is loading: vLLM must hear of each once, after its load."""

import random

from kvstore.transfers import to_report


def test_a_request_that_only_stored_is_told_as_stored() -> None:
    assert to_report({"a"}, set(), set()) == ({"a"}, set())


def test_given_up_while_loading_it_is_told_once_it_has_loaded() -> None:
    assert to_report({"a"}, set(), {"a"}) == (set(), set())
    assert to_report(set(), {"a"}, {"a"}) == (set(), {"a"})


def test_both_at_once_is_told_as_loaded() -> None:
    assert to_report({"a", "b"}, {"a"}, {"a"}) == ({"b"}, {"a"})
    assert to_report({"a"}, {"a"}, set()) == (set(), {"a"})


def test_loaded_and_later_ended_is_told_of_both() -> None:
    assert to_report(set(), {"a"}, {"a"}) == (set(), {"a"})
    assert to_report({"a"}, set(), set()) == ({"a"}, set())


def test_whatever_the_order_no_ended_request_is_told_twice() -> None:
    """A scheduler that frees an ended request's blocks when it is told, and must not be told again."""
    die = random.Random(1)
    for _ in range(2_000):
        loading = {str(number) for number in range(die.randint(0, 4))}
        alive = loading | {"x", "y"}
        ended: set[str] = set()
        freed: set[str] = set()
        while loading or alive:
            before = set(loading)
            leaving = {name for name in alive if die.random() < 0.3}
            arrived = {name for name in loading if die.random() < 0.3}
            alive -= leaving
            loading -= arrived
            ended |= leaving
            stored, loaded = to_report(leaving, arrived, before)
            for name in loaded:
                if name in ended:
                    assert name not in freed
                    freed.add(name)
            for name in stored:
                assert name not in freed
                assert name not in loading
                freed.add(name)
        assert freed == ended
