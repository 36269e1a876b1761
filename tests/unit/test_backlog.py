"""Backlog: the time for which a new call would wait."""

from collections import deque
from contextlib import AbstractContextManager

import pytest

from deployments.engines.backlog import AVERAGED_OVER_S, Backlog

LONG = 6 * AVERAGED_OVER_S


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def open_call(backlog: Backlog) -> AbstractContextManager[None]:
    call = backlog.call()
    call.__enter__()
    return call


def served(backlogs: list[Backlog], clock: Clock, at_once: int, work_s: float) -> list[float]:
    """Backlog of each replica after a long time with ``at_once`` open calls at each, which end one after the other."""
    calls = deque(open_call(backlog) for _ in range(at_once) for backlog in backlogs)
    until = clock.now + LONG
    while clock.now < until:
        for backlog in backlogs:
            clock.now += work_s / len(backlogs)
            calls.popleft().__exit__(None, None, None)
            calls.append(open_call(backlog))
    backlogs_s = [backlog.seconds for backlog in backlogs]
    for call in calls:
        call.__exit__(None, None, None)
    return backlogs_s


def test_the_backlog_is_the_time_of_all_open_calls(clock: Clock) -> None:
    backlog = Backlog(clock)
    assert backlog.seconds == 0
    assert served([backlog], clock, at_once=8, work_s=0.3) == pytest.approx([8 * 0.3], rel=0.1)


def test_on_two_replicas_the_backlog_of_each_is_half(clock: Clock) -> None:
    backlogs = [Backlog(clock), Backlog(clock)]
    assert served(backlogs, clock, at_once=4, work_s=0.3) == pytest.approx([4 * 0.3] * 2, rel=0.1)


def test_sequential_calls_cause_no_larger_total_backlog_on_two_replicas(clock: Clock) -> None:
    """So that a pool can shrink again."""

    def one_after_another(backlogs: list[Backlog]) -> float:
        until = clock.now + LONG
        while clock.now < until:
            for backlog in backlogs:
                with backlog.call():
                    clock.now += 0.3
                clock.now += 0.1
        return sum(backlog.seconds for backlog in backlogs)

    alone = one_after_another([Backlog(clock)])
    assert alone == pytest.approx(0.75 * 0.3, rel=0.1)
    assert one_after_another([Backlog(clock), Backlog(clock)]) == pytest.approx(alone, rel=0.1)


def test_the_backlog_decays(clock: Clock) -> None:
    backlog = Backlog(clock)
    served([backlog], clock, at_once=8, work_s=0.3)
    clock.now += LONG
    assert backlog.seconds < 0.01


def test_without_ending_calls_the_backlog_grows_to_a_bound(clock: Clock) -> None:
    backlog = Backlog(clock)
    with backlog.call():
        clock.now += 1
        soon = backlog.seconds
        clock.now += 10 * LONG
        assert 0 < soon < backlog.seconds == pytest.approx(AVERAGED_OVER_S)


def test_a_failed_call_is_not_open(clock: Clock) -> None:
    backlog = Backlog(clock)

    def fail() -> None:
        with backlog.call():
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    clock.now += LONG
    assert backlog.seconds == 0
