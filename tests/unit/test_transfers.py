"""Requests that are given up while their prefix is loading: vLLM must hear of each once, after its load."""

import random

import pytest

from kvstore.transfers import Transfers


def given_up() -> Transfers:
    transfers = Transfers()
    transfers.load_begins("a")
    transfers.request_ends("a")
    return transfers


def test_a_request_that_never_loaded_is_told_as_stored() -> None:
    assert Transfers().to_tell({"a"}, set()) == {"a"}


def test_loaded_and_ended_later_it_is_told_as_stored() -> None:
    transfers = Transfers()
    transfers.load_begins("a")
    assert transfers.to_tell(set(), {"a"}) == set()
    transfers.request_ends("a")
    assert transfers.to_tell({"a"}, set()) == {"a"}


@pytest.mark.parametrize(
    "reports", [[({"a"}, set()), (set(), {"a"})], [({"a"}, {"a"})], [(set(), {"a"}), ({"a"}, set())]]
)
def test_given_up_while_loading_it_is_never_told_as_stored(reports: list[tuple[set[str], set[str]]]) -> None:
    transfers = given_up()
    assert all(transfers.to_tell(stored, loaded) == set() for stored, loaded in reports)


def test_whatever_the_order_an_ended_request_is_freed_once_and_not_while_it_loads() -> None:
    die = random.Random(1)
    for _ in range(2_000):
        transfers = Transfers()
        loading = {str(number) for number in range(die.randint(0, 4))}
        alive = loading | {"x", "y"}
        for name in loading:
            transfers.load_begins(name)
        ended: set[str] = set()
        unsaid: set[str] = set()
        freed: list[str] = []
        while loading or alive or unsaid:
            stored = {name for name in unsaid if die.random() < 0.5}
            unsaid -= stored
            loaded = {name for name in loading if die.random() < 0.3}
            for name in [name for name in alive if die.random() < 0.3]:  # an abort, before the reports are read
                alive.discard(name)
                ended.add(name)
                unsaid.add(name)
                transfers.request_ends(name)
            told = transfers.to_tell(stored, loaded)
            loading -= loaded
            freed += [name for name in loaded if name in ended]
            assert not told & loading
            freed += told
        assert sorted(freed) == sorted(ended)
