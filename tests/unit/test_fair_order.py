"""Searches take turns at an engine, however many requests each of them makes at once."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from deployments.engines import fair_order
from deployments.engines.fair_order import TURN, FairOrder


def test_a_narrow_search_does_not_wait_behind_a_wide_one() -> None:
    order = FairOrder()
    wide = [order.position("wide") for _ in range(256)]
    for place in wide[:100]:
        order.served(place)
    assert [order.position("narrow") for _ in range(4)] == [97] * 4, "behind the packet that is being served"
    assert wide == [number // TURN * TURN for number in range(256)]


def test_repeated_requests_do_not_overtake_for_ever() -> None:
    order = FairOrder()
    last = [order.position("wide") for _ in range(64)][-1]
    rounds = 0
    while (place := order.position("busy")) < last:
        order.served(place)
        rounds += 1
    assert rounds == last == 64 - TURN


def test_a_request_after_a_served_packet_comes_behind_it() -> None:
    order = FairOrder()
    assert [order.position("a") for _ in range(3)] == [0, 0, 0]
    assert order.position("b") == 0
    order.served(0)
    assert [order.position("a"), order.position("b"), order.position("c")] == [3, 1, 1]


@given(asked=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 40)), max_size=20), slots=st.integers(1, 8))
def test_waiting_searches_are_served_equally(asked: list[tuple[str, int]], slots: int) -> None:
    order = FairOrder()
    waiting = [
        (order.position(search), number, search) for number, (search, many) in enumerate(asked) for _ in range(many)
    ]
    served: Counter[str] = Counter()
    while waiting:
        for _ in range(min(slots, len(waiting))):
            waiting.remove(first := min(waiting))
            order.served(first[0])
            served[first[2]] += 1
        left = {search for _, _, search in waiting}
        taken = [served[search] for search in left]
        assert not taken or max(taken) - min(taken) <= TURN


def test_served_packets_are_forgotten() -> None:
    order = FairOrder()
    for number in range(10 * fair_order.REMEMBERED):
        order.served(order.position(f"search {number}"))
        order.served(order.position(f"search {number}"))
    assert len(order._packets) <= fair_order.REMEMBERED + 1
