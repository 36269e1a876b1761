"""Health: not whether a process answers, but whether a token is written and a step is scored."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
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


class Health:
    """Runs the canaries, at most one round at a time and at most one every ``canary_every_s``."""

    def __init__(self, canaries: Mapping[str, Canary], settings: HttpSettings) -> None:
        self._canaries = dict(canaries)
        self._settings = settings
        self._lock = asyncio.Lock()
        self._last: dict[str, Component] | None = None
        self._last_at = 0.0

    async def components(self) -> dict[str, Component]:
        """The state of every component, no older than ``canary_every_s``."""
        async with self._lock:
            if self._last is None or time.monotonic() - self._last_at > self._settings.canary_every_s:
                states = await asyncio.gather(*(self._state(canary) for canary in self._canaries.values()))
                self._last = dict(zip(self._canaries, states, strict=True))
                self._last_at = time.monotonic()
            return self._last

    async def _state(self, canary: Canary) -> Component:
        limit = self._settings.canary_timeout_s
        try:
            async with asyncio.timeout(limit):
                seconds = await canary()
        except TimeoutError:
            return Component(False, f"no answer within {limit:g} s")
        except Exception as error:
            return Component(False, f"failed: {type(error).__name__}")
        return Component(True, f"{seconds * 1000:.0f} ms")
