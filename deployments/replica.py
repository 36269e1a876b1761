"""Base class of the generator's and the process reward model's replicas: it holds an engine and watches it."""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from deployments.calls.last_words import leave_last_words
from deployments.engines.errors import EngineStartError
from deployments.engines.histograms import Histogram
from deployments.scaling.pressure import PRESSURE
from deployments.startup.nodes import this_node
from deployments.telemetry.engine_telemetry import EngineTelemetry
from search.errors import SearchError

logger = logging.getLogger("banyan.replica")

ENGINE_DEPLOYMENT: dict[str, Any] = {
    "max_ongoing_requests": 512,
    # A replica process that hangs fails three checks in a row and is replaced within 20 s. An engine that hangs needs
    # no shorter period: its own watch kills it, the replica's process exits, and the next check fails at once.
    "health_check_period_s": 3.0,
    "health_check_timeout_s": 5.0,
    "graceful_shutdown_wait_loop_s": 0.2,
}
"""The options of a deployment whose replicas hold an engine."""
LOOK_EVERY_S = 0.5
"""Interval at which a replica checks that its engine is alive."""
EXIT_TIMEOUT_S = 8.0
"""Time for an orderly engine shutdown before the process exits by force; vLLM needs less."""
FAILED = 70
"""The exit status of a replica whose engine is dead."""


class Engine(Protocol):
    """The interface of every engine; see ``deployments.engines.lifecycle.EngineLifecycle``."""

    @property
    def pressure(self) -> float: ...

    @property
    def silent_s(self) -> float: ...

    @property
    def at_engine(self) -> frozenset[str]: ...

    @property
    def histograms(self) -> Mapping[str, Histogram]: ...

    @property
    def notes(self) -> list[str]: ...

    @property
    def model_runners(self) -> dict[str, str]: ...

    async def start(self, stat_loggers: Sequence[Any] = ()) -> None: ...

    async def canary(self, deadline_s: float) -> float: ...

    def stats(self) -> dict[str, int]: ...

    def check_alive(self) -> None: ...

    async def check_integrity(self, settle_s: float) -> list[str]: ...

    def shutdown(self) -> None: ...


class EngineReplica:
    """Base class of a replica with an engine. A subclass creates the engine and calls ``_start``.

    A replica whose engine is dead ends its own process. Serve would need three health checks to notice the failure.
    Until then it would send the replica calls, and more of them the faster they fail. A replica whose process has
    exited gets no calls, and its open calls are retried elsewhere at once. Its last words say which of them may have
    ended the engine (`deployments.calls.last_words`).
    """

    _engine: Engine
    _telemetry: EngineTelemetry
    _exits = False
    """Whether its engine is dead."""

    async def _start(self, max_num_seqs: int | None) -> None:
        """Starts the engine, its telemetry and its watch.

        ``max_num_seqs``: requests in a full batch of the engine. Raises EngineStartError, which names the node.
        """
        try:
            await self._engine.start(self._telemetry.stat_loggers)
        except EngineStartError as error:
            raise EngineStartError(f"{this_node()}: {error}") from error
        self._telemetry.start(self._figures, max_num_seqs, self._engine.histograms)
        self._watch = asyncio.create_task(self._watch_engine())

    async def canary(self, deadline_s: float = 20.0) -> float:
        async with self._exit_if_engine_dies():
            return await self._engine.canary(deadline_s)

    async def silent_s(self) -> float:
        """Seconds for which the engine has neither sent nor computed anything although it owes a reply."""
        return self._engine.silent_s

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve where the pool autoscales; see `deployments.scaling.pressure`."""
        return {PRESSURE: float(self._engine.pressure)}

    async def stats(self) -> dict[str, Any]:
        histograms = {name: histogram.figures for name, histogram in self._engine.histograms.items()}
        told = {"model_runners": self._engine.model_runners, "notes": self._engine.notes}
        return {**self._figures(), **told, "histograms": histograms}

    async def check_integrity(self, settle_s: float = 1.0) -> list[str]:
        return await self._engine.check_integrity(settle_s)

    async def check_health(self) -> None:
        """Called by Serve: a replica whose engine is dead is replaced."""
        self._engine.check_alive()

    def _figures(self) -> dict[str, int]:
        """This replica's counters for the status page and the metrics."""
        return self._engine.stats()

    def __del__(self) -> None:
        """Called by Serve when the replica is stopped, and by Python, also after a failed start."""
        if hasattr(self, "_watch"):
            with suppress(RuntimeError):  # its loop is closed
                self._watch.cancel()
        if hasattr(self, "_telemetry"):
            self._telemetry.close()
        if hasattr(self, "_engine"):
            self._engine.shutdown()

    @asynccontextmanager
    async def _exit_if_engine_dies(self) -> AsyncIterator[None]:
        """Context of one engine call. If the call fails because the engine is dead, it gets no reply: its replica
        exits."""
        try:
            yield
        except SearchError:
            if self._exits_if_dead():
                await asyncio.Event().wait()
            raise

    async def _watch_engine(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._exits_if_dead():
                return

    def _exits_if_dead(self) -> bool:
        """Begins to exit if the engine is dead. Returns whether the replica exits.

        Meanwhile it takes calls and never answers them. If it did not take them, they would go to other replicas,
        those of the search that ended the engine too.
        """
        if self._exits:
            return True
        try:
            self._engine.check_alive()
        except SearchError as error:
            self._exits = True
            logger.error("%s; this replica exits", error)
            # Exits by force after the timeout: nothing else may keep the process alive.
            threading.Timer(EXIT_TIMEOUT_S, os._exit, (FAILED,)).start()
            threading.Thread(target=self._exit, args=(self._engine.at_engine,), daemon=True).start()
            return True
        return False

    def _exit(self, at_engine: Collection[str]) -> None:
        try:
            leave_last_words(at_engine)
            self._engine.shutdown()
        except BaseException:
            logger.exception("the engine's shutdown failed")
        finally:
            os._exit(FAILED)
