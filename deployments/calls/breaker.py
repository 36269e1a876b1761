"""A circuit breaker for a deployment that searches can do without: no call waits once it is gone."""

import asyncio
import contextvars
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

logger = logging.getLogger("banyan.breaker")

LOOK_EVERY_S = 2.0
"""Seconds between two liveness checks of the replicas, while calls wait and get no answer."""
PROBE_EVERY_S = 1.0
"""Maximum seconds between two probes while the breaker is open."""


class CircuitOpen(RuntimeError):
    """The deployment is gone: the call was not made, or was aborted."""


class Breaker:
    """Lets calls through while the deployment shows signs of life. Single-threaded: one event loop.

    It opens when calls wait and there was no sign of life for ``patience_s`` seconds: no answer to any call, and no
    replica reported that its engine is at work. A deployment that is only slow keeps it closed. When it opens, all
    waiting calls are aborted, and new calls are refused until a probe succeeds. Probes are made in the background,
    never by a search's call.
    """

    def __init__(
        self,
        name: str,
        look: Callable[[], Awaitable[float]],
        probe: Callable[[], Awaitable[object]],
        patience_s: float,
        every_s: float = LOOK_EVERY_S,
    ) -> None:
        """
        Args:
            name: what the deployment is called in messages.
            look: liveness check. Returns the seconds since any replica was last active; must raise if none answers, and
                must have a deadline.
            probe: a small piece of real work. Must raise if it fails, and must have a deadline.
            every_s: seconds between two liveness checks.
        """
        self.open = False
        self._name = name
        self._look = look
        self._probe = probe
        self._patience_s = patience_s
        self._every_s = every_s
        self._waiting: set[asyncio.Timeout] = set()
        self._sign_at = 0.0
        """Time of the last sign of life, monotonic seconds."""
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Context of one call. A call that ends without an error is a sign of life.

        Raises:
            CircuitOpen: the breaker is open, or opened during the call.
        """
        if self.open:
            raise self._gone()
        if not self._waiting:
            self._sign_at = time.monotonic()  # silence counts from the first waiting call
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._waiting.add(limit)
                self._watch()
                try:
                    yield
                finally:
                    self._waiting.discard(limit)
        except TimeoutError:
            if limit.expired():
                raise self._gone() from None
            raise
        self._sign_at = time.monotonic()

    def _watch(self) -> None:
        if self._task is None or self._task.done():
            # In an empty context: a client that disconnects must not cancel it.
            self._task = asyncio.get_running_loop().create_task(self._look_after(), context=contextvars.Context())

    async def _look_after(self) -> None:
        """Runs while calls wait, or the breaker is open."""
        while self._waiting:
            await asyncio.sleep(self._every_s)
            if self._waiting and self._silent_s >= self._every_s:
                await self._look_for_life()
            if self._waiting and self._silent_s >= self._patience_s:
                await self._stay_open()

    async def _look_for_life(self) -> None:
        try:
            silent_s = await self._look()
        except Exception as error:
            logger.debug("no heartbeat from %s: %r", self._name, error)
        else:
            self._sign_at = max(self._sign_at, time.monotonic() - silent_s)

    async def _stay_open(self) -> None:
        logger.warning(
            "%s is unavailable: no heartbeat for %.0f s; its calls fail until it answers", self._name, self._silent_s
        )
        self.open = True
        now = asyncio.get_running_loop().time()
        for limit in self._waiting:
            limit.reschedule(now)
        while True:
            try:
                await self._probe()
            except Exception as error:
                logger.debug("%s is still unavailable: %r", self._name, error)
                await asyncio.sleep(min(PROBE_EVERY_S, self._every_s))
            else:
                break
        self.open = False
        logger.warning("%s is available again", self._name)

    @property
    def _silent_s(self) -> float:
        return time.monotonic() - self._sign_at

    def _gone(self) -> CircuitOpen:
        return CircuitOpen(f"{self._name} is unavailable: no heartbeat for {self._patience_s:g} s")
