"""How long steps wait for their rewards."""

from contextlib import ExitStack

import pytest

from deployments.engines.scoring_delay import LATELY_S, ScoringDelay


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_it_is_the_mean_of_those_that_ended_lately(clock: Clock) -> None:
    delay = ScoringDelay(clock)
    assert delay.seconds == 0
    for took in (1.0, 3.0):
        with delay.call():
            clock.now += took
    assert delay.seconds == 2
    clock.now += LATELY_S - 2.5
    assert delay.seconds == 3, "the first one ended too long ago"
    clock.now += 3
    assert delay.seconds == 0


def test_those_that_wait_for_longer_count(clock: Clock) -> None:
    delay = ScoringDelay(clock)
    with ExitStack() as calls:
        calls.enter_context(delay.call())
        clock.now += 4
        with delay.call():
            clock.now += 0.5
        assert delay.seconds == 4.5, "one that hangs does not look like one with nothing to do"
        calls.enter_context(delay.call())
        assert delay.seconds == 2.25
    assert delay.seconds == pytest.approx((0.5 + 4.5 + 0) / 3)


def test_one_that_fails_has_waited_too(clock: Clock) -> None:
    delay = ScoringDelay(clock)

    def fail() -> None:
        with delay.call():
            clock.now += 2
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert delay.seconds == 2
