"""What limits the calls to a backend: by the minute exactly, and at a time within bounds."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.backends.limits import FIRST_CALLS, MINUTE_S, CallLimit, MinuteLimit
from deployments.backends.usage import Usage

AMOUNTS = st.lists(st.tuples(st.floats(0, 40), st.integers(1, 12), st.integers(0, 12)), max_size=30)


@settings(max_examples=60)
@given(AMOUNTS, st.integers(1, 20))
def test_no_minute_has_more_than_its_limit(calls: Sequence[tuple[float, int, int]], most: int) -> None:
    limit, now = MinuteLimit(most), 1000.0
    spent: list[tuple[float, int]] = []
    for pause, amount, really in calls:
        now = max(now + pause, limit.free_at(amount, now + pause))
        limit.settle(limit.spend(amount, now), min(amount, really))
        spent.append((now, min(amount, really)))
    for at, amount in spent:
        minute = sum(other for when, other in spent if at - MINUTE_S + 1e-6 < when <= at)
        assert minute <= most or minute == amount  # one that is larger than the limit goes alone


def test_without_a_limit_there_is_no_wait_and_nothing_is_kept() -> None:
    limit = MinuteLimit(None)
    for _ in range(3):
        limit.settle(limit.spend(10**9, 5.0), 10**9)
        assert limit.free_at(10**9, 5.0) == 5.0


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("answer"), st.floats(0.001, 100), st.integers(1, 300), st.integers(0, 500)),
        st.tuples(st.just("refusal"), st.floats(0, 10), st.floats(0, 10)),
    ),
    max_size=200,
)


@settings(max_examples=60)
@given(EVENTS, st.integers(1, 300))
def test_the_limit_of_calls_stays_within_its_bounds(events: Sequence[tuple[Any, ...]], most: int) -> None:
    limit = CallLimit(most)
    for kind, *figures in events:
        if kind == "answer":
            limit.answered(*figures)
        else:
            limit.refused(*figures)
        assert 1 <= limit.calls <= most


def windows(limit: CallLimit, number: int, seconds_of_a_call: float) -> None:
    for _ in range(number):
        for _ in range(limit.calls):
            limit.answered(seconds_of_a_call, limit.calls, 100)


def test_refusals_of_calls_sent_together_halve_the_limit_once_and_answers_raise_it_by_one_a_window() -> None:
    limit = CallLimit(1000)
    for _ in range(10):
        limit.refused(sent_at=1.0, now=2.0)
    assert limit.calls == FIRST_CALLS // 2
    limit.refused(sent_at=3.0, now=4.0)
    assert limit.calls == FIRST_CALLS // 4
    windows(limit, 5, 1.0)
    assert limit.calls == FIRST_CALLS // 4 + 5


def test_the_limit_grows_while_throughput_does_and_stops_where_more_calls_only_wait_longer() -> None:
    limit = CallLimit(4096)
    for _ in range(200):  # a server that does 200 calls at a time, and gets slower with more
        calls = limit.calls
        windows(limit, 1, 1.0 * max(1.0, (calls / 200) ** 3))
    assert 150 < limit.calls < 500


def test_calls_of_other_lengths_do_not_look_like_a_slower_server() -> None:
    limit = CallLimit(1000)
    limit.refused(1.0, 2.0)
    windows(limit, 3, 1.0)
    before = limit.calls
    for _ in range(limit.calls):
        limit.answered(50.0, limit.calls, 5000)
    assert limit.calls > before


def usage(read: object, written: object, cached: object = None) -> dict[str, object]:
    return {
        "usage": {
            "prompt_tokens": read,
            "completion_tokens": written,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
    }


def test_usage_is_the_backends_or_an_estimate_that_says_so() -> None:
    def of(reply: dict[str, object]) -> Usage:
        return Usage.of(reply, "a question of five words or so", "the answer", max_tokens=8)

    assert of(usage(9, 3, 4)) == Usage(9, 3, 4)
    assert of(usage(9, 3, 99)) == Usage(9, 3, 9)
    assert of(usage(9, 3, "many")) == Usage(9, 3)
    estimate = Usage(8, 3, estimated=True)
    wrong: list[dict[str, object]] = [
        {},
        {"usage": None},
        usage(9, 0),
        usage(9, 9),
        usage(0, 3),
        usage(-1, 3),
        usage(9, 2.5),
        usage(True, "3"),
    ]
    assert [of(each) for each in wrong] == [estimate] * len(wrong)
