"""The ProcessRewardModel deployment: one scoring engine per replica."""

from ray import serve

from deployments.config import PrmSettings
from search.ports import ScoreRequest


class PrmReplica:
    """What runs in each replica. Its methods are those of ``ScoringEngine``; see there."""

    async def __init__(self, settings: PrmSettings) -> None:  # type: ignore[misc]
        # Here and not above: it imports vLLM, ten seconds that only replicas should spend.
        from deployments.engines.rewards.function import FunctionScorer
        from deployments.engines.scoring import ScoringEngine

        # No client of the KV cache server: its own prefix cache holds what one new step stands on.
        self._engine = FunctionScorer(settings) if settings.family == "function" else ScoringEngine(settings)
        await self._engine.start()

    async def score(self, request: ScoreRequest) -> list[list[float]]:
        """Cancelling the call aborts its requests at the engine."""
        return await self._engine.score(request)

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
            self._engine.shutdown()


ProcessRewardModel = serve.deployment(
    name="ProcessRewardModel",
    max_ongoing_requests=512,
    health_check_period_s=5.0,
    health_check_timeout_s=20.0,
    graceful_shutdown_timeout_s=10.0,
)(PrmReplica)
"""To be bound with ``PrmSettings``, after ``options`` for the replicas."""
