"""Health checks by real work: the generator writes a token, and the PRM scores a step."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from typing import NamedTuple

from deployments.config import HttpSettings

Canary = Callable[[], Awaitable[float]]
"""Does one small piece of real work and returns its duration in seconds; raises if the work fails."""


class Component(NamedTuple):
    """The state of one part of the application."""

    ok: bool
    detail: str

    @property
    def json(self) -> dict[str, object]:
        return {"status": "ok" if self.ok else "failed", "detail": self.detail}


PATIENCE_S = 0.5
"""Longest wait for a running round, seconds; then the last round's result is returned. A load balancer waits about a
second."""


class Health:
    """Runs rounds of canaries: at most one at a time, and at most one every ``canary_every_s``.

    At a busy engine a canary waits in the queue. A round continues after its request has been answered, and its result
    answers the next request. It ends within ``canary_timeout_s``, so a hanging engine is reported after that time.
    """

    def __init__(self, canaries: Mapping[str, Canary], settings: HttpSettings) -> None:
        self._canaries = dict(canaries)
        self._settings = settings
        self._round: asyncio.Task[None] | None = None
        self._last: dict[str, Component] | None = None
        self._last_at = -math.inf

    async def components(self) -> dict[str, Component]:
        """Returns the state of every component in the last round, which is at most ``canary_every_s`` old unless the
        next round is still running."""
        if self._round is None and time.monotonic() - self._last_at > self._settings.canary_every_s:
            # In its own context: otherwise Serve would cancel the round with the request that started it.
            self._round = asyncio.create_task(self._run_round(), context=Context())
        if self._round is not None:
            await asyncio.wait({self._round}, timeout=None if self._last is None else PATIENCE_S)
        assert self._last is not None
        return self._last

    async def _run_round(self) -> None:
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
            return Component(False, "failed: the replica was stopped")  # the replica's CancelledError, not ours
        except Exception as error:
            return Component(False, f"failed: {type(error).__name__}")
        return Component(True, f"{seconds * 1000:.0f} ms")
