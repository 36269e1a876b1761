"""The replica that gets a call: the home of its search, unless that is far busier than others or the call failed
there."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.serve._private.request_router import PowerOfTwoChoicesRequestRouter
from ray.serve._private.request_router.common import PendingRequest
from ray.serve.deployment import Application

from deployments.app import build
from deployments.calls.envelope import Envelope
from deployments.config import AppConfig
from deployments.scaling.homes import BALANCE, Homes, most_calls
from deployments.scaling.router import CallMatching, HomeRouter, RoutedCall, asked

NAMES = [f"replica-{number}" for number in range(4)]
loads = st.lists(st.integers(0, 50), min_size=1, max_size=8)


class Router:
    """A router with some replicas, without Serve."""

    def __init__(self, names: Iterable[str]) -> None:
        self.router: Any = object.__new__(HomeRouter)
        self.router.__dict__.update(
            _homes=Homes(),
            _candidates=[],
            _there={},
            _calls={},
            _use_replica_queue_len_cache=False,
            _queue_len_gauge_last_update={},
        )
        self.set_replicas(names)

    def set_replicas(self, names: Iterable[str]) -> None:
        self.replicas: list[Any] = [replica(name) for name in names]
        self.ranked("a search that notices it")

    def begin(self, calls: dict[str, int]) -> "Router":
        """Begins ``calls[name]`` of this process's calls at each replica."""
        for name, count in calls.items():
            for _ in range(count):
                self.router.on_send_request(_Name(name))
        return self

    def ended(self, calls: dict[str, int]) -> "Router":
        for name, count in calls.items():
            for _ in range(count):
                self.router.on_request_completed(_Name(name), "")
        return self

    def ranked(self, search_id: str, *avoid: str, alone: bool = False) -> list[list[str]]:
        args = [SimpleNamespace(search_id=search_id), Envelope(avoid, alone)]
        call: Any = SimpleNamespace(args=args, routing_context=Context())
        ranks = asyncio.run(self.router.choose_replicas(self.replicas, call))
        assert call.routing_context.should_backoff, "Serve pauses before it asks again"
        return [[str(each.replica_id) for each in rank] for rank in ranks]


class Context(SimpleNamespace):
    should_backoff = False


class _Name(str):
    __slots__ = ()

    @property
    def unique_id(self) -> str:
        return str(self)


def replica(name: str) -> Any:
    return SimpleNamespace(replica_id=_Name(name), actor_id=name.encode())


def test_engines_use_the_home_router_and_controllers_serves_default() -> None:
    of: dict[str, Any] = {}

    def look(bound: Any) -> None:
        of[bound.name] = bound._deployment_config.request_router_config
        for each in bound.init_args:
            if isinstance(each, Application):
                look(each._bound_deployment)

    look(build(AppConfig())._bound_deployment)

    routers = {name: config.get_request_router_class() for name, config in of.items()}
    assert routers["Generator"] is routers["ProcessRewardModel"] is HomeRouter
    assert routers["SearchController"] is PowerOfTwoChoicesRequestRouter


def test_sequential_searches_are_spread_over_the_replicas() -> None:
    homes: Homes[str] = Homes()
    chosen = Counter(homes.choose(f"search {number}", dict.fromkeys(NAMES, 0)) for number in range(40))

    assert chosen == dict.fromkeys(NAMES, 10)


@given(loads, st.integers(0, 20))
def test_a_search_begins_at_the_least_busy_replica(load: list[int], others: int) -> None:
    homes: Homes[int] = Homes()
    for number in range(others):
        homes.choose(f"search {number}", dict.fromkeys(range(len(load)), 0))

    assert load[homes.choose("another", dict(enumerate(load)))] == min(load)


@given(loads, st.data())
def test_a_search_stays_at_its_home_until_that_exceeds_its_share(load: list[int], data: st.DataObject) -> None:
    homes: Homes[int] = Homes()
    home = homes.choose("a search", dict(enumerate(load)))
    calls = dict(enumerate(data.draw(st.lists(st.integers(0, 50), min_size=len(load), max_size=len(load)))))

    chosen = homes.choose("a search", calls)

    at_work = sum(calls.values()) + 1
    share = at_work / len(calls)
    most = min(BALANCE * share, (share + at_work) / 2)
    assert chosen == home if calls[home] + 1 <= most else chosen == home or calls[chosen] < calls[home]
    assert calls[chosen] + 1 <= most + 1
    assert homes.choose("a search", dict.fromkeys(calls, 0)) == chosen, "it does not go back and forth"


def test_the_limit_of_a_replica_depends_on_the_number_of_replicas() -> None:
    assert [most_calls({0: busy, 1: 0}) for busy in (1, 3, 7, 15)] == [2, 3, 6, 12]
    assert [most_calls({0: busy, 1: 0, 2: 0, 3: 0}) for busy in (1, 3, 7, 15)] == [1, 2, 4, 8]


