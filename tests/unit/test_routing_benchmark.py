"""Which replica gets a call: a search's own first, and none far more than its share."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.serve._private.request_router.common import PendingRequest

from benchmarks.home_router import CallMatching, HomeRouter, search_of
from benchmarks.homes import BALANCE, most_calls, order
from benchmarks.routing import DEFAULT, LOADS, Run, rather

NAMES = [f"replica-{number}" for number in range(4)]
names = st.sets(st.text("abcdef0123456789", min_size=4, max_size=8), min_size=1, max_size=8)


class Replicas:
    """A router's view of some replicas, without Serve around it."""

    def __init__(self, calls: dict[str, int]) -> None:
        self.router: Any = object.__new__(HomeRouter)
        self.router._replica_queue_len_cache = {name: count for name, count in calls.items() if count}
        self.replicas: list[Any] = [SimpleNamespace(replica_id=_Name(name)) for name in calls]

    def ranked(self, search_id: str) -> list[str]:
        ranks = asyncio.run(self.router.choose_replicas(self.replicas, call(search_id)))
        return [str(each.replica_id) for rank in ranks for each in rank]


class _Name(str):
    __slots__ = ()

    @property
    def unique_id(self) -> str:
        return str(self)


def call(search_id: str) -> Any:
    return SimpleNamespace(args=[SimpleNamespace(search_id=search_id)], routing_context=SimpleNamespace())


def test_searches_spread_over_the_replicas() -> None:
    homes = Counter(order(f"search {number}", NAMES)[0] for number in range(4000))

    assert all(800 < homes[name] < 1200 for name in NAMES)


@given(names, st.text(min_size=1), st.data())
def test_a_replica_that_goes_moves_nobody_elses_home(replicas: set[str], search_id: str, data: st.DataObject) -> None:
    ordered = order(search_id, sorted(replicas))
    gone = data.draw(st.sampled_from(ordered))

    assert order(search_id, sorted(replicas - {gone}, reverse=True)) == [name for name in ordered if name != gone]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.text(min_size=1))
def test_the_first_in_a_searchs_order_with_room_is_asked_first_and_all_are_asked(calls: list[int], name: str) -> None:
    by_name = {f"replica-{number}": count for number, count in enumerate(calls)}

    ranked = Replicas(by_name).ranked(name)

    preferred = order(name, list(by_name))
    most = most_calls(sum(calls), len(calls))
    assert sorted(ranked) == sorted(by_name)
    assert ranked[0] == next(each for each in preferred if by_name[each] < most)
    assert by_name[ranked[0]] + 1 <= BALANCE * (sum(calls) + 1) / len(calls) + 1


def test_a_call_of_no_search_goes_to_whoever_is_least_busy() -> None:
    replicas = Replicas(dict.fromkeys(NAMES, 0))
    canary: Any = SimpleNamespace(args=[20.0], routing_context=SimpleNamespace())

    assert search_of(canary) is None
    assert asyncio.run(replicas.router.choose_replicas(replicas.replicas, canary)) == [replicas.replicas]


async def test_calls_of_one_http_request_are_told_apart() -> None:
    matching = CallMatching()
    metadata: list[Any] = [SimpleNamespace(internal_request_id="the same") for _ in range(3)]
    calls = [PendingRequest(args=[], kwargs={}, metadata=each) for each in metadata]
    for each in calls:
        matching._add_pending_request_to_indices(each)

    found = [matching._get_pending_request_matching_internal_request_id(each) for each in metadata]
    assert found == calls
    calls[0].future.cancel()
    matching._remove_pending_request_from_indices(calls[1])
    found = [matching._get_pending_request_matching_internal_request_id(each) for each in metadata]
    assert found == [None, None, calls[2]]


READY, OURS = "consistent hash", "home"


@pytest.mark.parametrize(
    ("seconds", "noise", "expected"),
    [
        ({DEFAULT: (1.0, 1.0), READY: (0.9, 0.99), OURS: (0.95, 0.98)}, 0.0, [READY]),
        ({DEFAULT: (1.0, 1.0), READY: (0.9, 0.99), OURS: (0.95, 0.98)}, 0.2, []),
        ({DEFAULT: (1.0, 1.0), READY: (0.9, 1.1), OURS: (1.0, 1.0)}, 0.0, []),
        ({DEFAULT: (1.0, 1.0), READY: (1.0, 1.0), OURS: (0.98, 0.95)}, 0.0, []),
        ({DEFAULT: (1.0, 1.0), READY: (1.0, 1.0), OURS: (0.98, 0.9)}, 0.0, [OURS]),
    ],
    ids=["faster", "within noise", "worse elsewhere", "ours, a little", "ours, by much"],
)
def test_what_should_be_served_instead_of_the_default(
    seconds: dict[str, tuple[float, float]], noise: float, expected: list[str]
) -> None:
    ran = {
        load: {arm: [Run(took[place], [], [], {}, 0.0)] for arm, took in seconds.items()}
        for place, load in enumerate(LOADS)
    }
    rows = [
        {
            "load": load,
            "arm": arm,
            "time_over_default": {"interval": [took[place] - 1 - noise, took[place] - 1 + noise]},
        }
        for place, load in enumerate(LOADS)
        for arm, took in seconds.items()
        if arm != DEFAULT
    ]

    assert rather(ran, rows) == expected
