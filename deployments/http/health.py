"""Health: not whether a process answers, but whether a token is written and a step is scored."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from typing import NamedTuple

from deployments.config import HttpSettings

Canary = Callable[[], Awaitable[float]]
"""Does one small piece of real work and returns the seconds it took; raises where it cannot."""


class Component(NamedTuple):
    """The state of one part of the application."""

    ok: bool
    detail: str

    @property
    def json(self) -> dict[str, object]:
        return {"status": "ok" if self.ok else "failed", "detail": self.detail}


PATIENCE_S = 0.5
"""A load balancer waits a second or so: where a round takes longer, the one before it is the answer."""


class Health:
    """Runs the canaries, at most one round at a time and at most one every ``canary_every_s``.

    A canary waits its turn at engines that are busy. Its round goes on when who asked has been answered, and is the
    next answer; it ends by ``canary_timeout_s``, so an engine that hangs is told of after that time.
    """

    def __init__(self, canaries: Mapping[str, Canary], settings: HttpSettings) -> None:
        self._canaries = dict(canaries)
        self._settings = settings
        self._round: asyncio.Task[None] | None = None
        self._last: dict[str, Component] | None = None
        self._last_at = -math.inf

    async def components(self) -> dict[str, Component]:
        """The state of every component as of the last round, which is no older than ``canary_every_s`` unless the
        next one is under way."""
        if self._round is None and time.monotonic() - self._last_at > self._settings.canary_every_s:
            # In a context of its own: Serve would end it with the request that began it.
            self._round = asyncio.create_task(self._look(), context=Context())
        if self._round is not None:
            await asyncio.wait({self._round}, timeout=None if self._last is None else PATIENCE_S)
        assert self._last is not None
        return self._last

    async def _look(self) -> None:
        try:
            states = await asyncio.gather(*(self._state(canary) for canary in self._canaries.values()))
            self._last = dict(zip(self._canaries, states, strict=True))
            self._last_at = time.monotonic()
        finally:
            self._round = None

    async def _state(self, canary: Canary) -> Component:
        limit = self._settings.canary_timeout_s
        try:
            async with asyncio.timeout(limit):
                seconds = await canary()
        except TimeoutError:
            return Component(False, f"no answer within {limit:g} s")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return Component(False, "failed: the replica was stopped")  # which sends its own CancelledError
        except Exception as error:
            return Component(False, f"failed: {type(error).__name__}")
        return Component(True, f"{seconds * 1000:.0f} ms")
