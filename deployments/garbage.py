"""When a controller collects cyclic garbage: when no search runs, or once a minute.

A collection of all generations looks at every object of the process: a few hundred milliseconds where large trees grow,
in which nothing else runs. Searches need none: what they leave is freed by reference counting, their trees included
(`search.run.disposal`). So the two young generations are collected as ever, in a millisecond or two, and the oldest one
while nothing runs. But grpc and the streams to clients leave about 170 objects a search in cycles of their own (most of
what calls leave is taken apart in `deployments.dismantle`), of which the young generations miss every third: half a
megabyte to one a minute on two busy cores. So they are collected after a minute without a moment of rest, too. What
that takes, 5 to 30 ms, is the running searches' own: a thousand objects each, a microsecond for each where it is slow.
"""

import asyncio
import gc
import time
from collections.abc import Callable

YOUNG = (250, 4)
"""Thresholds of the young generations. Less than Python's 700 and 10, for shorter collections: what is looked at are
token ids of whole paths."""
NEVER = 1 << 30
QUIET_S = 1.0
"""Nothing runs this long after a search has ended, before everything is collected: the tree is freed meanwhile."""
IDLE_INTERVAL_S = 10.0
"""At most so often while nothing runs."""
BUSY_INTERVAL_S = 60.0
"""At the latest after so long, though something runs."""


class GarbagePolicy:
    """When the oldest generation is collected. One for a process, told by one event loop."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        """``is_busy``: whether a search runs now."""
        self._is_busy = is_busy
        self._collected = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """To be called once, when what stays for good has been made: it is never looked at again."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*YOUNG, NEVER)
        self._collected = time.monotonic()

    def place_freed(self) -> None:
        """A search has ended: this may be the moment, if nothing else begins."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(QUIET_S, self._look)

    def _look(self) -> None:
        self._timer = None
        interval = BUSY_INTERVAL_S if self._is_busy() else IDLE_INTERVAL_S
        if time.monotonic() - self._collected >= interval:
            gc.collect()
            self._collected = time.monotonic()
