"""When a controller collects cyclic garbage: when no search runs, or when what it holds has grown.

A collection of all generations looks at every object of the process: a few hundred milliseconds where large trees grow,
in which nothing else runs. Searches need none: what they leave is freed by reference counting, their trees included
(`search.run.disposal`). So the two young generations are collected as ever, in a millisecond or two, and the oldest one
while nothing runs. What libraries leave in cycles of calls and streams is taken apart in `deployments.calls.dismantle`
or found by the young generations, but for what nobody knows of: so without a moment of rest everything is collected
when the process has grown by more than what searches come and go with. That takes 5 to 30 ms, the running searches'
own: a thousand objects each, a microsecond for each where it is slow.
"""

import asyncio
import gc
import time
from collections.abc import Callable

import psutil  # type: ignore[import-untyped, unused-ignore]

YOUNG = (250, 4)
"""Thresholds of the young generations. Less than Python's 700 and 10, for shorter collections: what is looked at are
token ids of whole paths."""
NEVER = 1 << 30
QUIET_S = 1.0
"""Nothing runs this long after a search has ended, before everything is collected: the tree is freed meanwhile."""
IDLE_INTERVAL_S = 10.0
"""At most so often while nothing runs."""
BUSY_INTERVAL_S = 60.0
"""At most so often while something runs."""
BUSY_GROWTH_BYTES = 4 << 20
"""Of resident memory since everything was last collected."""


class GarbagePolicy:
    """When the oldest generation is collected. One for a process, told by one event loop."""

    def __init__(self, is_busy: Callable[[], bool], resident_bytes: Callable[[], int] | None = None) -> None:
        """``is_busy``: whether a search runs now. ``resident_bytes``: of this process."""
        process = psutil.Process()
        self._is_busy = is_busy
        self._resident_bytes = resident_bytes or (lambda: int(process.memory_info().rss))
        self._collected = time.monotonic()
        self._held = 0
        """Bytes, after the last collection."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """To be called once, when what stays for good has been made: it is never looked at again."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*YOUNG, NEVER)
        self._done()

    def place_freed(self) -> None:
        """A search has ended: this may be the moment, if nothing else begins."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(QUIET_S, self._look)

    def _look(self) -> None:
        self._timer = None
        since = time.monotonic() - self._collected
        if self._is_busy():
            wanted = since >= BUSY_INTERVAL_S and self._resident_bytes() - self._held >= BUSY_GROWTH_BYTES
        else:
            wanted = since >= IDLE_INTERVAL_S
        if wanted:
            gc.collect()
            self._done()

    def _done(self) -> None:
        self._collected = time.monotonic()
        self._held = self._resident_bytes()
