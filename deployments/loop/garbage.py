"""Garbage collection of a controller: a full one only while it is idle, or after its memory has grown.

A full collection visits every object of the process. With large trees it takes a few hundred milliseconds, in which
nothing else runs. Searches do not need it: reference counting frees their objects, trees included
(`search.run.disposal`). So the two young generations are collected as usual, in a millisecond or two, and the oldest
one only while no search runs. Calls and streams of libraries leave cycles: `deployments.calls.dismantle` breaks them,
or the young generations find them. In case of an unknown cycle, a controller that is never idle makes a full collection
once its memory has grown by more than running searches explain. That takes 5 to 30 ms for the objects of the running
searches: a thousand each, at up to a microsecond per object.
"""

import asyncio
import gc
import time
from collections.abc import Callable

import psutil  # type: ignore[import-untyped, unused-ignore]

YOUNG = (250, 4)
"""Thresholds of the young generations. Lower than Python's 700 and 10, for shorter collections: the young objects
include the token ids of whole paths."""
NEVER = 1 << 30
"""Threshold at which Python does not collect the oldest generation by itself."""
QUIET_S = 1.0
"""Seconds from the end of a search to the check for a full collection; the tree is freed meanwhile."""
IDLE_INTERVAL_S = 10.0
"""Minimum seconds between two full collections while no search runs."""
BUSY_INTERVAL_S = 60.0
"""Minimum seconds between two full collections while a search runs."""
BUSY_GROWTH_BYTES = 4 << 20
"""Growth of resident memory since the last full collection that requires one while a search runs."""


class GarbagePolicy:
    """Decides when all generations are collected. One per process, used by one event loop."""

    def __init__(self, is_busy: Callable[[], bool], resident_bytes: Callable[[], int] | None = None) -> None:
        """``is_busy``: whether a search runs now. ``resident_bytes``: resident memory of this process."""
        process = psutil.Process()
        self._is_busy = is_busy
        self._resident_bytes = resident_bytes or (lambda: int(process.memory_info().rss))
        self._collected = time.monotonic()
        self._held = 0
        """Resident bytes after the last full collection."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """To be called once, when all permanent objects exist: later collections do not visit them."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*YOUNG, NEVER)
        self._done()

    def place_freed(self) -> None:
        """Schedules a check for a full collection after the end of a search."""
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
