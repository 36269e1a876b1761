"""What the replicas of the generator and of the process reward model have in common: an engine that is looked after."""

import asyncio
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from deployments.engines.errors import EngineStartError
from deployments.scaling.pressure import PRESSURE
from deployments.startup.nodes import this_node
from deployments.telemetry.engine_telemetry import EngineTelemetry
from search.errors import SearchError

logger = logging.getLogger("banyan.replica")

ENGINE_DEPLOYMENT: dict[str, Any] = {
    "max_ongoing_requests": 512,
    # A process that hangs fails three checks in a row and is replaced within 20 s; an engine that hangs is found by its
    # own watch, and its process ends: the next check, which fails at once, is soon enough.
    "health_check_period_s": 3.0,
    "health_check_timeout_s": 5.0,
    "graceful_shutdown_wait_loop_s": 0.2,
}
"""The options of a deployment whose replicas hold an engine."""
LOOK_EVERY_S = 0.5
LEAVE_S = 8.0
"""More than vLLM takes to end an engine's processes."""
FAILED = 70
"""The exit status of a replica whose engine is dead."""


class Engine(Protocol):
    """What is asked of every engine whatever it does; see ``deployments.engines.lifecycle.EngineLifecycle``."""

    @property
    def pressure(self) -> float: ...

    @property
    def silent_s(self) -> float: ...

    async def start(self, stat_loggers: Sequence[Any] = ()) -> None: ...

    async def canary(self, deadline_s: float) -> float: ...

    def stats(self) -> dict[str, int]: ...

    def check_alive(self) -> None: ...

    async def check_integrity(self, settle_s: float) -> list[str]: ...

    def shutdown(self) -> None: ...


class EngineReplica:
    """Base of a replica: whoever derives from it makes the engine and has it started.

    A replica whose engine is dead ends its own process. Serve would take three health checks to see it, and meanwhile
    send it calls, the more of them the faster they fail; a process that is gone gets none, and its calls are made again
    elsewhere at once.
    """

    _engine: Engine
    _telemetry: EngineTelemetry

    async def _start(self, max_num_seqs: int | None) -> None:
        """``max_num_seqs``: requests in a full batch of the engine. Raises EngineStartError, which names the node."""
        try:
            await self._engine.start(self._telemetry.stat_loggers)
        except EngineStartError as error:
            raise EngineStartError(f"{this_node()}: {error}") from error
        self._telemetry.start(self._figures, max_num_seqs)
        self._watch = asyncio.create_task(self._leave_with_engine())

    async def canary(self, deadline_s: float = 20.0) -> float:
        with self._leaving():
            return await self._engine.canary(deadline_s)

    async def silent_s(self) -> float:
        """For how long the engine has neither said nor computed anything although it owes a reply, seconds."""
        return self._engine.silent_s

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve where the pool may grow; see `deployments.scaling.pressure`."""
        return {PRESSURE: float(self._engine.pressure)}

    async def stats(self) -> dict[str, int]:
        return self._figures()

    async def check_integrity(self, settle_s: float = 1.0) -> list[str]:
        return await self._engine.check_integrity(settle_s)

    async def check_health(self) -> None:
        """Called by Serve: a replica whose engine is dead is replaced."""
        self._engine.check_alive()

    def _figures(self) -> dict[str, int]:
        """What is told of this replica, on the status page and as metrics."""
        return self._engine.stats()

    def __del__(self) -> None:
        """Called by Serve when the replica is stopped; and by Python, also after a failed start."""
        if hasattr(self, "_watch"):
            with suppress(RuntimeError):  # its loop is closed
                self._watch.cancel()
        if hasattr(self, "_telemetry"):
            self._telemetry.close()
        if hasattr(self, "_engine"):
            self._engine.shutdown()

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """Around a call of the engine: where it fails because the engine is dead, the replica ends now, before it gets
        another call."""
        try:
            yield
        except SearchError:
            self._leave_if_dead()
            raise

    async def _leave_with_engine(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._leave_if_dead()

    def _leave_if_dead(self) -> None:
        try:
            self._engine.check_alive()
        except SearchError as error:
            logger.error("%s; this replica ends", error)
            # By force after that time: nothing here may keep the process alive.
            threading.Timer(LEAVE_S, os._exit, (FAILED,)).start()
            try:
                self._engine.shutdown()
            except BaseException:
                logger.exception("the engine's end failed")
            finally:
                os._exit(FAILED)
