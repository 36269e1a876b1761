"""An event loop whose clock jumps to the next timer whenever nothing is runnable."""

import asyncio
import heapq
import selectors
import time
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import count
from typing import Any, TypeVar, TypeVarTuple
from unittest.mock import patch

T = TypeVar("T")
Args = TypeVarTuple("Args")


class Deadlock(RuntimeError):
    """All tasks wait, and nothing can wake them: no timer is set, and there are no other threads."""


class _Timer(asyncio.TimerHandle):
    """Timers of the same moment fire in the order in which they were set."""

    def __init__(self, serial: int, *args: Any) -> None:
        super().__init__(*args)
        self.serial = serial

    def __lt__(self, other: Any) -> bool:
        return (self._when, self.serial) < (other._when, other.serial)  # type: ignore[attr-defined]


class _Jump(selectors.SelectSelector):
    """Never waits: advances the clock by the requested timeout."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("all tasks wait, and no timer is set")
        self.now += max(0.0, timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Runs asyncio code as fast as it computes, always in the same order.

    ``time()`` starts at 0. There is one thread and no input from outside, so a task that waits for another thread, a
    process or a socket would wait for ever: that raises `NothingLeft`.
    """

    def __init__(self) -> None:
        self._jump = _Jump()
        self._timers = count()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now

    def call_at(
        self, when: float, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(next(self._timers), when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def run_in_executor(self, executor: Any, func: Callable[[*Args], T], *args: *Args) -> asyncio.Future[T]:
        """Runs ``func`` at once in this thread, in no virtual time."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like ``asyncio.run``, on a virtual clock, which ``time.monotonic()`` returns as well.

    Raises:
        NothingLeft: ``main`` waits for something that cannot happen.
    """
    with (
        asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
        patch.object(time, "monotonic", runner.get_loop().time),
    ):
        return runner.run(main)
