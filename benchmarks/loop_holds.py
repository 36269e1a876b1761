"""How long each callback holds the event loop, in processor time of the thread: others on the machine do not count."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from benchmarks.quick_ports import OwnTime

KEPT = 5


class Hold(NamedTuple):
    """One callback."""

    seconds: float
    what: str


class Holds:
    """What was measured."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Of all callbacks together."""
        self.callbacks = 0
        self.longest: list[Hold] = []
        """The longest first."""

    def add(self, seconds: float, what: Callable[[], str]) -> None:
        self.seconds += seconds
        self.callbacks += 1
        if len(self.longest) < KEPT or seconds > self.longest[-1].seconds:
            self.longest = sorted([*self.longest, Hold(seconds, what())], reverse=True)[:KEPT]


class GarbageClock:
    """Processor time that the thread spent on collecting garbage."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.longest = 0.0
        self.full = 0
        """Collections of the oldest generation."""
        self._began = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        gc.callbacks.append(self._take)
        try:
            yield
        finally:
            gc.callbacks.remove(self._take)

    def _take(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
            return
        seconds = time.thread_time() - self._began
        self.seconds += seconds
        self.longest = max(self.longest, seconds)
        self.full += info["generation"] == 2


@contextmanager
def measured(holds: Holds, fakes: OwnTime, garbage: GarbageClock) -> Iterator[None]:
    """Has every callback of every loop timed, less what the fakes spent in it."""
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        where = _place(handle)
        fakes_before, garbage_before = fakes.seconds, garbage.seconds
        before = time.thread_time()
        run(handle)
        seconds = time.thread_time() - before - (fakes.seconds - fakes_before)
        collected = garbage.seconds - garbage_before
        holds.add(
            seconds,
            lambda: (
                f"{where} to {_place(handle)}" + (f", garbage {collected * 1e3:.1f} ms" if collected > 1e-4 else "")
            ),
        )

    asyncio.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]


def _place(handle: asyncio.Handle) -> str:
    """Where the task of a callback stands: the innermost coroutine and its line."""
    callback: Any = handle._callback  # type: ignore[attr-defined]
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return getattr(callback, "__qualname__", repr(callback))
    awaited: Any = task.get_coro()
    frame = None
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None) or frame
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)
    return f"{frame.f_code.co_qualname}:{frame.f_lineno}" if frame is not None else "the end"
