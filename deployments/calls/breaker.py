"""A circuit breaker for a deployment that searches can do without: nobody waits for what is gone."""

import asyncio
import contextvars
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

logger = logging.getLogger("banyan.breaker")

LOOK_EVERY_S = 2.0
"""How often replicas are looked at while calls wait and nothing comes."""
PROBE_EVERY_S = 1.0
"""The pause between two probes while the breaker is open."""


class CircuitOpen(RuntimeError):
    """The deployment is gone; a call of it was not made, or was given up."""


class Breaker:
    """Lets calls through while anything says that somebody works on them. Single-threaded: one event loop.

    It opens when calls wait and there was no sign of life for ``patience_s``: no answer to any call, and no replica
    that says that its engine is at work. So a deployment that is only slow keeps it closed. All that wait are then
    given up, and others do not begin, until a probe succeeds. Probes are made in the background: no call has to be one.
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
            look: seconds since the liveliest replica last did something; raises where none answers, has a deadline.
            probe: a small piece of real work; raises where it cannot be done, and has a deadline.
            every_s: pause between two looks.
        """
        self.open = False
        self._name = name
        self._look = look
        self._probe = probe
        self._patience_s = patience_s
        self._every_s = every_s
        self._waiting: set[asyncio.Timeout] = set()
        self._sign_at = 0.0
        """When there was the last sign of life, monotonic seconds."""
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Around a call: an ordinary end is a sign of life.

        Raises:
            CircuitOpen: the breaker is open, or opened meanwhile.
        """
        if self.open:
            raise self._gone()
        if not self._waiting:
            self._sign_at = time.monotonic()  # silence begins with the first that waits
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
            # In no request's context: a client that hangs up must not end it.
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
            logger.debug("no sign of life of %s: %r", self._name, error)
        else:
            self._sign_at = max(self._sign_at, time.monotonic() - silent_s)

    async def _stay_open(self) -> None:
        logger.warning("%s is gone: no sign of life for %.0f s; nobody waits for it", self._name, self._silent_s)
        self.open = True
        now = asyncio.get_running_loop().time()
        for limit in self._waiting:
            limit.reschedule(now)
        while True:
            try:
                await self._probe()
            except Exception as error:
                logger.debug("%s is not back: %r", self._name, error)
                await asyncio.sleep(min(PROBE_EVERY_S, self._every_s))
            else:
                break
        self.open = False
        logger.warning("%s is back", self._name)

    @property
    def _silent_s(self) -> float:
        return time.monotonic() - self._sign_at

    def _gone(self) -> CircuitOpen:
        return CircuitOpen(f"{self._name} is gone: there was no sign of life for {self._patience_s:g} s")