@given(loads, st.data())
def test_a_call_goes_to_a_replica_on_which_it_has_not_failed(load: list[int], data: st.DataObject) -> None:
    homes: Homes[int] = Homes()
    calls = dict(enumerate(load))
    failed = data.draw(st.sets(st.sampled_from(list(calls))))
    homes.choose("a search", calls)

    chosen = homes.choose("a search", calls, failed)

    left = calls.keys() - failed or calls.keys()
    assert chosen in left
    assert chosen == homes.choose("a search", dict.fromkeys(calls, 0)), "and stays there"


def test_a_removed_replica_moves_only_its_own_searches() -> None:
    homes: Homes[str] = Homes()
    at = {number: homes.choose(str(number), dict.fromkeys(NAMES, 0)) for number in range(20)}
    left = dict.fromkeys(NAMES[1:], 0)

    moved = {number: homes.choose(str(number), left) for number in at}
    assert all(moved[number] == home for number, home in at.items() if home != NAMES[0])
    assert NAMES[0] not in moved.values()


def test_old_searches_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.scaling.homes.REMEMBERED", 3)
    homes: Homes[str] = Homes()
    for search_id in "abcada":
        homes.choose(search_id, dict.fromkeys(NAMES, 0))

    assert list(homes._homes) == ["c", "d", "a"]


def test_the_router_ranks_the_home_first_and_then_two_random_replicas() -> None:
    router = Router(NAMES)
    [[home], others] = router.ranked("a search")

    assert len(set(others)) == 2
    router.begin(dict.fromkeys(NAMES, 2))
    assert router.ranked("a search")[0] == [home]
    router.begin({home: 5})
    [elsewhere] = router.ranked("a search")[0]
    assert elsewhere != home
    router.ended({home: 7})
    assert router.ranked("a search")[0] == [elsewhere]


def test_the_router_avoids_the_replicas_that_a_call_names() -> None:
    router = Router(NAMES)
    failed: list[str] = []
    for _ in NAMES:
        [name] = router.ranked("a search", *failed)[0]
        failed.append(name.encode().hex())

    assert sorted(bytes.fromhex(each).decode() for each in failed) == NAMES


def test_calls_that_are_to_be_alone_go_to_one_replica_whoever_sends_them() -> None:
    first, other = Router(NAMES), Router(reversed(NAMES))
    other.begin({NAMES[0]: 9})
    assert first.ranked("a search", alone=True) == other.ranked("another", alone=True) == [[NAMES[0]]]
    failed_there = NAMES[0].encode().hex()
    assert first.ranked("a search", failed_there, alone=True) == [[NAMES[1]]]
    assert Router(NAMES[:1]).ranked("a search", failed_there, alone=True) == [[NAMES[0]]]


@given(loads, loads)
def test_ended_calls_are_not_counted(began: list[int], ended: list[int]) -> None:
    names = [f"replica-{number}" for number in range(len(began))]
    ended = ended[: len(began)]
    router = Router(names).begin(dict(zip(names, began, strict=True))).ended(dict(zip(names, ended, strict=False)))

    left = [max(0, one - other) for one, other in zip_longest(began, ended, fillvalue=0)]
    assert [router.router._calls[name] for name in names] == left


def test_calls_of_removed_replicas_are_forgotten() -> None:
    router = Router(NAMES).begin(dict.fromkeys(NAMES, 3))
    router.set_replicas(NAMES[:2])
    router.ended(dict.fromkeys(NAMES, 1))
    router.set_replicas(NAMES)

    assert router.router._calls == dict(zip(NAMES, (2, 2, 0, 0), strict=True))


def test_a_call_without_a_search_goes_to_the_less_busy_of_two_random_replicas() -> None:
    router = Router(NAMES)
    canary: Any = SimpleNamespace(args=[20.0], routing_context=Context())
    chosen = [asyncio.run(router.router.choose_replicas(router.replicas, canary)) for _ in range(50)]

    assert asked(canary) is asked(None) is None
    assert all(len(rank) == 2 for [rank] in chosen)
    assert {str(each.replica_id) for [rank] in chosen for each in rank} == set(NAMES)


def test_without_replicas_none_is_chosen() -> None:
    assert Router([]).ranked("a search") == [[]]


def test_the_search_and_failed_replicas_of_a_call_are_read() -> None:
    def call(search_id: str | None, *envelope: Envelope) -> Any:
        return SimpleNamespace(args=[SimpleNamespace(search_id=search_id), *envelope])

    assert asked(call("a", Envelope(("b",), alone=True))) == RoutedCall("a", ("b",), alone=True)
    assert asked(call("a")) == RoutedCall("a", ())
    assert asked(call(None)) is None


@pytest.mark.asyncio
async def test_calls_of_one_http_request_are_distinguished() -> None:
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
