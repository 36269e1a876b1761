"""Which replica gets a call: the first of a search's homes with room, and another one when the same has failed."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.serve._private.request_router.common import PendingRequest
from ray.serve.config import RequestRouterConfig

from cluster.homes import BALANCE, HOMES, Homes, most_calls, order
from cluster.routing import Asked, CallMatching, HomeRouter, asked
from deployments.app import ENGINE_ROUTER

NAMES = [f"replica-{number}" for number in range(4)]
some_names = st.sets(st.text("abcdef0123456789", min_size=4, max_size=8), min_size=1, max_size=2 * HOMES)
some_calls = st.lists(st.integers(0, 50), min_size=1, max_size=2 * HOMES)


class Router:
    """A router's view of some replicas, without Serve around it."""

    def __init__(self, calls: dict[str, int]) -> None:
        self.router: Any = object.__new__(HomeRouter)
        self.router._candidates = []
        self.told(calls)

    def told(self, calls: dict[str, int]) -> None:
        self.router._replica_queue_len_cache = {name: count for name, count in calls.items() if count}
        self.replicas: list[Any] = [SimpleNamespace(replica_id=_Name(name)) for name in calls]

    def ranked(self, search_id: str, attempt: int = 0) -> list[list[str]]:
        request = SimpleNamespace(search_id=search_id, attempt=attempt)
        call: Any = SimpleNamespace(args=[request], routing_context=SimpleNamespace())
        ranks = asyncio.run(self.router.choose_replicas(self.replicas, call))
        return [[str(each.replica_id) for each in rank] for rank in ranks]


class _Name(str):
    __slots__ = ()

    @property
    def unique_id(self) -> str:
        return str(self)


def by_name(calls: list[int]) -> dict[str, int]:
    return {f"replica-{number}": count for number, count in enumerate(calls)}


def test_engines_have_it() -> None:
    given = RequestRouterConfig.model_validate({"request_router_class": ENGINE_ROUTER})

    assert given.get_request_router_class() is HomeRouter


def test_searches_spread_over_the_replicas() -> None:
    homes = Counter(order(f"search {number}", NAMES)[0] for number in range(4000))

    assert all(800 < homes[name] < 1200 for name in NAMES)


@given(some_names, st.text(min_size=1), st.data())
def test_a_replica_that_goes_moves_nobody_elses_home(names: set[str], search_id: str, data: st.DataObject) -> None:
    ordered = order(search_id, sorted(names))
    gone = data.draw(st.sampled_from(ordered))

    left = order(search_id, sorted(names - {gone}, reverse=True))
    assert left[: len(ordered) - 1] == [name for name in ordered if name != gone]
    assert len(left) == min(HOMES, len(names) - 1)


@given(some_names, st.lists(st.text(), min_size=1))
def test_homes_that_are_remembered_are_those_that_are_reckoned(names: set[str], searches: list[str]) -> None:
    homes = Homes(sorted(names))

    assert [homes.of(each) for each in searches * 2] == [order(each, sorted(names)) for each in searches * 2]


@given(some_calls, st.text(min_size=1))
def test_the_first_home_with_room_is_asked_first_and_all_replicas_are_asked(calls: list[int], search_id: str) -> None:
    of = by_name(calls)

    ranks = Router(of).ranked(search_id)

    homes = order(search_id, list(of))
    at_work = sum(of[name] for name in homes)
    most = most_calls(at_work, len(homes))
    [first], *_ = ranks
    assert first == next(each for each in homes if of[each] < most)
    assert of[first] + 1 <= BALANCE * (at_work + 1) / len(homes) + 1
    assert sorted(name for [name] in ranks[: len(homes)]) == sorted(homes)
    assert ranks[len(homes) :] == ([list(of)] if len(of) > HOMES else [])


@given(some_calls, st.text(min_size=1), st.integers(0, 30))
def test_a_call_that_failed_goes_elsewhere_each_time(calls: list[int], search_id: str, attempt: int) -> None:
    router = Router(by_name(calls))
    first = [ranks[0][0] for ranks in (router.ranked(search_id, attempt + more) for more in range(len(calls)))]

    assert len(set(first)) == min(HOMES, len(calls))


def test_replicas_that_come_and_go_are_noticed() -> None:
    router = Router(dict.fromkeys(NAMES, 0))
    [home], [second], *_ = router.ranked("a search")

    router.told({name: 0 for name in NAMES if name != home})
    assert router.ranked("a search")[0] == [second]
    router.told(dict.fromkeys(NAMES, 0))
    assert router.ranked("a search")[0] == [home]


def test_a_call_of_no_search_goes_to_whoever_is_least_busy() -> None:
    router = Router(dict.fromkeys(NAMES, 0))
    canary: Any = SimpleNamespace(args=[20.0], routing_context=SimpleNamespace())

    assert asked(canary) is asked(None) is None
    assert asyncio.run(router.router.choose_replicas(router.replicas, canary)) == [router.replicas]


def test_what_a_call_says_of_itself() -> None:
    def call(**request: Any) -> Any:
        return SimpleNamespace(args=[SimpleNamespace(**request)])

    assert asked(call(search_id="a", attempt=2)) == Asked("a", 2)
    assert asked(call(search_id="a")) == Asked("a", 0)
    assert asked(call(search_id=None)) is None


@pytest.mark.asyncio
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
