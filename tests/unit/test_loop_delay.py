"""The delay of the event loop, also when it is read before the measuring task has had its turn."""

import asyncio
import time

import pytest

from deployments.loop.delay import EVERY_S, LoopDelay

pytestmark = pytest.mark.asyncio


async def test_a_blocked_loop_is_late_for_a_second() -> None:
    delay = LoopDelay()
    assert delay.seconds == 0.0
    delay.start()
    await asyncio.sleep(2 * EVERY_S)
    time.sleep(0.4)  # noqa: ASYNC251  # that is what is measured
    assert delay.seconds >= 0.3, "whoever asks first is told"
    await asyncio.sleep(2 * EVERY_S)
    assert delay.seconds >= 0.3, "and it is remembered"
    assert delay.take_longest() >= 0.3
    deadline = time.monotonic() + 30
    while delay.seconds >= 0.3:
        assert time.monotonic() < deadline
        await asyncio.sleep(EVERY_S)
    delay.take_longest()
    assert delay.take_longest() < 0.3, "since it was last asked"
    delay.stop()
    time.sleep(0.2)  # noqa: ASYNC251
    assert delay.seconds < 0.3, "what is not measured is not late"
