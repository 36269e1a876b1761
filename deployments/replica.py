"""What the replicas of the generator and of the process reward model have in common: an engine that is looked after."""

from typing import Any, Protocol

from deployments.telemetry.engine_telemetry import EngineTelemetry

ENGINE_DEPLOYMENT: dict[str, Any] = {
    "max_ongoing_requests": 512,
    "health_check_period_s": 5.0,
    "health_check_timeout_s": 20.0,
    "graceful_shutdown_timeout_s": 10.0,
}
"""The options of a deployment whose replicas hold an engine."""


class Engine(Protocol):
    """What is asked of every engine whatever it does; see ``deployments.engines.lifecycle.EngineLifecycle``."""

    async def canary(self, deadline_s: float) -> float: ...

    def stats(self) -> dict[str, int]: ...

    def check_alive(self) -> None: ...

    async def check_integrity(self, settle_s: float) -> list[str]: ...

    def shutdown(self) -> None: ...


class EngineReplica:
    """Base of a replica: whoever derives from it makes the engine and starts it."""

    _engine: Engine
    _telemetry: EngineTelemetry

    async def canary(self, deadline_s: float = 20.0) -> float:
        return await self._engine.canary(deadline_s)

    async def stats(self) -> dict[str, int]:
        return self._engine.stats()

    async def check_integrity(self, settle_s: float = 1.0) -> list[str]:
        return await self._engine.check_integrity(settle_s)

    async def check_health(self) -> None:
        """Called by Serve: a replica whose engine is dead is replaced."""
        self._engine.check_alive()

    def __del__(self) -> None:
        """Called by Serve when the replica is stopped; and by Python, also after a failed start."""
        if hasattr(self, "_engine"):
            self._telemetry.close()
            self._engine.shutdown()
