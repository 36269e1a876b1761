"""How long each callback holds the event loop, in CPU time of the thread, so that other programs do not count."""

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from benchmarks.quick_ports import OwnTime

KEPT = 5


class Hold(NamedTuple):
    """The time for which one callback held the loop."""

    seconds: float
    what: str


class Holds:
    """All measured callbacks."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Seconds of all callbacks together."""
        self.callbacks = 0
        self.longest: list[Hold] = []
        """The longest first."""

    def add(self, seconds: float, what: Callable[[], str]) -> None:
        self.seconds += seconds
        self.callbacks += 1
        if len(self.longest) < KEPT or seconds > self.longest[-1].seconds:
            self.longest = sorted([*self.longest, Hold(seconds, what())], reverse=True)[:KEPT]


class GarbageClock:
    """CPU time that the thread spent on garbage collection."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.longest = 0.0
        self.full = 0
        """Number of full collections."""
        self._began = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        gc.callbacks.append(self._on_collection)
        try:
            yield
        finally:
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
            return
        seconds = time.thread_time() - self._began
        self.seconds += seconds
        self.longest = max(self.longest, seconds)
        self.full += info["generation"] == 2


@contextmanager
def measured(holds: Holds, fakes: OwnTime, garbage: GarbageClock) -> Iterator[None]:
    """Times every callback of every loop, without what the fakes spent in it."""
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        where = _place(handle)
        fakes_before, garbage_before = fakes.seconds, garbage.seconds
        before = time.thread_time()
        run(handle)
        seconds = time.thread_time() - before - (fakes.seconds - fakes_before)
        collected = garbage.seconds - garbage_before
        holds.add(seconds, lambda: _label(f"{where} to {_place(handle)}", collected))

    asyncio.Handle._run = timed  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]


def _label(where: str, collected: float) -> str:
    return where + (f", garbage {collected * 1e3:.1f} ms" if collected > 1e-4 else "")


def _place(handle: asyncio.Handle) -> str:
    """Where the task of a callback is suspended."""
    callback: Any = handle._callback  # type: ignore[attr-defined]
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return getattr(callback, "__qualname__", repr(callback))
    return place(task.get_coro())


def place(awaited: Any) -> str:
    """Where a coroutine is suspended: the innermost coroutine that it awaits, and the line."""
    frame = None
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None) or frame
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)
    return f"{frame.f_code.co_qualname}:{frame.f_lineno}" if frame is not None else "the end"


@contextmanager
def measured_tasks(loop: asyncio.AbstractEventLoop, holds: Holds, garbage: GarbageClock) -> Iterator[None]:
    """Times every step of every task that the loop starts from now on: for loops other than asyncio's own, whose
    callbacks cannot be patched."""
    before = loop.get_task_factory()

    def timed(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        steps = _TimedSteps(coroutine, holds, garbage)
        return before(loop, steps, **options) if before else asyncio.Task(steps, loop=loop, **options)

    loop.set_task_factory(timed)
    try:
        yield
    finally:
        loop.set_task_factory(before)


class _TimedSteps(Coroutine[Any, Any, Any]):
    """A coroutine whose every step is timed."""

    def __init__(self, coroutine: Any, holds: Holds, garbage: GarbageClock) -> None:
        self._coroutine = coroutine
        self._holds = holds
        self._garbage = garbage

    def send(self, value: Any) -> Any:
        with self._timed():
            return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        with self._timed():
            return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        return self._coroutine.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        where, collected, before = place(self._coroutine), self._garbage.seconds, time.thread_time()
        try:
            yield
        finally:
            seconds, collected = time.thread_time() - before, self._garbage.seconds - collected
            self._holds.add(seconds, lambda: _label(f"{where} to {place(self._coroutine)}", collected))
